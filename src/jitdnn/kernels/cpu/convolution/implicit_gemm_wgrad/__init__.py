"""wgrad as a matrix product over pixels."""
