"""dgrads of convolutions whose patches touch without overlap, and transposed convolutions, by warpgroups."""
