"""What a kernel's code does, read from the code: one answer for each question, and nothing decided.

`source` finds a function's text, and `ir` reads Numba's IR of it. On these stand the answers:
`effects` (which parameters are stored to), `bounds` (what an integer is the sum of, and its sign),
`guards` (the bounds in front of stores), `positions` (which threads are told apart), and `indices`
(which of the source's indices cannot be negative). `callees` lists what functions do whose code
cannot be read.

Nothing here knows devices, arrays or launches. Where the code cannot be followed, each answer is
the one that costs time, never the one that costs a right result.
"""
