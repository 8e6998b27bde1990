"""What surrounds a micro-kernel: offsets, clipped taps, tasks for threads, seconds that they should take."""
