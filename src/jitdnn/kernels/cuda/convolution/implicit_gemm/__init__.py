"""Convolutions as matrix products on tensor cores."""
