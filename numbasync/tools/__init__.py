"""The command `numbasync`: info, demo, bench and new."""
