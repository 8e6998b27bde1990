"""Processes that join one group, as torchrun would start them, and stay: they run functions by their names.

`python process_groups.py SOCKET...` is all of them: it imports PyTorch once, and forks one process for each socket but
the first before anything there has started a thread.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

GONE = "one of the processes has ended"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Ranks:
    """So many processes on gloo. They are started by the first call, and again by the one behind a failure."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self._process: subprocess.Popen[bytes] | None = None
        self._connections: list[Connection] = []

    def __call__(self, function: str, *arguments: Any, seconds: float = 600) -> list[Any]:
        """What `function`, MODULE.NAME of tests/helpers, returns in each process for its group and these arguments.
        Raises AssertionError with what they said if one fails.
        """
        if self._process is None:
            self._start()
        for connection in self._connections:
            connection.send((function, arguments))
        results, failures = [], []
        for rank, connection in enumerate(self._connections):
            try:
                # behind the first failure the others may wait for the one that failed
                if not connection.poll(1 if failures else seconds):
                    failures.append(f"process {rank} does not answer")
                    continue
                is_good, result = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                is_good, result = False, GONE
            results.append(result)
            if not is_good:
                failures.append(f"process {rank}: {result}")
        if failures:
            said = self.close()
            raise AssertionError("\n".join([f"{function}{arguments}", *failures, said]))
        return results

    def close(self) -> str:
        """End them all, and return what they printed."""
        process, self._process = self._process, None
        if process is None:
            return ""
        for connection in self._connections:
            connection.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()  # the others end with it
            process.wait()
        self._log.seek(0)
        with self._log as log:
            return log.read().decode(errors="replace")

    def _start(self) -> None:
        pairs = [socket.socketpair() for _ in range(self.size)]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - read and closed by `close`
        files = [theirs.fileno() for _, theirs in pairs]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, files)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "JITDNN_THREADS": "1"},
            pass_fds=files,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self._connections = []
        for ours, theirs in pairs:
            theirs.close()
            self._connections.append(Connection(ours.detach()))


def main() -> None:
    connections = [Connection(int(file)) for file in sys.argv[1:]]
    size, port = len(connections), free_port()

    import torch

    import jitdnn.caffe  # noqa: F401 - before the processes part
    from jitdnn.distributed import start
    from jitdnn.parents import end_with_parent

    rank = 0
    for other in range(1, size):
        if not os.fork():
            rank = other
            break
    if rank:
        end_with_parent()
    for other, connection in enumerate(connections):
        if other != rank:
            connection.close()
    os.environ.update(environment(rank, size, port))
    torch.set_num_threads(1)
    group = start(timeout=120)
    while True:
        try:
            function, arguments = connections[rank].recv()
        except (EOFError, OSError):
            break
        module, _, name = function.rpartition(".")
        try:
            found = True, getattr(importlib.import_module(module), name)(group, *arguments)
        except BaseException:
            found = False, traceback.format_exc()
        connections[rank].send_bytes(pickle.dumps(found))
    os._exit(0)  # an interpreter with PyTorch takes a second to end


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main()
