"""Results read from computed positions on processors: resize, sampling by a grid, embedding."""
