"""Convolutions of few channels by warpgroups with box tiles: all taps share a box of pixels in shared memory."""
