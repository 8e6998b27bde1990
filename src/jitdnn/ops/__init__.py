"""The public functions over anybody's arrays: one file an op."""
