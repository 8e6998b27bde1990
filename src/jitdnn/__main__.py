"""`python -m jitdnn` is the command line."""

from __future__ import annotations

from jitdnn.cli import main

if __name__ == "__main__":
    main()
