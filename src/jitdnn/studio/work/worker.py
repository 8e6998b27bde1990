"""One training, in a process of its own: python -m jitdnn.studio.work HOME RUN LEASE.

It needs the store and the folder of its run, and no server: it outlives one. What it is asked to do it reads from the
store when it writes there, so that the same works on all systems and, through another ledger, on other machines. A
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

from jitdnn.caffe import load_solver, snapshot
from jitdnn.errors import JitdnnError, NotSupported
from jitdnn.studio.store import SOLVER, Row, Store
from jitdnn.studio.work import kept_settings
from jitdnn.studio.work.ledger import LeaseLost, Ledger, Report, StoreLedger, identity, locked
from jitdnn.studio.work.reporter import PREFIX, Reporter

LOCK = "worker.lock"
#: exit codes that the queue tells apart: left on a signal; another worker has the run; nothing could be written
LEFT, LOST, UNWRITTEN = 75, 76, 74
_STATES = {"pause": "paused", "stop": "stopped"}


def work(home: Path, run: int, lease: int) -> int:
    """Train the run of a store on this machine; return the exit code."""
    with Store(home) as store:
        ledger = StoreLedger(store, run, lease)
        try:
            ledger.folder.mkdir(parents=True, exist_ok=True)
            with locked(ledger.folder / LOCK):
                return train(ledger)
        except LeaseLost as error:
            _say(str(error))
            return LOST


def train(ledger: Ledger) -> int:
    """Train what the ledger says, from the newest good snapshot of its folder; return the exit code."""
    try:
        with suppress(OSError):
            os.nice(5)
        row = ledger.run()
        device = _device(row["device"])
        written, note = kept_settings.keep(ledger.folder, device)
        ledger.tell(
            Report(
                values={"message": "", "started": time.time(), **identity()},
                marks=[(row["iteration"], note)] if note else (),
            )
        )
        for file in written:
            ledger.saved(file)
        with kept_settings.in_force(ledger.folder):
            return _train(ledger, row, device)
    except LeaseLost:
        raise
    except Exception as error:  # whatever it is, the page must say it
        return _failed(ledger, error)


def _train(ledger: Ledger, row: Row, device: str) -> int:
    reporter = Reporter(ledger, row)
    options: dict[str, Any] = {"device": device}
    if limit := row["options"].get("memory_limit"):
        options["memory_limit"] = limit
    prefix = str(ledger.folder / PREFIX)
    solver = load_solver(ledger.folder / SOLVER, listener=reporter, snapshot_prefix=prefix, **options)
    reporter.solver = solver

    def leave(number: int, frame: object) -> None:
        reporter.is_leaving = True

    signal.signal(signal.SIGTERM, leave)
    resume = snapshot.newest(prefix)
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
    _end(ledger, state, reporter.why, solver.iteration)
    return 0


def _failed(ledger: Ledger, error: Exception) -> int:
    traceback.print_exc()
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    is_of_the_disk = isinstance(cause, OSError | sqlite3.Error)
    text = str(error) if isinstance(error, JitdnnError) else f"{type(error).__name__}: {error}"
    try:
        row = ledger.run()
        if is_of_the_disk:  # which somebody can mend, and then go on
            _end(ledger, "interrupted", f"nothing could be written: {text}", row["iteration"])
        else:
            _end(ledger, "failed", text, row["iteration"])
    except LeaseLost:
        raise
    except Exception:
        traceback.print_exc()
        return UNWRITTEN
    return UNWRITTEN if is_of_the_disk else 1


def _end(ledger: Ledger, state: str, message: str, iteration: int) -> None:
    size = sum(file.stat().st_size for file in ledger.folder.iterdir() if file.is_file())
    values = {"state": state, "intent": "", "message": message, "ended": time.time(), "bytes": size}
    ledger.tell(Report(values=values, marks=[(iteration, message or state)]), is_lasting=True)


def _device(name: str | None) -> str:
    if name and "+" in name:
        raise NotSupported(f"a training on {name}: a net runs on one device, so choose one of them")
    return name or "cpu"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main(arguments: list[str]) -> int:
    """The command line of a worker."""
    home, run, lease = arguments
    if home.startswith("https://"):
        from jitdnn.studio.work.cluster.remote import work_elsewhere

        return work_elsewhere(home, int(run), int(lease))
    return work(Path(home), int(run), int(lease))
