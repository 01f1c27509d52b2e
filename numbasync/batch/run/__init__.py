"""Running a batch: tensors, kernels, transfers, replays and the report of them."""
