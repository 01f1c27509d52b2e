"""The operations recorded in a batch: calls and operators as nodes of a graph."""
