"""Products of a matrix with few rows: both matrices are read where they lie."""
