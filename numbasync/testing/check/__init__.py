"""`check_kernel`: a kernel against its reference, with guarded, poisoned and raced memory."""
