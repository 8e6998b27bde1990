"""Convolutions and matrix products as implicit products by warpgroups: sm_90a."""
