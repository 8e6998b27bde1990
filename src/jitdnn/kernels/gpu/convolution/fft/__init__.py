"""Convolutions by fast Fourier transforms on GPUs: whole transforms in the shared memory of a thread block."""
