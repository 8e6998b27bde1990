"""The tiled matrix product in plain C, and what is computed by it."""
