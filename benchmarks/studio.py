"""What the studio promises: nothing lost by kills, little between a commit and the page, curves of any length at once.

    python benchmarks/studio.py kills [--count 100]          # SIGKILLs of worker, server, both at random moments
    python benchmarks/studio.py watchers [--count 100] [--seconds 300]
    python benchmarks/studio.py points [--count 1000000]     # and 1,000 runs
    python benchmarks/studio.py pages [--count 1000000]      # first pictures in a browser; 100,000 images
    python benchmarks/studio.py newcomer [--install]         # from nothing to own photographs classified
    python benchmarks/studio.py plan [--count 5]             # a plan of LeNet with nothing in any cache
    python benchmarks/studio.py soak [--minutes 60]          # memory of a server that is looked at all the time
    python benchmarks/studio.py writing                      # what a training takes to write, and beside it
    python benchmarks/studio.py gpu                          # trainings at a GPU's place, beside the processor's

`kills` fails unless every point is there once and all weights are those of an undisturbed run, bit by bit. `watchers`
measures from a commit in the store to the event at clients of HTTP and to the number on a page in a browser, and what
the server takes meanwhile. All of it runs on this machine alone, and shares its cores with whatever else does.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
from jitdnn.studio.store import Store

_VISITS = ("newcomer", "pages", "soak", "kills", "watchers", "gpu")


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("points", "plan", "writing", *_VISITS))
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument(
        "--install", action="store_true", help="newcomer: in an environment of its own, made first"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    if arguments.what in _VISITS:
        import studio_visits

        studio_visits.in_a_home(arguments)
        return
    if arguments.what == "plan":
        import studio_plans

        studio_plans.plans(arguments.count or 5)
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        if arguments.what == "writing":
            import studio_writing

            studio_writing.writing(home)
            return
        points(home, arguments.count or 1_000_000)


# ---- points


def points(home: Path, count: int) -> None:
    """Times of queries on a run of so many points, and on 1,000 runs."""
    with Store(home) as store:
        run = store.insert("run", name="long", state="done", iteration=count, max_iter=count)
        values = np.exp(-np.arange(count) / (count / 3)) + 0.1 * np.random.default_rng(0).standard_normal(
            count
        )
        started = time.monotonic()
        for start in range(0, count, 1000):
            store.add_points(
                run, [("loss", k + 1, v) for k, v in enumerate(values[start : start + 1000].tolist(), start)]
            )
        took = time.monotonic() - started
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = store.path.stat().st_size
        print(
            f"{count:,} points written by 1,000 in {took:.1f} s, "
            f"{1e6 * took / count:.1f} us and {size / count:.0f} bytes each"
        )
        last = store.since(run, 0, most=count).seq
        near = count - 3000, count - 1000
        for what, call in (
            ("the whole curve", lambda: store.series(run, "loss")),
            ("the whole curve, smoothed by 0.99", lambda: store.series(run, "loss", smooth=0.99)),
            ("a fifth of it, smoothed", lambda: store.series(run, "loss", count // 2, count * 7 // 10, smooth=0.99)),
            ("2,000 iterations near its end, smoothed", lambda: store.series(run, "loss", *near, smooth=0.99)),
            ("the small picture", lambda: store.spark(run)),
            ("what is new after the last point but 100", lambda: store.since(run, last - 100)),
        ):  # fmt: skip
            print(f"  {what}: {_timed(call)}")
        for k in range(999):
            other = store.insert("run", name=f"run {k}", state="done")
            store.add_points(other, [("loss", 10 * i + 1, 1 / (i + 1)) for i in range(200)])
        newest = "SELECT * FROM run WHERE kind = 'train' ORDER BY id DESC LIMIT 200"
        print(f"  1,000 runs, the newest 200 rows: {_timed(lambda: store.rows(newest))}")
        print(f"  50 small pictures: {_timed(lambda: [store.spark(run) for run in range(900, 950)])}")


def _timed(call: Callable[[], object], times: int = 7) -> str:
    found = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - started))
    return f"median {median(found):.1f} ms, first {found[0]:.1f} ms"


if __name__ == "__main__":
    main()
