"""Connectionist temporal classification on processors."""
