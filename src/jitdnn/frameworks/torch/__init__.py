"""PyTorch modules, operators and graphs that run on this library where it is faster: `jitdnn.torch` is the door."""
