"""What the planners of kernels in plain C know of every GPU."""

LAUNCH_SECONDS = 3e-6
