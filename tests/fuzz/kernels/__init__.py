"""Random problems for every CUDA kernel of some families, whichever the planner would choose: see `check.py`."""

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[2]
# what other tests of kernels have: memory that shows misuse, epilogues, and the emulator
sys.path += [str(_TESTS / folder) for folder in ("helpers", "gpu") if str(_TESTS / folder) not in sys.path]
