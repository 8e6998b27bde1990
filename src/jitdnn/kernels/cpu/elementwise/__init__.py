"""Formulas of elements on processors."""
