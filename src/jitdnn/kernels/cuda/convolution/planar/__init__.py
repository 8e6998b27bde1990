"""Depthwise and grouped convolutions of channels first on CUDA cores."""
