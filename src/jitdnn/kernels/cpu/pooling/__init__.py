"""Pooling and unpooling on processors."""
