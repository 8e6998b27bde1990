"""Attention on the tensor cores: tiles of keys are streamed past tiles of queries, and scores stay in registers."""
