"""Workers as processes of this machine, each in a session of its own: they outlive the server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from jitdnn.errors import DeviceError
from jitdnn.studio.file_locks import is_locked
from jitdnn.studio.store import Store
from jitdnn.studio.work.executor import Job, Place
from jitdnn.studio.work.joint_places import with_joint_places
from jitdnn.studio.work.worker import DIED, LEFT, LOCK, LOST, UNWRITTEN

# in a process of its own: looking for GPUs takes memory of them, and a broken driver may take the process down
_PROBE = """
import json, os
from dataclasses import asdict
from jitdnn import targets
told = lambda gpu: json.dumps({"architecture": gpu.arch, "facts": asdict(gpu.facts)})
found = [(f"cuda:{gpu.device_id[1]}", gpu.name, told(gpu)) for gpu in targets.get("cuda").usable()]
print(json.dumps([found, os.cpu_count()]))
"""
_ENDINGS = {
    LEFT: "the worker was asked to leave",
    LOST: "another worker had the run",
    DIED: "of its processes one died, and the others were ended",
    UNWRITTEN: "nothing could be written: the disk may be full",
}


class LocalExecutor:
    """Places are the processor, `setting cpu_slots` of them (1), and each GPU of this machine."""

    name = "local"

    def __init__(self, store: Store, environment: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._environment = dict(os.environ if environment is None else environment)
        self._processes: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
        self._devices: list[tuple[str, str, str]] | None = None

    def places(self) -> Sequence[Place]:
        """The GPUs first, as what is quicker is taken first."""
        for process in self._processes.values():
            process.poll()  # so that none stays behind as a zombie
        if self._devices is None:
            self._devices = _gpus(self._environment)
        host = socket.gethostname()
        gpus = [Place(host, device, name, told=told) for device, name, told in self._devices]
        slots = int(self._store.setting("cpu_slots", 1))
        own = [*gpus, Place(host, "cpu", "processor", slots)] if slots > 0 else gpus
        return with_joint_places(self._store, own)

    def start(self, job: Job) -> None:
        folder = self._store.folder(job.run)
        environment = dict(self._environment)
        if job.place.device == "cpu" and job.place.slots > 1:  # which share the cores
            threads = max(1, (os.cpu_count() or 1) // job.place.slots)
            environment.setdefault("JITDNN_THREADS", str(threads))
        command = [sys.executable, "-m", "jitdnn.studio.work", str(self._store.home.resolve())]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / "worker.log", "ab") as log:
                self._processes[job.run, job.lease] = subprocess.Popen(
                    [*command, str(job.run), str(job.lease)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=environment,
                    cwd=folder,
                )
        except OSError as error:
            raise DeviceError(f"no worker could be started: {error}") from error

    def is_alive(self, job: Job) -> bool:
        process = self._processes.get((job.run, job.lease))
        if process is not None:
            return process.poll() is None
        # of an earlier server: a worker holds the lock of its folder as long as it lives, whatever clocks say
        return is_locked(self._store.folder(job.run) / LOCK)

    def ending(self, job: Job) -> str:
        process = self._processes.pop((job.run, job.lease), None)
        code = None if process is None else process.poll()
        if code is None:
            return ""
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"the worker was ended by {signal.Signals(-code).name}"
        return _ENDINGS.get(code, f"the worker ended with code {code}")

    def end(self, job: Job) -> None:
        process = self._processes.get((job.run, job.lease))
        if process is not None:
            process.kill()
            process.wait()
            return
        row = self._store.one("run", job.run)
        # the lock says that it is this run's worker and no other process of that number
        if row and row["pid"] and row["lease"] == job.lease and self.is_alive(job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(row["pid"], signal.SIGKILL)

    def close(self) -> None:
        """Workers go on; a later server finds them by the locks of their folders."""
        for process in self._processes.values():
            process.returncode = process.poll() or 0  # nobody waits for it any more: no warning about that
        self._processes.clear()


def _gpus(environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Names of devices and of their models, and what `Place.told` is to be; none where they cannot be asked."""
    try:
        found = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, timeout=60, check=True, env=dict(environment)
        )
        devices: list[list[str]] = json.loads(found.stdout.splitlines()[-1])[0]
        return [(device, name, told) for device, name, told in devices]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return []
