"""From a kernel's source to machine code that runs all threads of a block."""
