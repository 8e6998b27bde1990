"""What each of two processes does that measure a list of problems together (process_groups.py).

They pretend to be on two hosts, since two processes on one processor are refused.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import jitdnn as jd
from jitdnn.planner.store import Store

NAMES = [f"conv_fwd n1 c{c} h6 w6 k4 r3 s3 pad1" for c in (1, 2, 3, 5)]


def tuned(group: Any) -> dict[str, Any]:
    """The rows of the store, who measured each problem, and how many could not be."""
    store = Store(None)
    with mock.patch("platform.node", return_value=f"host{group.rank}"), jd.settings(threads=1):
        tuning = jd.tune(NAMES, store=store, seconds=0.001, group=group)
    rows = sorted([row.problem, row.algorithm, row.seconds] for row in store.rows())
    ranks = [each.rank for each in tuning.problems]
    return {"rows": rows, "ranks": ranks, "failures": len(tuning.failures)}
