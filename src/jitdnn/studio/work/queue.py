"""The queue: which run starts next and where, what its worker does, and what became of it.

`step` looks once at everything; `serve` does so a few times a second. The state is in the store alone, so that a
server which was killed is followed by one that finds the same runs, takes up those whose workers live, and queues the
others again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any

from jitdnn import log
from jitdnn.cluster.places import deaths_in_a_row
from jitdnn.errors import JitdnnError, StoreError
from jitdnn.studio import plugins
from jitdnn.studio.store import Row, Store
from jitdnn.studio.work.control import OBEYED, end_preparing, queue
from jitdnn.studio.work.disk_space import missing_room
from jitdnn.studio.work.executor import Executor, Job, Place
from jitdnn.studio.work.joint_places import is_joint, left_of
from jitdnn.studio.work.local import LocalExecutor
from jitdnn.studio.work.run_access import LeaseLost, locked

PERIOD = 0.25
_PLACES_PERIOD = 5.0


class Queue:
    """The queue of a store, and the executors that start its runs (None: this machine)."""

    def __init__(self, store: Store, executors: Sequence[Executor] | None = None) -> None:
        self._store = store
        self._executors = {each.name: each for each in executors or executors_of(store)}
        self._looked = -1e9  # when places were looked for, by a clock that nobody sets
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- the loop

    async def serve(self) -> None:
        """Serve until cancelled. Raises StoreError where another server has this home."""
        self._wake, self._loop = asyncio.Event(), asyncio.get_running_loop()
        told = ""
        try:
            with locked(self._store.home / "server.lock", seconds=1.0):
                await asyncio.to_thread(end_preparing, self._store)
                while True:
                    try:
                        await asyncio.to_thread(self.step)
                        told = ""
                    except (
                        Exception
                    ) as error:  # a full disk, an executor's mistake: the next look may do better
                        text = f"{type(error).__name__}: {error}"
                        if text != told:
                            log.tell(f"the queue could not be looked after, and will be again: {text}")
                        told = text
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), PERIOD)
                    self._wake.clear()
        except LeaseLost as error:
            raise StoreError(f"another studio serves {self._store.home}: end that one first") from error
        finally:
            for executor in self._executors.values():
                executor.close()

    def wake(self) -> None:
        """Have it look now; from any thread."""
        if self._wake is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    def step(self) -> None:
        """Look for places, settle runs whose workers are gone, start what fits."""
        if time.monotonic() - self._looked > _PLACES_PERIOD:
            self._look_for_places()
            self._looked = time.monotonic()
        for row in self._store.rows("SELECT * FROM run WHERE state = 'running' AND kind = 'train'"):
            job, executor = self._job(row)
            if executor is None or not executor.is_alive(job):
                self._settle(row, "" if executor is None else executor.ending(job))
        self._start_what_fits()

    # ---- places

    def _look_for_places(self) -> None:
        store = self._store
        for name, executor in self._executors.items():
            known = {
                (r["host"], r["device"]): r
                for r in store.rows("SELECT * FROM place WHERE executor = ?", name)
            }
            try:
                found = executor.places()
            except JitdnnError as error:
                for row in known.values():
                    store.update("place", row["id"], state="gone", message=str(error))
                continue
            for place in found:
                row = known.pop((place.host, place.device), {})
                values: Row = {"name": place.name, "slots": place.slots, "beat": time.time(), "message": ""}
                values["settings"] = json.loads(place.told or "{}")
                if not row:
                    store.insert("place", executor=name, host=place.host, device=place.device, **values)
                else:
                    state = "off" if row["state"] == "off" else "free"
                    store.update("place", row["id"], state=state, **values)
            for row in known.values():
                if row["state"] != "gone":
                    store.update("place", row["id"], state="gone", message="it is not there any more")
        missing = [name for name in self._known_executors() if name not in self._executors]
        for name in missing:
            store.update_where("place", {"state": "gone", "message": f"no {name}"}, "executor = ?", name)

    def _known_executors(self) -> list[str]:
        return [row["executor"] for row in self._store.rows("SELECT DISTINCT executor FROM place")]

    # ---- runs

    def _job(self, row: Row) -> tuple[Job, Executor | None]:
        place = self._store.one("place", row["place"]) if row["place"] else None
        if place is None:
            return Job(row["id"], row["lease"], Place("", "", "")), None
        return Job(row["id"], row["lease"], _place(place)), self._executors.get(place["executor"])

    def _settle(self, row: Row, why: str) -> None:
        """A worker says itself how it ended. One that could not is followed by another, unless it died again and again
        without getting any further: then the run is interrupted, and somebody must look."""
        store, why = self._store, why or "the worker is gone"
        with store.transaction():
            now = store.one("run", row["id"])
            if now is None or now["state"] != "running" or now["lease"] != row["lease"]:
                return  # it did, a moment ago
            if now["intent"]:
                state, deaths = OBEYED[now["intent"]], 0
            else:
                deaths = deaths_in_a_row(now["deaths"], now["died_at"], now["iteration"])
                state = "queued" if deaths <= int(store.setting("restarts", 2)) else "interrupted"
            values = {
                "state": state,
                "intent": "",
                "deaths": deaths,
                "died_at": now["iteration"],
                "message": why,
            }
            if state == "queued":
                values["message"] = ""
                values["position"] = -1  # it was under way: before those that wait
            store.update("run", row["id"], **values)
            store.mark(row["id"], now["iteration"], f"{why}; queued to go on" if state == "queued" else why)

    def _start_what_fits(self) -> None:
        waiting = queue(self._store)
        if not waiting:
            return
        free = self._free_places()
        if not free:
            return
        for row in waiting:
            fitting = [place for place in free if _fits(row["wants"], place)]
            if not fitting:
                continue
            if lack := missing_room(self._store, row):
                if row["message"] != lack:
                    self._store.update("run", row["id"], message=lack)
                continue
            if self._start(row, fitting[0]):
                free = self._free_places()

    def _free_places(self) -> list[Row]:
        """Places with slots that no run has, GPUs first."""
        places = self._store.rows(
            "SELECT place.*, (SELECT count(*) FROM run WHERE run.place = place.id AND run.state = 'running') AS busy "
            "FROM place ORDER BY device = 'cpu', id"
        )
        return [
            place
            for place in places
            if place["state"] == "free"
            and place["executor"] in self._executors
            and left_of(place, places) > 0
        ]

    def _start(self, row: Row, place: Row) -> bool:
        store = self._store
        with store.transaction():
            lease = row["lease"] + 1
            values: dict[str, Any] = {"state": "running", "intent": "", "lease": lease, "place": place["id"]}
            values |= {"message": "", "pid": None, "position": 0, "beat": time.time()}
            if not store.update_where(
                "run", values, "id = ? AND state = 'queued' AND lease = ?", row["id"], row["lease"]
            ):
                return False
        try:
            self._executors[place["executor"]].start(Job(row["id"], lease, _place(place)))
        except JitdnnError as error:
            failed = {"state": "interrupted", "message": str(error)}
            store.update_where("run", failed, "id = ? AND lease = ?", row["id"], lease)
            store.mark(row["id"], row["iteration"], str(error))
            return False
        return True

    def end(self, run: int) -> None:
        """End the worker of a run at once, if it has one; its state is settled by the next step."""
        row = self._store.one("run", run)
        if row is not None and row["state"] == "running":
            job, executor = self._job(row)
            if executor is not None:
                executor.end(job)


def executors_of(store: Store) -> list[Executor]:
    """This machine, and what other packages bring. A plug-in that fails is left out, with a warning in the log."""
    found: list[Executor] = [LocalExecutor(store)]
    if store.setting("cluster"):
        from jitdnn.studio.work.cluster.executor import ClusterExecutor

        try:
            cluster = ClusterExecutor.of_setting(store)
        except JitdnnError as error:  # a port that another program has must not keep the studio from starting
            log.tell(f"other machines cannot be used: {error}")
        else:
            found += [cluster] if cluster else []
    for name, make in plugins.load("executors").items():
        try:
            found.append(make(store))
        except Exception as error:  # its own, whatever it is
            log.tell(f"the executor {name} is left out: {type(error).__name__}: {error}")
    return found


def _place(row: Row) -> Place:
    return Place(row["host"], row["device"], row["name"], row["slots"])


def first_place(store: Store, wants: str) -> Row | None:
    """Where a run that wants this would start, were nothing else to do; None where there is no such place."""
    places = store.rows("SELECT * FROM place WHERE state != 'gone' ORDER BY device = 'cpu', id")
    return next((place for place in places if _fits(wants, place)), None)


def _fits(wants: str, place: Row) -> bool:
    """A run wants any place (""), a device by name (cpu, cuda, cuda:1), several at once (cpu*2), or one place by its id
    (#3). A place of several devices is given to runs that name it."""
    device = place["device"]
    if wants in (device, f"#{place['id']}"):
        return True
    return not is_joint(device) and wants in ("", device.split(":")[0])
