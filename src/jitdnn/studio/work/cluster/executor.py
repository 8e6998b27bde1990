"""Dask as the engine of the queue: its workers are places, each start of a run is one of its tasks.

The setting `cluster` has `host`, the name or address under which other machines reach this one, and perhaps the ports
`scheduler_port` (8786) and `gateway_port` (8787). On such a machine, with copies of `ca.pem` and `worker.pem` of the
home's folder `tls`:

    dask worker tls://HOST:8786 --tls-ca-file ca.pem --tls-cert worker.pem --tls-key worker.pem \\
        --nthreads 1 --resources "cpu=1"

The names of resources are devices (cpu, cuda:0), their numbers the trainings that each takes at a time; `--nthreads` is
their sum.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence

from jitdnn.cluster.engine import Engine
from jitdnn.cluster.places import Start, resources_of
from jitdnn.errors import DeviceError, InvalidArgument, needed
from jitdnn.studio.store import Store
from jitdnn.studio.work.cluster.certificates import make_certificates, server_context
from jitdnn.studio.work.cluster.task import run_task
from jitdnn.studio.work.cluster.tokens import token_for
from jitdnn.studio.work.executor import Job, Place
from jitdnn.studio.work.joint_places import with_joint_places

_SECONDS = 10.0
_FRESH = 60.0  # seconds without a beat after which a worker is taken for dead
_QUIET = 15.0  # the same where Dask's worker is gone, too: its training may go on, and beats every 10 s


class ClusterExecutor:
    """A scheduler of Dask and the gateway, both in threads of this process, both with TLS.

    Raises NotSupported without Dask, DeviceError where a port cannot be had.
    """

    name = "cluster"

    def __init__(self, store: Store, host: str, scheduler_port: int = 8786, gateway_port: int = 8787) -> None:
        self._store, self._host, self._ports = store, host, (scheduler_port, gateway_port)
        self._folder = store.home / "tls"
        self._beats: dict[tuple[int, int], tuple[object, float]] = {}
        with needed('trainings elsewhere need Dask: pip install "jitdnn[cluster]"'):
            import distributed
        self._dask = distributed
        make_certificates(self._folder, host)
        self._start_gateway()
        self._start_scheduler()

    @classmethod
    def of_setting(cls, store: Store) -> ClusterExecutor | None:
        """The executor that the settings ask for, None if they ask for none."""
        setting = store.setting("cluster")
        if not setting:
            return None
        wanted = {"host", "scheduler_port", "gateway_port"}
        if (
            not isinstance(setting, dict)
            or not setting.keys() <= wanted
            or not isinstance(setting.get("host"), str)
        ):
            raise InvalidArgument(f"the setting cluster is {setting!r}: it has at least a host")
        return cls(store, **setting)

    @property
    def scheduler_address(self) -> str:
        """tls://HOST:PORT, for workers."""
        return str(self._cluster.scheduler_address)

    @property
    def address(self) -> str:
        """https://HOST:PORT of the gateway."""
        return f"https://{self._host}:{self._ports[1]}"

    def _start_gateway(self) -> None:
        import uvicorn

        from jitdnn.studio.work.cluster.gateway import Gateway

        host = "127.0.0.1" if self._host == "127.0.0.1" else "0.0.0.0"
        try:
            listener = socket.create_server((host, self._ports[1]))
        except OSError as error:
            text = f"port {self._ports[1]} for workers elsewhere cannot be listened at: {error.strerror}"
            raise DeviceError(text) from error
        config = uvicorn.Config(
            Gateway(self._store).app, log_level="warning", access_log=False, server_header=False, ws="none",
            ssl_certfile=str(self._folder / "server.pem"),
        )  # fmt: skip
        config.load()
        config.ssl = server_context(self._folder)  # with the authority that clients must be of
        self._gateway = uvicorn.Server(config)
        self._ports = (self._ports[0], listener.getsockname()[1])
        self._thread = threading.Thread(target=self._gateway.run, args=([listener],), daemon=True)
        self._thread.start()

    def _start_scheduler(self) -> None:
        folder = self._folder
        server, worker = str(folder / "server.pem"), str(folder / "worker.pem")
        security = self._dask.Security(
            require_encryption=True, tls_ca_file=str(folder / "ca.pem"),
            tls_scheduler_cert=server, tls_scheduler_key=server, tls_client_cert=server, tls_client_key=server,
            tls_worker_cert=worker, tls_worker_key=worker,
        )  # fmt: skip
        try:
            self._cluster = self._dask.LocalCluster(
                n_workers=0, protocol="tls://", security=security, host=self._host, scheduler_port=self._ports[0],
                dashboard_address=None, silence_logs=False,
            )  # fmt: skip
            client = self._dask.Client(self._cluster, security=security, timeout=_SECONDS)
        except (OSError, RuntimeError) as error:
            self._gateway.should_exit = True
            raise DeviceError(
                f"Dask's scheduler cannot be started at port {self._ports[0]}: {error}"
            ) from error
        self._engine = Engine(client, outlives=True)

    def places(self) -> Sequence[Place]:
        """A place for each device that a worker has as a resource, and for those that the setting `together` joins."""
        return with_joint_places(self._store, self._engine.places())

    def start(self, job: Job) -> None:
        engine, resources = self._engine, resources_of(job.place.device)
        workers = engine.having(resources, job.place.host)
        if not workers:
            raise DeviceError(f"{job.place.name} cannot be given a training: its worker is gone")
        token = token_for(self._store.home, job.run, job.lease)
        engine.start(_start(job), workers, resources, run_task, self.address, job.run, job.lease, token)

    def is_alive(self, job: Job) -> bool:
        """By the task where this process started it, and by beats, which outlive schedulers; no clock is compared."""
        if self._engine.has_ended(_start(job)):
            return False
        key = (job.run, job.lease)
        row = self._store.one("run", job.run)
        beat, now = None if row is None else row["beat"], time.monotonic()
        last, seen = self._beats.get(key, (None, 0.0))
        if beat != last or key not in self._beats:
            self._beats[key] = (beat, now)
            return True
        if now - seen < _QUIET:
            return True
        return now - seen < _FRESH and bool(self._engine.having({}, job.place.host))

    def ending(self, job: Job) -> str:
        """Why it counts as ended. A task that still waits or runs somewhere is cancelled: another start follows."""
        self._beats.pop((job.run, job.lease), None)
        engine, start = self._engine, _start(job)
        failure, has_ended, knows = engine.failure(start), engine.has_ended(start), engine.knows(start)
        engine.forget(start)
        if failure:
            return f"on {job.place.name}: {failure[:1000]}"
        if knows and has_ended:
            return f"the worker on {job.place.name} is gone"
        return f"no sign of life from {job.place.name}"

    def end(self, job: Job) -> None:
        """The lease is over: the worker reads so at its next report and ends."""
        self._store.db.execute(
            "UPDATE run SET lease = lease + 1, state = 'interrupted', message = 'ended by its user' "
            "WHERE id = ? AND lease = ? AND state = 'running'",
            (job.run, job.lease),
        )

    def close(self) -> None:
        """Trainings elsewhere go on, and find the next server at the same address."""
        self._gateway.should_exit = True
        self._thread.join(_SECONDS)
        self._engine.close()
        with contextlib.suppress(Exception):
            self._cluster.close()


def _start(job: Job) -> Start:
    return Start(str(job.run), job.lease)
