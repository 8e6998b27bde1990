"""What users ask of runs: pause, go on, stop, another order, away with it. Each is one transaction on the store."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.errors import InvalidArgument
from jitdnn.studio.store import SOLVER, Row, Store

#: states of a run that no worker has, and none will until somebody asks
OVER = ("done", "stopped", "paused", "failed", "interrupted")
#: the state of a run that has done what its user asked for
OBEYED = {"pause": "paused", "stop": "stopped"}
#: the state of a run whose files are being written, before it is queued: nothing can be asked of it yet
PREPARING = "preparing"
_CAN_GO_ON = ("paused", "stopped", "failed", "interrupted")


def pause(store: Store, run: int) -> str:
    """Have a run give its place back, after a snapshot if it trains; return its state. InvalidArgument if it cannot."""
    return _ask(store, run, "pause", {"queued": "paused"})


def stop(store: Store, run: int) -> str:
    """End a run early; what it has learnt is kept, and it can go on later."""
    return _ask(store, run, "stop", {"queued": "stopped", "paused": "stopped", "interrupted": "stopped"})


def resume(store: Store, run: int) -> str:
    """Put a run into the queue again; it goes on from its newest snapshot. Takes back a pause not yet obeyed."""
    with store.transaction():
        row = _row(store, run)
        if row["state"] == "running" and row["intent"]:
            store.update("run", run, intent="")
        elif row["state"] in _CAN_GO_ON:
            if row["state"] == "failed" and not (store.folder(run) / SOLVER).is_file():
                raise InvalidArgument(f"the files of run {run} were never written whole: begin a copy of it")
            store.update("run", run, state="queued", intent="", message="", deaths=0, died_at=None)
            store.mark(run, row["iteration"], "queued to go on")
        elif row["state"] not in ("running", "queued"):
            raise InvalidArgument(
                f"run {run} is {row['state']}: one that is {', '.join(_CAN_GO_ON)} can go on"
            )
        return str(_row(store, run)["state"])


def end_preparing(store: Store) -> None:
    """Say of runs whose files were being written when an earlier server ended that nothing comes of them any more.

    Trials of sweeps are left: their sweep makes them anew.
    """
    for row in store.rows("SELECT id FROM run WHERE state = ? AND trial = '{}'", PREPARING):
        message = "the studio ended while the files of this run were being written: begin a copy of it"
        store.update("run", row["id"], state="failed", message=message)


def _ask(store: Store, run: int, intent: str, at_once: dict[str, str]) -> str:
    with store.transaction():
        row = _row(store, run)
        if row["state"] == "running":
            store.update("run", run, intent=intent)
        elif row["state"] in at_once:
            state = at_once[row["state"]]
            store.update("run", run, state=state, intent="")
            store.mark(run, row["iteration"], state)
        elif row["state"] != OBEYED[intent]:
            raise InvalidArgument(f"run {run} is {row['state']}: there is nothing to {intent}")
        return str(_row(store, run)["state"])


def reorder(store: Store, runs: Sequence[int]) -> None:
    """Have queued runs start in this order; queued ones that are not named come after them."""
    with store.transaction():
        queued = {row["id"] for row in store.rows("SELECT id FROM run WHERE state = 'queued'")}
        for position, run in enumerate(run for run in runs if run in queued):
            store.update("run", run, position=position + 1)
        for run in queued - set(runs):
            store.update("run", run, position=0)


def set_priority(store: Store, run: int, priority: int) -> None:
    """Runs of a higher priority (-100 to 100) start before all others, whatever their order."""
    if not -100 <= priority <= 100:
        raise InvalidArgument(f"priority is {priority}: it goes from -100 to 100")
    with store.transaction():
        _row(store, run)
        store.update("run", run, priority=priority)


def queue(store: Store) -> list[Row]:
    """The queued runs, the next one first."""
    return store.rows(
        "SELECT * FROM run WHERE state = 'queued' AND kind = 'train' "
        "ORDER BY priority DESC, position = 0, position, id"
    )


def _row(store: Store, run: int) -> Row:
    row = store.one("run", run)
    if row is None:
        raise InvalidArgument(f"there is no run {run}")
    return row
