"""Forward and dgrad as a matrix product without the matrix of patches: input tiles are packed, or read in place."""
