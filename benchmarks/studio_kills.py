"""SIGKILLs of a studio at random moments, and what they cost a run: `benchmarks/studio.py kills` comes here."""

# ruff: noqa: T201

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import urllib.error
from collections import Counter
from pathlib import Path

from jitdnn.studio.store import Store
from studio_browser import Server, running
from studio_runs import curves_of, make_run, row_of, weights_of

#: iterations of a run, and most of them between two kills
_ITERATIONS, _AHEAD = 10_000, 400
_LONGEST = 600.0  # seconds that a run may stand still


def kills(home: Path, count: int, seed: int) -> None:
    """Kill the workers of runs, the server, or both so many times; compare each run with one that is left alone.

    A fifth of the kills come within three seconds of the one before, while processes start, compile and read; the
    others after a random number of iterations. Of those that kill both, either may be the first. A run that ends
    meanwhile, since workers go on without a server, is followed by another.
    """
    moments = random.Random(seed)
    told: Counter[str] = Counter()
    with running(home) as server, Store(home) as store:
        begun = time.monotonic()
        left_alone = make_run(store, _ITERATIONS, snapshot=150, test=100)
        _until(store, left_alone, _ITERATIONS)
        print(f"undisturbed: {_ITERATIONS:,} iterations in {time.monotonic() - begun:.0f} s", flush=True)
        expected = curves_of(store, left_alone), weights_of(store, left_alone, _ITERATIONS)
        begun = time.monotonic()
        runs = 0
        while sum(told[who] for who in _WHO) < count:
            run = make_run(store, _ITERATIONS, snapshot=150, test=100)
            before = sum(told[who] for who in _WHO)
            _disturb(store, server, run, count, moments, told)
            _until(store, run, _ITERATIONS, server)
            runs += 1
            is_same = curves_of(store, run) == expected[0], weights_of(store, run, _ITERATIONS) == expected[1]
            print(
                f"run {runs}, {sum(told[who] for who in _WHO) - before} kills, {row_of(store, run)['lease']} starts: "
                f"points each once and as undisturbed: {is_same[0]}; weights, history, generators, best weights, "
                f"{len(expected[1])} arrays, bit-equal: {is_same[1]}",
                flush=True,
            )
            if not all(is_same):
                sys.exit("FAILED")
        print(f"SIGKILLs in {time.monotonic() - begun:.0f} s: {', '.join(f'{told[w]} of {w}' for w in _WHO)}; "
              f"{told['at once']} within three seconds of the one before")  # fmt: skip
        print(f"points of a run: { ({name: len(points[0]) for name, points in expected[0].items()}) }")


def _disturb(
    store: Store, server: Server, run: int, count: int, moments: random.Random, told: Counter[str]
) -> None:
    """Kill at random until there were `count` kills in all, or the run is done."""
    while sum(told[who] for who in _WHO) < count:
        if is_at_once := moments.random() < 0.2:
            time.sleep(moments.uniform(0, 3))
        else:
            ahead = row_of(store, run)["iteration"] + moments.randint(1, _AHEAD)
            _until(store, run, min(_ITERATIONS, ahead), server)
        if row_of(store, run)["state"] == "done":
            return
        who = moments.choice(_WHO)
        if _kill(server, run, who, moments.random() < 0.5):
            told.update([who, *(["at once"] if is_at_once else [])])
        if server.process is not None and server.process.poll() is not None:
            time.sleep(moments.uniform(0, 2))
            server.start()


_WHO = ("the worker", "the server", "both")


def _kill(server: Server, run: int, who: str, is_server_first: bool) -> bool:
    """Whether there was somebody to kill."""
    workers = workers_of(server.home, run) if who != "the server" else []
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


def workers_of(home: Path, run: int) -> list[int]:
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
            _resume(server, run)
        elif row["state"] not in ("queued", "running") or time.monotonic() - moved > _LONGEST:
            sys.exit(f"FAILED: the run does not get on: {row}")
        time.sleep(0.02)


def _resume(server: Server, run: int) -> None:
    """Ask for a run to go on. The answer may be late, on a busy machine, and another one has then been given already:
    what counts is that the run gets on, for which `_until` waits."""
    try:
        server.ask("POST", f"/api/runs/{run}/resume", seconds=_LONGEST)
    except urllib.error.HTTPError as refused:
        if refused.code != 409:  # it goes on already
            raise
    except (urllib.error.URLError, TimeoutError, ConnectionError) as late:
        print(f"no answer to a request that run {run} go on: {late}", flush=True)
