"""Formulas of elements in plain C."""
