"""Filter gradients of few channels by warpgroups, of boxes of pixels that all taps share."""
