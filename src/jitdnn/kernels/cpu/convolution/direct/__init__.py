"""Convolution as its definition reads, vectorized over pixels, channels or groups: direct and depthwise algorithms."""
