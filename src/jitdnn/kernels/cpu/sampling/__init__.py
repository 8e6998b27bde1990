"""Results read from computed places on processors: resize, sampling by a grid, embedding."""
