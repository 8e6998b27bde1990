"""Attention on the tensor cores: tiles of keys stream past tiles of queries, and scores stay in registers."""
