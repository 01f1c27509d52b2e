"""`check_kernel`: a kernel against its reference, with guard zones, poison and race checks."""
