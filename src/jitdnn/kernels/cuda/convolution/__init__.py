"""Convolutions on NVIDIA GPUs: a folder for each family of algorithms."""
