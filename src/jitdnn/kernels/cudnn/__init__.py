"""NVIDIA's cuDNN as one more source of algorithms of CUDA devices, called through its C interface where it is there."""
