"""A scheduler of Dask and its workers on this machine, as processes that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from other_processes import children
from process_groups import free_port


class Cluster:
    """`workers` by their names; `--no-nanny`, so that a killed one stays away."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder, self.more = folder, more
        self.scheme = "tls" if more else "tcp"
        self.port = free_port()
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.scheduler = self._start(
            "dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard"
        )

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def add(self, name: str, resources: str = "cpu=1") -> None:
        self.workers[name] = self._start(
            "dask_worker", self.address, "--no-nanny", "--no-dashboard", "--name", name, "--nthreads", "1",
            "--host", "127.0.0.1", "--resources", resources, "--local-directory", str(self.folder / name),
        )  # fmt: skip

    def busy(self) -> dict[str, int]:
        """The trainings that run: the process of each, by the name of its worker."""
        return {name: found[0] for name, worker in self.workers.items() if (found := children(worker.pid))}

    def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def close(self) -> None:
        for process in (*self.workers.values(), self.scheduler):
            process.kill()
            process.wait()

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        # as on other machines: nothing of the folders that these here have
        environment = {**os.environ, "JITDNN_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with open(self.folder / f"{program}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{program}", *arguments, *self.more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
            )

    def logs(self) -> str:
        return "\n".join(file.read_text()[-3000:] for file in sorted(self.folder.glob("*.log")))
