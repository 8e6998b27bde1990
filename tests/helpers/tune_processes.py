"""A process of two that measure a list of problems together: `python tune_processes.py FOLDER`.

They pretend to be on two hosts, since two processes on one processor are refused.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from unittest import mock

import jitdnn as jd
from jitdnn.distributed import start
from jitdnn.planner.store import Store

NAMES = [f"conv_fwd n1 c{c} h6 w6 k4 r3 s3 pad1" for c in (1, 2, 3, 5)]


def main() -> None:
    rank = os.environ["RANK"]
    group = start(timeout=60)
    store = Store(None)
    with mock.patch("platform.node", return_value=f"host{rank}"), jd.settings(threads=1):
        tuning = jd.tune(NAMES, store=store, seconds=0.001, group=group)
    rows = sorted([row.problem, row.algorithm, row.seconds] for row in store.rows())
    told = {"rows": rows, "ranks": [each.rank for each in tuning.problems], "failures": len(tuning.failures)}
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(told))
    group.close()


if __name__ == "__main__":
    main()
