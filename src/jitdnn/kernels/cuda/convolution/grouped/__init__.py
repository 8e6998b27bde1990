"""Convolutions whose groups have a few channels each."""
