"""The timeline of a program: `na.trace`, and what it shows."""
