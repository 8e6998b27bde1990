"""The code cache that several processes use at once, with damage, killed midway: exact bytes or nothing."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jitdnn
from disks import environment
from jitdnn.rtcg.cache import CodeCache

PROCESSES = 8


def key_of(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


# Gets and puts random entries, and says when one is wrong. One in four of the processes also damages entries
# behind the back of all.
WORKER = """
import hashlib, os, random, sys
from pathlib import Path
from jitdnn.rtcg.cache import CodeCache
folder, seed, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
cache = CodeCache(folder, 300_000)
for step in range(steps):
    name = str(random.randrange(60))
    key = hashlib.sha256(name.encode()).hexdigest()
    content = hashlib.sha512(name.encode()).digest() * random.Random(name).randrange(1, 400)
    found = cache.get(key)
    if found is None:
        cache.put(key, content)
    elif found != content:
        print("WRONG", name, flush=True)
    if seed % 4 == 0 and step % 5 == 0:
        try:
            victim = random.choice(sorted(folder.glob("*.bin")))
            if random.random() < 0.5:
                os.truncate(victim, random.randrange(victim.stat().st_size))
            else:
                with victim.open("r+b") as file:
                    file.seek(random.randrange(victim.stat().st_size))
                    file.write(bytes([random.randrange(256)]))
        except (OSError, IndexError, ValueError):
            pass
    if step == 20:
        print("busy", flush=True)
print("done", flush=True)
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(steps: int) -> list[subprocess.Popen[str]]:
        for seed in range(PROCESSES):
            command = [sys.executable, "-c", WORKER, str(tmp_path), str(seed), str(steps)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            started.append(subprocess.Popen(command, text=True, env=environment(JITDNN_LOG="off"), **pipes))
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def check_all_entries(folder: Path) -> int:
    """Every entry is exact or nothing; returns how many were exact."""
    with jitdnn.settings(log="off"):
        cache = CodeCache(folder, 300_000)
        exact = 0
        for number in range(60):
            name = str(number)
            content = hashlib.sha512(name.encode()).digest() * random.Random(name).randrange(1, 400)
            found = cache.get(key_of(name))
            assert found in (None, content)
            exact += found is not None
        return exact


def test_processes_at_once_with_damage(tmp_path: Path, workers: Any) -> None:
    for process in workers(400):
        output, errors = process.communicate(timeout=120)
        assert output.split() == ["busy", "done"]
        assert errors == ""
    assert check_all_entries(tmp_path) > 0
    assert list(tmp_path.glob("*.tmp")) == []
    assert CodeCache(tmp_path, 300_000).stats().bytes <= 300_000 * (1 + PROCESSES / 16)


def test_processes_killed_midway(tmp_path: Path, workers: Any) -> None:
    running = workers(10**9)
    for process in running:
        assert process.stdout.readline() == "busy\n"
    for process in running:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        assert process.stdout.read() == ""
    assert check_all_entries(tmp_path) > 0
    cache = CodeCache(tmp_path, 300_000)
    cache.put(key_of("after"), b"code")
    assert cache.get(key_of("after")) == b"code"
