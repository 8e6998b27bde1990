"""The tiled matrix product in plain C, and what is written as one."""
