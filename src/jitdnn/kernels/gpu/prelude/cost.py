"""What the cost models of kernels in plain C assume of every GPU."""

LAUNCH_SECONDS = 3e-6
ACCESS_SECONDS = 2e-7  # of memory, for a thread that accesses it again and again with nothing else in flight
ROUNDED = 1 - 1e-9
"""A factor on what no plan comes below: so rounding does not count."""
