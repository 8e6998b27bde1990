"""Results read from computed places in plain C: resize, embedding, grid sampling."""
