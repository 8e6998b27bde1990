"""Convolutions on processors: a folder for each family of algorithms."""
