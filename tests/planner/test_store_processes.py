"""The tuning store that several processes write at once, that are killed midway or find it damaged."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disks import environment
from jitdnn.planner.store import Measurement, Store

PROCESSES = 8
ROW = Measurement("conv_fwd n1", "", "machine", "0.1.0", "direct", 1, 0.5, 64, 1000.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "deep" / "tuning.sqlite")


# Records rows one by one and says which are in; reads between.
WORKER = """
import sys
from pathlib import Path
from jitdnn.planner.store import Store
store, seed, steps = Store(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for step in range(steps):
    store.record(f"problem {step}", "", seed, [("direct", 1, 0.5, step), ("winograd", 1, 0.25, step)])
    print(step, flush=True)
    found = store.look_up(f"problem {step}", "", seed)
    assert len(found) == 2 and found["direct", 1].workspace == step
assert not store._memory, "everything went to the disk"
print("done", flush=True)
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, steps: int, level: str = "warning") -> list[subprocess.Popen[str]]:
        for seed in range(PROCESSES):
            command = [sys.executable, "-c", WORKER, str(path), str(seed), str(steps)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            started.append(subprocess.Popen(command, text=True, env=environment(JITDNN_LOG=level), **pipes))
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_processes_at_once(store: Store, workers: Any) -> None:
    for process in workers(store.path, 25):
        output, errors = process.communicate(timeout=120)
        assert errors == ""
        assert output.split()[-1] == "done"
    rows = store.rows()
    assert len(rows) == PROCESSES * 25 * 2
    assert {row.device for row in rows} == {str(seed) for seed in range(PROCESSES)}


def test_processes_killed_midway(store: Store, workers: Any) -> None:
    running = workers(store.path, 10**6)
    for process in running:
        assert process.stdout.readline() == "0\n"
    last = []
    for process in running:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        last.append(max([0, *map(int, process.stdout.read().split())]))
        assert process.stderr.read() == ""
    for seed, step in enumerate(last):
        for number in range(step + 1):
            found = store.look_up(f"problem {number}", "", str(seed))
            assert len(found) == 2, "what was said to be in is in, and whole"
    connection = sqlite3.connect(str(store.path))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_processes_that_all_find_it_damaged(store: Store, workers: Any) -> None:
    assert store.path is not None
    store.path.parent.mkdir()
    store.path.write_bytes(b"this is no database" * 1000)
    for process in workers(store.path, 10):
        output, errors = process.communicate(timeout=120)
        assert "Traceback" not in errors
        assert output.split()[-1] == "done"
    assert any(path.read_bytes().startswith(b"this is no") for path in store.path.parent.glob("*.damaged-*"))
    store.add([ROW])
    assert ROW in store.rows()
    connection = sqlite3.connect(store.path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
