"""Looks after sweeps: adds trials while there are places, ends those without hope, and knows when all is done.

Its state is in the store alone: a new server goes on where the last one was.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from jitdnn import log
from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.studio import nets
from jitdnn.studio.nets.weights import weights_file
from jitdnn.studio.store import Row, Store, original_text
from jitdnn.studio.sweeps import suggest
from jitdnn.studio.sweeps.plan import Plan, options_of
from jitdnn.studio.sweeps.space import filled
from jitdnn.studio.sweeps.suggest import Trial
from jitdnn.studio.work import control
from jitdnn.studio.work.inspector import Inspector, InspectorDied

PERIOD = 1.0
_FAILURES = 3  # of the first trials, after which nobody tries any more
_STATES = {"queued": "running", "running": "running", "paused": "running", "done": "done", "stopped": "done"}


class _Over(Exception):
    """The service ended while the files of a trial were being written: the next one makes it anew."""


class Sweeps:
    """The service of a store; `wake` is called where a trial was queued.

    While it serves, nets are built and weights are read by `inspector`, with its limits (None: by this process).
    """

    def __init__(
        self, store: Store, wake: Callable[[], object] = lambda: None, inspector: Inspector | None = None
    ) -> None:
        self._store, self._wake, self._inspector = store, wake, inspector
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False
        self._ended: dict[tuple[int, int, str], Trial] = {}  # by start of a run: what will not change
        self._has_cleared = False

    async def serve(self) -> None:
        """Serve until cancelled."""
        told = ""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    await asyncio.to_thread(self.step)
                    told = ""
                except Exception as error:  # a full disk, for one: the next look may do better
                    text = f"{type(error).__name__}: {error}"
                    if text != told:
                        log.tell(f"sweeps could not be looked after, and will be again: {text}")
                    told = text
                await asyncio.sleep(PERIOD)
        finally:
            self._is_over = True

    def step(self) -> None:
        """Look once at every sweep under way."""
        if not self._has_cleared:
            self._clear()
            self._has_cleared = True
        sql = "SELECT * FROM run WHERE kind = 'sweep' AND state IN ('queued', 'running') ORDER BY id"
        for row in self._store.rows(sql):
            try:
                self._look_after(row)
            except (sqlite3.Error, _Over):
                raise
            except Exception as error:
                self._end(row, "failed", _text(error))

    def _clear(self) -> None:
        """Remove trials whose files were being written when an earlier server was killed."""
        for row in self._store.rows("SELECT id, trial FROM run WHERE state = ?", control.PREPARING):
            if row["trial"]:
                shutil.rmtree(self._store.folder(row["id"]), ignore_errors=True)
                self._store.forget_run(row["id"])

    def _look_after(self, sweep: Row) -> None:
        store, plan = self._store, Plan.of(sweep["options"]["sweep"])
        children = children_of(store, sweep)
        active = [row for row in children if row["state"] in ("queued", "running")]
        if sweep["intent"]:
            for row in active:
                with suppress(InvalidArgument):  # it may have ended, or be gone, since it was read
                    (control.pause if sweep["intent"] == "pause" else control.stop)(store, row["id"])
            self._end(sweep, control.OBEYED[sweep["intent"]], "")
            return
        if sweep["state"] == "queued":
            store.update("run", sweep["id"], state="running", message="")
            for row in children:
                if row["state"] == "paused":
                    with suppress(InvalidArgument):
                        control.resume(store, row["id"])
            children = children_of(store, sweep)
            active = [row for row in children if row["state"] in ("queued", "running")]
        known = [self._trial(plan, row) for row in children]
        self._prune(plan, children, known)
        wanted = plan.parallel or self._places()
        while len(active) < wanted and len(children) < plan.count:
            if len(known) >= _FAILURES and all(trial.state == "failed" for trial in known):
                self._end(sweep, "failed", f"the first {len(known)} trials failed: {children[-1]['message']}")
                return
            row = self._add(sweep, plan, suggest.suggest(plan, known), len(children) + 1)
            children.append(row)
            known.append(self._trial(plan, row))
            if row["state"] == "queued":
                active.append(row)
        self._tell(sweep, plan, children, known)

    def _trial(self, plan: Plan, row: Row) -> Trial:
        key = (row["id"], row["lease"], row["state"])
        if key in self._ended:
            return self._ended[key]
        found = trial_of(self._store, plan, row)
        if row["state"] not in ("queued", "running", "paused"):
            self._ended[key] = found
        return found

    def _prune(self, plan: Plan, children: list[Row], known: list[Trial]) -> None:
        for index, row in enumerate(children):
            if row["state"] != "running" or row["intent"]:
                continue
            if suggest.should_stop(plan, known, index):
                with suppress(InvalidArgument), self._store.transaction():
                    self._store.update("run", row["id"], trial=row["trial"] | {"pruned": True})
                    control.stop(self._store, row["id"])
                    self._store.mark(
                        row["id"], row["iteration"], "ended: worse than the other trials at this test"
                    )

    def _places(self) -> int:
        found = self._store.rows("SELECT sum(slots) AS slots FROM place WHERE state = 'free'")
        return max(1, int(found[0]["slots"] or 1))

    def _add(self, sweep: Row, plan: Plan, values: dict[str, Any], number: int) -> Row:
        """Write the files of a trial and queue it; one that cannot be is there as failed, with the reason."""
        store = self._store
        shared = {name: sweep[name] for name in ("dataset", "net_name", "wants", "priority", "author")}
        run = store.insert(
            "run",
            name=f"{sweep['name']} #{number}",
            parent=sweep["id"],
            state=control.PREPARING,
            trial={"number": number, "values": values},
            **shared,
        )
        try:
            options = options_of(plan, sweep["options"], values)
            store.update("run", run, options=options)
            dataset = store.one("dataset", sweep["dataset"])
            text = filled(original_text(store.folder(sweep["id"])), values)
            files = options | {"weights": weights_file(store.home, str(options.get("weights") or ""))}
            last = self._write(store.folder(run), text, files, dataset or {}, store.home)
            store.update("run", run, max_iter=last, state="queued", message="")
        except _Over:
            raise
        except Exception as error:  # one that stayed half made would be followed by another at each look
            store.update("run", run, state="failed", message=_text(error))
        self._wake()
        row = store.one("run", run)
        assert row is not None
        return row

    def _write(self, *arguments: Any) -> int:
        """`nets.write`, in a process of the inspector while this serves."""
        if self._inspector is None or self._loop is None:
            return nets.write(*arguments)
        asked = self._inspector.inspect(nets.write, *arguments)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        except (CancelledError, InspectorDied) as error:
            if self._is_over:
                raise _Over from error
            raise

    def _tell(self, sweep: Row, plan: Plan, children: list[Row], known: list[Trial]) -> None:
        """What the parent's row says: how many trials are over, and the best of them."""
        best = best_of(plan, known)
        over = sum(trial.state != "running" for trial in known)
        values: Row = {"iteration": over}
        if best is not None:
            values |= {"best": known[best].best(plan.is_greater_better), "best_at": children[best]["id"]}
            values["best_of"] = plan.metric
        if any(sweep[name] != value for name, value in values.items()):
            self._store.update("run", sweep["id"], **values)
        if over == len(known) == plan.count:
            self._end(sweep, "done", "")

    def _end(self, sweep: Row, state: str, message: str) -> None:
        self._store.update("run", sweep["id"], state=state, intent="", message=message)
        self._store.mark(sweep["id"], sweep["iteration"], message or state)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, JitdnnError | OSError) else f"{type(error).__name__}: {error}"


def best_of(plan: Plan, known: list[Trial]) -> int | None:
    """The index of the best trial, None while none has a test."""
    tested = [(trial.best(plan.is_greater_better), index) for index, trial in enumerate(known) if trial.tests]
    if not tested:
        return None
    sign = -1 if plan.is_greater_better else 1
    return min(tested, key=lambda pair: (sign * (pair[0] or 0.0), pair[1]))[1]


def children_of(store: Store, sweep: Row) -> list[Row]:
    """The trials of a sweep in order, but one whose files are being written; a copy made by hand is no trial."""
    found = store.rows(
        "SELECT * FROM run WHERE parent = ? AND state != ? ORDER BY id", sweep["id"], control.PREPARING
    )
    return [row for row in found if row["trial"]]


def trial_of(store: Store, plan: Plan, row: Row) -> Trial:
    """What is known of a trial: the tests of the metric from the first after the start on."""
    _, values = store.series(row["id"], plan.metric, low=1, most=100_000)
    tests = tuple(value for value in values if value is not None and math.isfinite(value))
    state = _STATES.get(row["state"], "failed")
    if row["trial"].get("pruned") and state == "done":
        state = "pruned"
    return Trial(row["trial"]["values"], tests, state)


def trials(store: Store, sweep: Row) -> list[Row]:
    """The trials of a sweep for a table: id, number, values, state, and the best of the metric (None: no test yet)."""
    plan = Plan.of(sweep["options"]["sweep"])
    return [
        {
            "id": row["id"],
            "number": row["trial"]["number"],
            "values": row["trial"]["values"],
            "state": "pruned" if row["trial"].get("pruned") else row["state"],
            "message": row["message"],
            "best": trial_of(store, plan, row).best(plan.is_greater_better),
        }
        for row in children_of(store, sweep)
    ]


def importances(store: Store, sweep: Row) -> dict[str, float]:
    """How much each option of a sweep matters, as `suggest.importances` says."""
    plan = Plan.of(sweep["options"]["sweep"])
    return suggest.importances(plan, [trial_of(store, plan, row) for row in children_of(store, sweep)])
