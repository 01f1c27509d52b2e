"""The race finder: which thread reads and writes which element."""
