"""SIGKILL of one of two processes that train LeNet, at random moments: python benchmarks/distributed_kills.py

Every run must end by itself, name the process that was killed, and leave a good snapshot; a run that goes on from
there, with another number of processes, must reach the same weights: the same bits with two. Each third run restarts by
itself, each second one divides the solver's state. Lines of JSON, one a kill. distributed_scaling.py measures images
a second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn.caffe import snapshot

SOLVER = """base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005 lr_policy: "inv" gamma: 0.0001 power: 0.75 random_seed: 5
net: "package:models/lenet.prototxt" max_iter: {iterations} snapshot: 10 snapshot_prefix: "{prefix}" type: "{kind}"
test_iter: 2 test_interval: 25 {more}
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "jitdnn", "train", *map(str, arguments)]


def children(process: int) -> list[int]:
    """The processes that a process started."""
    try:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [int(each) for each in found]


def ranks(launcher: int) -> list[int]:
    """The trainings that a launcher started."""
    found = []
    for child in children(launcher):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"train" in words:
            found.append(child)
    return found


def end(process: subprocess.Popen[str]) -> None:
    """Kill a launcher and all that it started, and wait."""
    found = [process.pid]
    for each in found:  # which grows
        found += children(each)
    for each in reversed(found):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    process.communicate()


def run_kills(options: argparse.Namespace) -> int:
    chosen = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="jitdnn-kills-"))
    solver = folder / "solver.prototxt"
    undisturbed = folder / "whole"
    solver.write_text(SOLVER.format(iterations=options.iterations, prefix=undisturbed, kind="SGD", more=""))
    process = subprocess.Popen(command(solver, "--processes", 2), stdout=subprocess.DEVNULL)
    while len(ranks(process.pid)) < 2:
        time.sleep(0.05)
    started = time.perf_counter()
    if process.wait():
        raise SystemExit("the undisturbed run failed")
    whole = time.perf_counter() - started
    expected = snapshot.read(snapshot.path_of(str(undisturbed), options.iterations)).arrays
    rows: list[dict[str, Any]] = []
    for number in range(options.count):
        prefix = folder / f"run{number}"
        solver.write_text(SOLVER.format(iterations=options.iterations, prefix=prefix, kind="SGD", more=""))
        restarts = ["--max-restarts", "2"] if number % 3 == 2 else []
        sharded = ["--shard-state"] if number % 2 else []
        row = _one_kill(chosen, solver, prefix, whole, [*restarts, *sharded], options, expected)
        rows.append({"number": number, "restarts": bool(restarts), "sharded": bool(sharded), **row})
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    ends = [row["seconds_to_end"] for row in rows if row["seconds_to_end"] is not None]
    faults = [row for row in rows if row["fault"]]
    sys.stdout.write(
        f"{len(rows)} kills, {len(faults)} faults; seconds from the kill to the end of the run: median "
        f"{statistics.median(ends) if ends else float('nan'):.2f}, most {max(ends, default=float('nan')):.2f}\n"
    )
    return 1 if faults else 0


def _one_kill(
    chosen: random.Random,
    solver: Path,
    prefix: Path,
    whole: float,
    more: Sequence[str],
    options: argparse.Namespace,
    expected: dict[str, Any],
) -> dict[str, Any]:
    """Start a run, kill one of its processes, and look at what is left."""
    process = subprocess.Popen(
        command(solver, "--processes", 2, *more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    found: list[int] = []
    while len(found) < 2 and process.poll() is None:
        time.sleep(0.05)
        found = ranks(process.pid)
    time.sleep(chosen.uniform(0, whole))
    found = ranks(process.pid)
    killed = chosen.choice(found) if found else None
    if killed is not None:
        os.kill(killed, signal.SIGKILL)
    at = time.perf_counter()
    row: dict[str, Any] = {"killed": killed is not None, "seconds_to_end": None, "fault": ""}
    try:
        output, _ = process.communicate(timeout=options.patience)
    except subprocess.TimeoutExpired:
        end(process)
        return {**row, "fault": "the run hangs"}
    is_restarted = "--max-restarts" in more
    if killed is not None and not is_restarted:
        row["seconds_to_end"] = round(time.perf_counter() - at, 2)
        if process.returncode != 1 or "was ended by SIGKILL" not in output:
            return {**row, "fault": f"exit code {process.returncode}: {output[-400:]}"}
    elif process.returncode:
        return {**row, "fault": f"exit code {process.returncode}: {output[-400:]}"}
    if killed is not None and not is_restarted:
        newest = snapshot.newest(str(prefix))
        row["resumed_from"] = None if newest is None else newest.name
        processes = chosen.choice((1, 2, 3))
        row["resumed_with"] = processes
        resume = [] if newest is None else ["--resume", newest]
        ended = subprocess.run(
            command(solver, "--processes", processes, *resume), capture_output=True, text=True
        )
        if ended.returncode:
            return {**row, "fault": f"resume: {ended.stderr[-400:]}"}
    arrays = snapshot.read(snapshot.path_of(str(prefix), options.iterations)).arrays
    apart = max(float(np.abs(arrays[name] - array).max()) for name, array in expected.items())
    row["weights_apart"] = apart
    # the same number of processes has the same bits; others round differently, and that grows
    most = options.apart if row.get("resumed_with", 2) != 2 else 0.0
    return row if apart <= most else {**row, "fault": f"weights are {apart} apart"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument(
        "--patience", type=float, default=120, help="seconds after which a run counts as hanging"
    )
    parser.add_argument(
        "--apart",
        type=float,
        default=0.05,
        help="most that weights may differ after a resume by another number",
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    return run_kills(options)


if __name__ == "__main__":
    raise SystemExit(main())
