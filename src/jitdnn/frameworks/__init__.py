"""Bridges into other people's frameworks."""
