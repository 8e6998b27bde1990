"""What every kernel in plain C begins with."""
