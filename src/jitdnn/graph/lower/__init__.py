"""Nodes of a graph as calls of the public functions on arrays of reserved addresses, with their launches recorded."""
