"""The race checker: records which thread reads and writes which element."""
