"""Attention in plain C: of every type and head size, on every GPU."""
