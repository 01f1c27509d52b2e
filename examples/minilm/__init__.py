"""What `06_sentence_embeddings.py` is made of: weights, the network on a device, a reference."""
