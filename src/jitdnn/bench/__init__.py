"""Measuring: suites of problems in, rows with their provenance out. `jitdnn bench` is its command line."""
