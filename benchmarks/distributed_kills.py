"""SIGKILL of one of two processes that train together, at random moments: python benchmarks/distributed_kills.py

The two are started by the launcher behind `jitdnn train --processes 2`, a net of some digits, a snapshot each 25
iterations. A moment is one of the training in four of five runs, of its start in the fifth. Each third run may
restart by itself, each second one divides the solver's state. Every run must end by itself and name the process that
was killed, or end well; every snapshot that it said must be there and whole; and where it goes on from the newest
one, with one, two or three processes, the weights must be those of a run that nothing happened to: the same bits with
two.

Lines of JSON, one a kill; with --json FILE they are kept there, and a call that was stopped goes on behind them.
distributed_dask.py kills workers of Dask.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from dask_cluster import children
from jitdnn.caffe import snapshot
from process_groups import Ranks

SOLVER = """base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005 lr_policy: "inv" gamma: 0.0001 power: 0.75 random_seed: 5
max_iter: {iterations} snapshot: 25 snapshot_prefix: "{prefix}" net_param {{
  layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "package:data/mnist_5k.npz#train"
  batch_size: 12 }} transform_param {{ scale: 0.0039 }} }}
  layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {{ num_output: 4 kernel_size: 5
  stride: 2 weight_filler {{ type: "xavier" }} }} }} layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
  layer {{ name: "drop" type: "Dropout" bottom: "conv" top: "conv" }} layer {{ name: "ip" type: "InnerProduct"
  bottom: "conv" top: "ip" inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
  layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }} }}
"""
Row = dict[str, Any]


class Fault(Exception):
    """What must not be."""


def write_solver(folder: Path, name: str, iterations: int) -> Path:
    """A solver whose snapshots are FOLDER/NAME_iter_N.jdsnap."""
    file = folder / f"{name}.prototxt"
    file.write_text(SOLVER.format(iterations=iterations, prefix=folder / name))
    return file


def check_said(lines: list[str]) -> None:
    """Every snapshot of which a line says that it was taken is there and whole."""
    for line in lines:
        _, found, path = line.rstrip().partition("Snapshotting to ")
        if found and path.endswith(snapshot.SUFFIX):
            snapshot.read(Path(path))


def apart(file: Path, expected: dict[str, Any]) -> float:
    arrays = snapshot.read(file).arrays
    return max(float(np.abs(arrays[name] - array).max()) for name, array in expected.items())


def repeat(options: argparse.Namespace, one: Callable[[int, random.Random], Row]) -> int:
    """Do it `count` times, less those that are in the file already; tell each, and all in the end. The exit code."""
    rows: list[Row] = []
    if options.json is not None and options.json.exists():
        rows = [json.loads(line) for line in options.json.read_text().splitlines()]
    for number in range(len(rows), options.count):
        began = time.perf_counter()
        try:
            row = {"fault": "", **one(number, random.Random(f"{options.seed} {number}"))}
        except Fault as fault:
            row = {"fault": str(fault)}
        rows.append({"number": number, **row, "seconds": round(time.perf_counter() - began, 1)})
        line = json.dumps(rows[-1]) + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        if options.json is not None:
            with open(options.json, "a") as file:
                file.write(line)
    faults = sum(bool(row["fault"]) for row in rows)
    ends = [row["seconds_to_end"] for row in rows if row.get("seconds_to_end") is not None]
    sys.stdout.write(
        f"{len(rows)} runs, {sum(row.get('killed', False) for row in rows)} killed, {faults} faults; seconds from the "
        f"kill to the end: median {statistics.median(ends) if ends else float('nan'):.2f}, most "
        f"{max(ends, default=float('nan')):.2f}\n"
    )
    return 1 if faults else 0


def arguments(text: str, iterations: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument(
        "--patience", type=float, default=120, help="seconds after which a run counts as hanging"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="lines of what is done, and where to go on")
    return parser


def train(group: Any, solver: str, resume: str | None) -> None:
    """What each of some processes does to go on with a run."""
    from jitdnn.caffe import load_solver
    from jitdnn.settings import settings

    with settings(threads=1):
        load_solver(solver, group=group).solve(resume)


@contextmanager
def output_to(file: Path) -> Iterator[None]:
    """Have all that this process and its children print go into a file."""
    sys.stdout.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with open(file, "wb") as opened:
        for number in (1, 2):
            os.dup2(opened.fileno(), number)
    try:
        yield
    finally:
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


class Killer(threading.Thread):
    """Kills one of the processes that train, `moment` seconds after both have begun, or after the first snapshot."""

    def __init__(self, prefix: Path | None, moment: float, chosen: random.Random, patience: float) -> None:
        super().__init__(daemon=True)
        self._prefix, self._moment, self._chosen, self._patience = prefix, moment, chosen, patience
        self._before = set(children(os.getpid()))
        self.killed_at: float | None = None
        self.hangs = False
        self.is_over = threading.Event()

    def ranks(self) -> list[int]:
        return [child for child in children(os.getpid()) if child not in self._before]

    def run(self) -> None:
        while len(self.ranks()) < 2 and not self.is_over.wait(0.01):
            pass
        while self._prefix is not None and not self._began() and not self.is_over.wait(0.005):
            pass
        self.is_over.wait(self._moment)
        if ranks := self.ranks():
            os.kill(self._chosen.choice(ranks), signal.SIGKILL)
            self.killed_at = time.perf_counter()
        if not self.is_over.wait(self._patience):
            self.hangs = True
            for rank in self.ranks():
                os.kill(rank, signal.SIGKILL)

    def _began(self) -> bool:
        assert self._prefix is not None
        return any(self._prefix.parent.glob(f"{self._prefix.name}_iter_*{snapshot.SUFFIX}"))


class Kills:
    """Runs of one folder."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        from jitdnn.distributed import launch

        self.options, self.folder, self._launch = options, folder, launch
        self._together = {size: Ranks(size) for size in (1, 2, 3)}
        solver = write_solver(folder, "whole", options.iterations)
        self._go_on(2, solver, None)
        self.expected = snapshot.read(snapshot.path_of(str(folder / "whole"), options.iterations)).arrays
        # how long a start, and a training behind its first snapshot, take here
        solver = write_solver(folder, "timed", options.iterations)
        times = {}
        killer = Killer(None, options.patience, random.Random(0), options.patience)
        watch = threading.Thread(target=self._watch, args=(killer, folder / "timed", times))
        killer.start()
        watch.start()
        with output_to(folder / "timed.log"):
            launch(["train", str(solver)], 2)
        killer.is_over.set()
        watch.join()
        self.start, self.training = times["first"] - times["ranks"], time.perf_counter() - times["first"]

    def _watch(self, killer: Killer, prefix: Path, times: dict[str, float]) -> None:
        while len(killer.ranks()) < 2:
            time.sleep(0.01)
        times["ranks"] = time.perf_counter()
        while not list(prefix.parent.glob(f"{prefix.name}_iter_*{snapshot.SUFFIX}")):
            time.sleep(0.005)
        times["first"] = time.perf_counter()

    def _go_on(self, size: int, solver: Path, resume: Path | None) -> None:
        self._together[size](
            "distributed_kills.train", str(solver), resume and str(resume), seconds=self.options.patience
        )

    def one(self, number: int, chosen: random.Random) -> Row:
        from jitdnn.errors import ProcessGroupError

        is_restarted, is_sharded = number % 3 == 2, number % 2 == 1
        is_start = number % 5 == 4
        moment = chosen.uniform(0, self.start if is_start else self.training)
        row: Row = {
            "restarts": is_restarted,
            "sharded": is_sharded,
            "in_start": is_start,
            "moment": round(moment, 2),
        }
        solver = write_solver(self.folder, f"run{number}", self.options.iterations)
        prefix, log = solver.with_suffix(""), solver.with_suffix(".log")
        killer = Killer(None if is_start else prefix, moment, chosen, self.options.patience)
        killer.start()
        said, code = "", 0
        with output_to(log):
            words = ["train", str(solver), *(["--shard-state"] if is_sharded else [])]
            try:
                code = self._launch(words, 2, 2 if is_restarted else 0)
            except ProcessGroupError as error:
                said = str(error)
        ended = time.perf_counter()
        killer.is_over.set()
        killer.join()
        row["killed"] = killer.killed_at is not None
        text = log.read_text(errors="replace")
        if killer.hangs:
            raise Fault(f"the run hangs: {text[-400:]}")
        check_said(text.splitlines())
        ends_by_kill = killer.killed_at is not None and not is_restarted
        if code or (said and not ends_by_kill) or (ends_by_kill and "was ended by SIGKILL" not in said):
            raise Fault(f"it ends by {code}, {said!r}: {text[-400:]}")
        size = 2
        if ends_by_kill and killer.killed_at is not None:
            row["seconds_to_end"] = round(ended - killer.killed_at, 2)
            newest, size = snapshot.newest(str(prefix)), chosen.choice((1, 2, 3))
            row |= {"resumed_from": newest and newest.name, "resumed_with": size}
            self._go_on(size, solver, newest)
        row["weights_apart"] = apart(snapshot.path_of(str(prefix), self.options.iterations), self.expected)
        # the same number of processes has the same bits; others round differently, and that grows
        if row["weights_apart"] > (0.0 if size == 2 else self.options.apart):
            raise Fault(f"weights are {row['weights_apart']} apart: {row}")
        for file in self.folder.glob(f"run{number}*"):
            file.unlink()
        return row

    def close(self) -> None:
        for ranks in self._together.values():
            ranks.close()


def main() -> int:
    parser = arguments(__doc__, 400)
    parser.add_argument(
        "--apart",
        type=float,
        default=1e-4,
        help="most that weights may differ after a resume by another number",
    )
    options = parser.parse_args()
    os.environ |= {"JITDNN_THREADS": "1", "OMP_NUM_THREADS": "1"}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="jitdnn-kills-") as folder:
        kills = Kills(options, Path(folder))
        try:
            return repeat(options, kills.one)
        finally:
            kills.close()


if __name__ == "__main__":
    raise SystemExit(main())
