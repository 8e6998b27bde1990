"""Connectionist temporal classification on GPUs."""
