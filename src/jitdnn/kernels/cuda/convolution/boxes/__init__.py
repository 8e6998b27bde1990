"""Convolutions of few channels by warpgroups: all taps share what is copied of a box of pixels."""
