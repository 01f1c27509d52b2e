"""The command `numbasync`: demo, doctor, bench and new."""
