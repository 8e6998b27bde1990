"""Dask's scheduler as a queue needs it: places, and starts that can be looked at and cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from jitdnn.cluster.places import Place, Start
from jitdnn.errors import DeviceError, InvalidArgument, needed

T = TypeVar("T")
_SECONDS = 10.0
_LOOK = 0.5  # seconds after which a worker that has not answered yet is looked for at the scheduler
#: what Dask raises where a scheduler or a worker does not answer
PASSING = (OSError, RuntimeError, TimeoutError, asyncio.CancelledError)


class Engine:
    """A scheduler of Dask, by a client of it.

    With `outlives` what was started goes on when the client leaves; otherwise it ends with it.
    """

    def __init__(self, client: Any, *, outlives: bool) -> None:
        self.client, self._outlives = client, outlives
        self._futures: dict[Start, Any] = {}

    @classmethod
    def at(cls, address: str, tls: Sequence[Path | None] = ()) -> Engine:
        """The scheduler at an address, tcp://HOST:PORT or tls://HOST:PORT; `tls`: the authority's certificate, one's
        own, and its key. Raises NotSupported without Dask, InvalidArgument, DeviceError if nothing answers.
        """
        scheme, _, rest = address.partition("://")
        if scheme not in ("tcp", "tls") or not rest:
            raise InvalidArgument(
                f"{address!r} is no address of a scheduler: tcp://HOST:PORT or tls://HOST:PORT"
            )
        files = [None if file is None else str(file) for file in tls]
        if (scheme == "tls") != bool(files and all(files)):
            raise InvalidArgument(
                f"{address}: tls:// takes --tls-ca-file, --tls-cert and --tls-key, all three, and tcp:// none of them"
            )
        for file in files:
            if file is not None and not Path(file).is_file():
                raise InvalidArgument(f"there is no file {file}")
        with needed('training elsewhere needs Dask: pip install "jitdnn[cluster]"'):
            import distributed
        security = None
        if scheme == "tls":
            authority, certificate, key = files
            security = distributed.Security(
                require_encryption=True,
                tls_ca_file=authority,
                tls_client_cert=certificate,
                tls_client_key=key,
            )
        try:
            client = distributed.Client(address, security=security, timeout=_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise DeviceError(f"no scheduler of Dask answers at {address}: {error}") from error
        return cls(client, outlives=False)

    # ---- workers

    def workers(self) -> dict[str, Mapping[str, Any]]:
        """What the scheduler says of its workers, by their addresses. Raises DeviceError."""
        try:
            found: dict[str, Mapping[str, Any]] = self.client.scheduler_info(n_workers=-1)["workers"]
        except PASSING as error:
            raise DeviceError(f"Dask's scheduler does not answer: {error}") from error
        return found

    def places(self) -> list[Place]:
        """A place for each device that a worker has as a resource: GPUs first."""
        return [
            Place(str(each["name"]), device, f"{each['host']} {device}", int(count))
            for each in self.workers().values()
            for device, count in sorted(
                (each.get("resources") or {}).items(), key=lambda pair: pair[0] == "cpu"
            )
        ]

    def having(self, resources: Mapping[str, int], host: str | None = None) -> list[str]:
        """The addresses of workers that have so much of each device, whether others use it now or not."""
        return [
            address
            for address, each in self.workers().items()
            if (host is None or str(each["name"]) == host)
            and all((each.get("resources") or {}).get(name, 0) >= count for name, count in resources.items())
        ]

    def ask(self, worker: str, function: Callable[..., T], *arguments: object) -> T:
        """What a function returns in the process of a worker. Raises DeviceError if it does not answer, or is gone."""
        answers: SimpleQueue[Mapping[str, T] | BaseException] = SimpleQueue()

        def call() -> None:
            try:
                answers.put(self.client.run(function, *arguments, workers=[worker]))
            except BaseException as error:
                answers.put(error)

        # by a thread: a scheduler tries for half a minute to reach a worker that it has given up meanwhile
        threading.Thread(target=call, name=f"asks {worker}", daemon=True).start()
        while True:
            try:
                found = answers.get(timeout=_LOOK)
                break
            except Empty:
                if worker not in self.workers():
                    raise DeviceError(f"the worker at {worker} is gone") from None
        try:
            if isinstance(found, BaseException):
                raise found
            return found[worker]
        except (*PASSING, KeyError) as error:
            raise DeviceError(f"the worker at {worker} does not answer: {error}") from error

    # ---- starts

    def start(
        self,
        start: Start,
        workers: Sequence[str],
        resources: Mapping[str, int],
        function: Callable[..., int],
        *arguments: object,
    ) -> None:
        """Have one of the workers call a function, as soon as it has the resources. Raises DeviceError."""
        try:
            future = self.client.submit(
                function, *arguments, key=f"run-{start.run}-{start.lease}", pure=False, retries=0,
                workers=list(workers), allow_other_workers=False, resources=dict(resources),
            )  # fmt: skip
            if self._outlives:
                import distributed

                distributed.fire_and_forget(future)
        except PASSING as error:
            raise DeviceError(f"Dask did not take run {start.run}: {error}") from error
        self._futures[start] = future

    def has_ended(self, start: Start) -> bool:
        """Whether a start that this engine made has ended, as far as the scheduler knows."""
        future = self._futures.get(start)
        return future is not None and future.status in ("finished", "error", "cancelled", "lost")

    def failure(self, start: Start) -> str:
        """What a start raised, "" if it raised nothing."""
        future = self._futures.get(start)
        if future is None or future.status != "error":
            return ""
        with contextlib.suppress(*PASSING):
            return str(future.exception(timeout=_SECONDS))
        return "an error that cannot be asked for any more"

    def knows(self, start: Start) -> bool:
        """Whether this engine made that start and did not forget it."""
        return start in self._futures

    def forget(self, start: Start) -> None:
        """Its lease is over: where it runs, or waits to run, it is cancelled, and its worker ends it."""
        future = self._futures.pop(start, None)
        if future is not None and future.status == "pending":
            with contextlib.suppress(*PASSING):
                future.cancel(force=True)

    def close(self) -> None:
        """Leave the scheduler."""
        with contextlib.suppress(Exception):
            self.client.close(timeout=_SECONDS)


def is_wanted(key: str) -> bool:
    """In a task: whether somebody still waits for it; also while the worker itself ends, which cancels nothing."""
    import distributed

    worker = distributed.get_worker()
    if worker.status not in (distributed.core.Status.running, distributed.core.Status.paused):
        return True
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("executing", "long-running")
