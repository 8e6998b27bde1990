"""SIGKILLs of a studio at random moments, and what they cost a run: `benchmarks/studio.py kills` comes here."""

# ruff: noqa: T201

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from jitdnn.studio.store import Store
from studio_browser import Server, running
from studio_runs import curves_of, make_run, row_of, weights_of

#: iterations of the run for each kill; it gets on by at most as many between two of them
_FOR_EACH = 400
_LONGEST = 600.0  # seconds that a run may stand still


def kills(home: Path, count: int, seed: int) -> None:
    """Kill the worker of a run, the server, or both so many times; compare the run with one that is left alone.

    A fifth of the kills come within three seconds of the one before, while processes start, compile and read; the
    others after a random number of iterations. Of those that kill both, either may be the first.
    """
    moments, max_iter = random.Random(seed), _FOR_EACH * count
    told: Counter[str] = Counter()
    with running(home) as server, Store(home) as store:
        begun = time.monotonic()
        left_alone = make_run(store, max_iter, snapshot=150, test=100)
        _until(store, left_alone, max_iter)
        print(f"undisturbed: {max_iter:,} iterations in {time.monotonic() - begun:.0f} s", flush=True)
        killed = make_run(store, max_iter, snapshot=150, test=100)
        begun = time.monotonic()
        while sum(told[who] for who in _WHO) < count:
            if is_at_once := moments.random() < 0.2:
                time.sleep(moments.uniform(0, 3))
            else:
                ahead = moments.randint(1, _FOR_EACH)
                _until(store, killed, min(max_iter - 1, row_of(store, killed)["iteration"] + ahead), server)
            if row_of(store, killed)["state"] == "done":
                sys.exit(f"FAILED: the run was done before the kills were: {dict(told)}")
            who = moments.choice(_WHO)
            if _kill(server, killed, who, moments.random() < 0.5):
                told.update([who, *(["at once"] if is_at_once else [])])
            if server.process is not None and server.process.poll() is not None:
                time.sleep(moments.uniform(0, 2))
                server.start()
        print(f"SIGKILLs in {time.monotonic() - begun:.0f} s: {', '.join(f'{told[w]} of {w}' for w in _WHO)}; "
              f"{told['at once']} within three seconds of the one before")  # fmt: skip
        print(f"at iteration {row_of(store, killed)['iteration']:,} by then", flush=True)
        _until(store, killed, max_iter, server)
        curves = [curves_of(store, run) for run in (left_alone, killed)]
        weights = [weights_of(store, run, max_iter) for run in (left_alone, killed)]
        counts = {name: len(points[0]) for name, points in curves[1].items()}
        is_same = curves[0] == curves[1], weights[0] == weights[1]
        print(f"points, each once: {counts}; as undisturbed: {is_same[0]}")
        print(f"weights, history, generators, best weights, {len(weights[0])} arrays: bit-equal {is_same[1]}")
        if not all(is_same):
            sys.exit("FAILED")


_WHO = ("the worker", "the server", "both")


def _kill(server: Server, run: int, who: str, is_server_first: bool) -> bool:
    """Whether there was somebody to kill."""
    workers = _workers(server.home, run) if who != "the server" else []
    if who == "the worker" and not workers:
        return False
    if who != "the worker" and is_server_first:
        server.kill()
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if who != "the worker" and not is_server_first:
        server.kill()
    return True


def _workers(home: Path, run: int) -> list[int]:
    """Processes of a run, also those that only begin to import what they need."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if b"jitdnn.studio.work" in words and os.fsencode(home) in words and b"%d" % run in words:
                found.append(int(file.parent.name))
    return found


def _until(store: Store, run: int, iteration: int, server: Server | None = None) -> None:
    """Wait until a run is so far; one that died too often in one place is asked to go on, as its user would."""
    moved, last = time.monotonic(), -1
    while (row := row_of(store, run))["iteration"] < iteration or (
        iteration == row["max_iter"] and row["state"] != "done"
    ):
        if row["iteration"] != last:
            moved, last = time.monotonic(), row["iteration"]
        if row["state"] == "interrupted" and server is not None:
            server.ask("POST", f"/api/runs/{run}/resume")
        elif row["state"] not in ("queued", "running") or time.monotonic() - moved > _LONGEST:
            sys.exit(f"FAILED: the run does not get on: {row}")
        time.sleep(0.02)
