"""Convolutions in plain C."""
