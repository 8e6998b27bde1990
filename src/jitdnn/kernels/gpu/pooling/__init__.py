"""Pooling and unpooling in plain C."""
