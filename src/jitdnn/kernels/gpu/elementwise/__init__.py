"""The generator of elementwise loops in plain C."""
