"""What the benchmarks compare with: other libraries, and the driver by hand."""
