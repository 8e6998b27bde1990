"""Server-sent events of a run: points in the order of their writing, and its status as HTML.

One task asks the store a few times a second whether anything was written; watchers wait for it and ask nothing. What
one watcher is told, the others are told too: it is read and rendered once for each version of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

from jitdnn.studio.store import Store

#: seconds between two looks at the store, and between two signs of life on a quiet stream
PERIOD: Final = 0.1
QUIET: Final = 15.0
#: points that are told one by one; a page that missed more reads its curves again
MOST_POINTS: Final = 5000


class Watching:
    """The version of a store for all who wait for its next one. Used by one event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.watchers = 0
        self._version: tuple[int, int] | None = None
        self._told: dict[Any, Any] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """While somebody is inside, the store is looked at."""
        self.watchers += 1
        if self._task is None or self._task.done():
            self._look()
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self.watchers -= 1
            if not self.watchers and self._task:
                self._task.cancel()
                self._task = None

    def told(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once for each version of the store."""
        if key not in self._told:
            self._told[key] = make()
        return self._told[key]

    @property
    def next(self) -> asyncio.Event:
        """What the version after this one will set: taken before anything is read, so that none goes unnoticed."""
        return self._changed

    async def changed(self, version: asyncio.Event, seconds: float) -> bool:
        """Wait for the version after the one at which `next` was taken; return whether it came in that time."""
        try:
            await asyncio.wait_for(version.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            with contextlib.suppress(
                sqlite3.Error
            ):  # a full disk, for one: pages go on when there is room again
                self._look()

    def _look(self) -> None:
        version = self.store.version()
        if version != self._version:
            self._version = version
            self._told.clear()
            before, self._changed = self._changed, asyncio.Event()
            before.set()


async def events(
    watching: Watching, run: int, after: int, parts: dict[str, Callable[[], str | None]]
) -> AsyncIterator[str]:
    """The stream of one page: `points` (JSON, with the new place in the order as id), `reload` in their place where
    there are too many, and an event with HTML for each of `parts` whenever it differs; None ends the stream.
    """
    seen: dict[str, str] = {}
    async with watching.watching():
        yield "retry: 1000\n\n"
        while True:
            version = watching.next
            after, text = watching.told((run, after), partial(_points, watching.store, run, after))
            if text:
                yield text
            for name, make in parts.items():
                html = watching.told((run, name), make)
                if html is None:
                    return
                if html != seen.get(name):
                    seen[name] = html
                    yield event(name, html)
            while not await watching.changed(version, QUIET):
                yield ": still here\n\n"


def event(name: str, data: str) -> str:
    """One event; a line break in `data`, also one of other systems, is a newline."""
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"


def _points(store: Store, run: int, after: int) -> tuple[int, str]:
    found = store.since(run, after, MOST_POINTS + 1)
    count = sum(len(xs) for xs, _ in found.points.values())
    if count > MOST_POINTS:
        newest = last_seq(store, run)
        return newest, f"id: {newest}\n{event('reload', str(newest))}"
    if not count:
        return after, ""
    return found.seq, f"id: {found.seq}\n{event('points', json.dumps(found.points))}"


def last_seq(store: Store, run: int) -> int:
    """The place of the newest point of a run in the order of writing."""
    found = store.db.execute("SELECT max(seq) FROM point WHERE run = ?", (run,)).fetchone()[0]
    return int(found or 0)
