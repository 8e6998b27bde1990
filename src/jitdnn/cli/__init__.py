"""The command line `jitdnn`: `main` is its entry point, every command has a module of its own."""

from __future__ import annotations

from jitdnn.cli.app import main

__all__ = ["main"]
