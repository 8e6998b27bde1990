"""What starts workers: on this machine (`local`), by Dask (`cluster`), or by a package of its own.

The store is the only truth about the queue. An executor has places, starts one lease of a run at one, says whether that
worker is alive, and ends it. An entry point `jitdnn.studio.executors` names a function `make(store) -> Executor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jitdnn.cluster.places import Place

__all__ = ["Executor", "Job", "Place"]


class Job(NamedTuple):
    """One start of a run: its lease, and where."""

    run: int
    lease: int
    place: Place


class Executor(Protocol):
    """Starts workers. Methods are called by one thread at a time, and may take a second."""

    name: str

    def places(self) -> Sequence[Place]:
        """The places that there are now. Raises JitdnnError where that cannot be found out."""

    def start(self, job: Job) -> None:
        """Start the worker of a job. Raises JitdnnError where it cannot be started."""

    def is_alive(self, job: Job) -> bool:
        """Whether a worker has the job, one that an earlier server started included."""

    def ending(self, job: Job) -> str:
        """How the worker of a job ended, in words, "" if that is not known."""

    def end(self, job: Job) -> None:
        """End the worker of a job at once, whatever it does."""

    def close(self) -> None:
        """The server ends; workers go on."""
