"""Where the project's files are."""

from __future__ import annotations

from pathlib import Path

HELPERS = Path(__file__).resolve().parent
TESTS = HELPERS.parent
ROOT = TESTS.parent
#: public files that not every checkout has beside it
SHARED = ROOT.parent / "shared"
