"""`python -m jitdnn.studio.data HOME NUMBER LOCK` makes one data set; the studio starts it. LOCK is the
descriptor of a lock.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jitdnn.studio.data.creation import run
from jitdnn.studio.store import Store

if __name__ == "__main__":
    os.nice(5)
    run(Store(Path(sys.argv[1])), int(sys.argv[2]))
