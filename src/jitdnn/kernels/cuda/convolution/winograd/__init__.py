"""Winograd's minimal filtering with products in halves by warpgroups; transforms: gpu/convolution/winograd."""
