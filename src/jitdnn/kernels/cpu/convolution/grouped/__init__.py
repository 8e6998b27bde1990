"""Convolutions whose groups have a few channels each: whole groups in a vector."""
