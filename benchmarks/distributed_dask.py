"""SIGKILL of a worker of Dask at random moments of `jitdnn train --on`: python benchmarks/distributed_dask.py

A scheduler and three workers run on this machine, each with `cpu=1` and without a nanny. At a random moment of a run,
its start and its end included, the worker that has it is killed, and a new one is started in its place. The run must
end by itself with exit code 0 at another worker; every snapshot that it said must be there and whole; and the weights
must have the same bits as those of a run that nothing happened to.

Lines of JSON, one a kill; with --json FILE they are kept there, and a call that was stopped goes on behind them.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from distributed_kills import Fault, Row, apart, arguments, check_said, repeat, train, write_solver

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from dask_cluster import Cluster, is_running, wait_until
from jitdnn.caffe import snapshot
from jitdnn.cluster.engine import Engine
from jitdnn.cluster.shipping import ship
from jitdnn.cluster.training import RemoteTraining, Wanted
from jitdnn.errors import JitdnnError

WORKERS = 3


class Kills:
    """Runs of one folder at one cluster."""

    def __init__(self, options: argparse.Namespace, folder: Path, cluster: Cluster) -> None:
        self.options, self.folder, self.cluster = options, folder, cluster
        self._added = 0
        solver = write_solver(folder, "whole", options.iterations)
        train(None, str(solver), None)
        self.expected = snapshot.read(snapshot.path_of(str(folder / "whole"), options.iterations)).arrays
        for _ in range(WORKERS):
            self._add()
        self.engine = Engine.at(cluster.address)
        wait_until(lambda: len(self.engine.workers()) == WORKERS, options.patience)
        self._run("warm", None)
        times: dict[str, float] = {}
        self._run("timed", times)
        self.whole = times["over"] - times["busy"]

    def _add(self) -> None:
        self._added += 1
        self.cluster.add(f"w{self._added}")

    def _run(
        self, name: str, times: dict[str, float] | None, moment: float | None = None
    ) -> tuple[Path, list[str]]:
        """A run, its snapshots' prefix and what it said. `moment`: seconds behind its start at a worker."""
        solver = write_solver(self.folder, name, self.options.iterations)
        lines: list[str] = []
        training = RemoteTraining(self.engine, Wanted(ship(str(solver)), [], {"cpu": 1}), lines.append)
        codes: list[int | JitdnnError] = []

        def follow() -> None:
            try:
                codes.append(training.run())
            except JitdnnError as error:
                codes.append(error)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        while thread.is_alive() and not (busy := self.cluster.busy()):
            time.sleep(0.01)
        times = {} if times is None else times
        times["busy"] = time.perf_counter()
        if moment is not None:
            thread.join(moment)
            if thread.is_alive() and busy:
                [(worker, process)] = busy.items()
                self.cluster.kill(worker)
                times["killed"] = time.perf_counter()
                self._add()
        thread.join(self.options.patience)
        times["over"] = time.perf_counter()
        if not codes:
            training.interrupt(9, is_stop=True)
            raise Fault(f"the run hangs: {lines[-10:]}")
        if codes[0] != 0:
            raise Fault(f"it ends with {codes[0]}: {lines[-10:]}")
        if "killed" in times:
            wait_until(lambda: not is_running(process), 60)  # which ends with its worker
        return solver.with_suffix(""), lines

    def one(self, number: int, chosen: random.Random) -> Row:
        wait_until(lambda: len(self.engine.workers()) >= 2, self.options.patience)
        times: dict[str, float] = {}
        moment = chosen.uniform(0, self.whole)
        prefix, lines = self._run(f"run{number}", times, moment)
        row: Row = {
            "moment": round(moment, 2),
            "killed": "killed" in times,
            "starts": sum("Solving" in line for line in lines),
            "again_from": next((line.split()[-1] for line in lines if "started again" in line), None),
        }
        if "killed" in times:
            row["seconds_to_end"] = round(times["over"] - times["killed"], 2)
        check_said(lines)
        if off := apart(snapshot.path_of(str(prefix), self.options.iterations), self.expected):
            raise Fault(f"weights are {off} apart: {row}")
        for file in self.folder.glob(f"run{number}*"):
            file.unlink()
        return row


def main() -> int:
    options = arguments(__doc__, 1500).parse_args()
    os.environ |= {"JITDNN_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="jitdnn-dask-kills-") as made:
        folder = Path(made)
        logs = folder / "cluster"
        logs.mkdir()
        cluster = Cluster(logs)
        try:
            kills = Kills(options, folder, cluster)
            try:
                return repeat(options, kills.one)
            finally:
                kills.engine.close()
        finally:
            cluster.close()


if __name__ == "__main__":
    raise SystemExit(main())
