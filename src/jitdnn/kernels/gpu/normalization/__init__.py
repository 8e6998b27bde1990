"""Normalizations in plain C."""
