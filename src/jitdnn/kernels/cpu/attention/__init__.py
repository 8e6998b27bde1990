"""Scaled dot-product attention on processors, tile by tile, forward and backward."""
