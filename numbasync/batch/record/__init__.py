"""What a batch was told to compute: calls and operators as nodes of a graph."""
