"""The prelude of every kernel in plain C."""
