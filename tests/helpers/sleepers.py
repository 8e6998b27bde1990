"""A process that does nothing: `python -m sleepers FOLDER` writes its rank into a file there named by its number."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    made = Path(sys.argv[1]) / f".{os.getpid()}"
    made.write_text(os.environ["RANK"])
    made.rename(made.with_name(str(os.getpid())))
    time.sleep(600)
