"""Devices: memory, threads and launches, one module a target."""
