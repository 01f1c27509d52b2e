"""Fusion: which recorded nodes one kernel computes, and where its values are stored."""
