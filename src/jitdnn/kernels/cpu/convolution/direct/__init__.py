"""Convolutions of few channels a group, depthwise ones above all, vectorized over pixels, channels or groups."""
