"""The CPU device: its streams, its workers, its memory and its graphs."""
