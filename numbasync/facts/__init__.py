"""What a kernel's code does, read from the code: one answer for each question, and nothing decided.

`source` finds a function's text, and `ir` reads Numba's IR of it. `callees` lists what functions do
whose code cannot be read. On these stand the answers:

    effects     which parameters are stored to, and how
    arrays      which parameters are arrays, of how many axes
    bounds      what an integer is the sum of, and whether it can be negative
    guards      the bounds that conditions put in front of stores
    positions   the threads that are told apart, and what they ask about the grid
    indices     the indices in the source that cannot be negative

Nothing here knows devices, tensors or launches. Where code cannot be followed, each answer is the
one that costs time, never the one that costs a right result.
"""
