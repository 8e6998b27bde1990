"""One training, in a process of its own: python -m jitdnn.studio.work HOME RUN LEASE.

It needs the store and the folder of its run, and no server: it outlives one. What it is asked to do it reads from the
store when it writes there, so that the same works on all systems and, through another access, on other machines. A
SIGTERM (the machine goes down) has it take a snapshot and leave; the queue starts it again.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from jitdnn.caffe import Solver, load_solver, snapshot
from jitdnn.caffe.events import Listener
from jitdnn.cluster.places import devices_of
from jitdnn.errors import JitdnnError, ProcessGroupError
from jitdnn.settings import current, settings
from jitdnn.studio.store import SOLVER, Row, Store
from jitdnn.studio.work import kept_settings, ranks
from jitdnn.studio.work.gpu_load import GpuLoad
from jitdnn.studio.work.reporter import PREFIX, Reporter
from jitdnn.studio.work.run_access import LeaseLost, Report, RunAccess, StoreRunAccess, identity, locked

LOCK = "worker.lock"
#: exit codes that the queue tells apart: left on a signal; another worker has the run; nothing could be written; of
#: several processes one died
LEFT, LOST, UNWRITTEN, DIED = 75, 76, 74, 77
_STATES = {"pause": "paused", "stop": "stopped"}


def work(home: Path, run: int, lease: int) -> int:
    """Train the run of a store on this machine; return the exit code."""
    with Store(home) as store:
        access = StoreRunAccess(store, run, lease)
        try:
            if ranks.is_rank():  # whose worker has the lock
                return train(access)
            access.folder.mkdir(parents=True, exist_ok=True)
            with locked(access.folder / LOCK):
                return train(access)
        except LeaseLost as error:
            _say(str(error))
            return LOST


def train(access: RunAccess) -> int:
    """Train what the access says, from the newest good snapshot of its folder; return the exit code."""
    try:
        with suppress(OSError):
            os.nice(5)
        if ranks.is_rank():
            return ranks.joined(access, _train, _follow)
        row = access.run()
        devices = devices_of(row["device"] or "cpu")
        math = row["options"].get("math") or current().math
        with settings(
            threads=max(1, current().threads // len(devices)), math=math
        ):  # processes of one host divide its cores
            written, note = kept_settings.keep(access.folder, devices[0])
        notes = [note] if note else []
        if math == "tf32" and written and not devices[0].startswith("cuda"):
            notes.append(f"products are of fp32: {devices[0]} has no matrix units for tf32")
        access.tell(
            Report(
                values={"message": "", "started": time.time(), **identity()},
                marks=[(row["iteration"], text) for text in notes],
            )
        )
        for file in written:
            access.saved(file)
        if len(devices) > 1:
            return _launch(access, len(devices))
        with kept_settings.in_force(access.folder):
            return _train(access, row, {"device": devices[0]})
    except LeaseLost:
        raise
    except Exception as error:  # whatever it is, the page must say it
        return _failed(access, error)


def _solver(access: RunAccess, row: Row, options: dict[str, Any], listener: Listener | None) -> Solver:
    if limit := row["options"].get("memory_limit"):
        options["memory_limit"] = limit
    prefix = str(access.folder / PREFIX)
    return load_solver(
        access.folder / SOLVER, listener=listener, snapshot_prefix=prefix, writes_beside=True, **options
    )


def _train(access: RunAccess, row: Row, options: dict[str, Any]) -> int:
    reporter = Reporter(access, row, GpuLoad.of(str(options.get("device") or "")))
    solver = _solver(access, row, options, reporter)
    reporter.solver = solver

    def leave(number: int, frame: object) -> None:
        reporter.is_leaving = True

    signal.signal(signal.SIGTERM, leave)
    resume = ranks.newest(solver.snapshot_prefix, options.get("group"))
    if resume is not None:
        reporter.resumed(snapshot.read(resume).meta["iteration"])
    solver.solve(resume)
    if reporter.is_leaving and not reporter.intent and not reporter.why:
        _say("left on a signal; the queue starts this run again")
        return LEFT
    reporter.save_last_as_best()
    state = _STATES.get(reporter.intent, "stopped" if reporter.why else "done")
    if state != "done" and solver.iteration >= solver.parameter.max_iter:
        state = "done"  # asked to stop at the very end
    _end(access, state, reporter.why, solver.iteration)
    return 0


def _follow(access: RunAccess, row: Row, options: dict[str, Any]) -> int:
    """Train beside process 0, which reports and obeys for all."""
    solver = _solver(access, row, options, None)
    signal.signal(signal.SIGTERM, lambda number, frame: solver.stop())
    solver.solve(ranks.newest(solver.snapshot_prefix, options["group"]))
    return 0


def _launch(access: RunAccess, processes: int) -> int:
    """Have several processes train; a run that one of them did not settle is the queue's to start again."""
    try:
        code = ranks.launch(access, processes)
    except ProcessGroupError as error:
        if access.run()["state"] != "running":  # process 0 has said why
            return 1
        _say(str(error))
        return DIED
    return LEFT if code else 0


def _failed(access: RunAccess, error: Exception) -> int:
    traceback.print_exc()
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    is_of_the_disk = isinstance(cause, OSError | sqlite3.Error)
    text = str(error) if isinstance(error, JitdnnError) else f"{type(error).__name__}: {error}"
    try:
        row = access.run()
        if is_of_the_disk:  # which somebody can mend, and then go on
            _end(access, "interrupted", f"nothing could be written: {text}", row["iteration"])
        else:
            _end(access, "failed", text, row["iteration"])
    except LeaseLost:
        raise
    except Exception:
        traceback.print_exc()
        return UNWRITTEN
    return UNWRITTEN if is_of_the_disk else 1


def _end(access: RunAccess, state: str, message: str, iteration: int) -> None:
    size = sum(file.stat().st_size for file in access.folder.iterdir() if file.is_file())
    values = {"state": state, "intent": "", "message": message, "ended": time.time(), "bytes": size}
    access.tell(Report(values=values, marks=[(iteration, message or state)]), is_lasting=True)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main(arguments: list[str]) -> int:
    """The command line of a worker."""
    home, run, lease = arguments
    if home.startswith("https://"):
        from jitdnn.studio.work.cluster.remote import work_elsewhere

        return work_elsewhere(home, int(run), int(lease))
    return work(Path(home), int(run), int(lease))
