"""all-MiniLM, which makes vectors of sentences: weights, the network on a device, a reference."""
