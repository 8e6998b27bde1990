"""The tiled matrix product on tensor cores."""
