"""Normalizations on processors."""
