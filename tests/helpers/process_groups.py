"""Programs in several processes that join one group, as torchrun would start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "JITDNN_THREADS": "1",
    }


def run_group(program: Path, *arguments: object, size: int = 2, seconds: float = 600) -> None:
    """Run a program in so many processes. Raises AssertionError with their output if one fails."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), *map(str, arguments)],
            env=environment(rank, size, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    codes = [process.returncode for process in processes]
    assert not any(codes), f"{codes}\n" + "\n".join(outputs)
