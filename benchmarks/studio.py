"""What the studio promises: nothing lost by kills, little between a commit and the page, curves of any length at once.

    python benchmarks/studio.py kills [--count 100]          # SIGKILLs of worker, server, both at random moments
    python benchmarks/studio.py watchers [--count 100] [--seconds 60]
    python benchmarks/studio.py points [--count 1000000]     # and 1,000 runs
    python benchmarks/studio.py pages [--count 1000000]      # first pictures in a browser; 100,000 images
    python benchmarks/studio.py newcomer                     # from nothing to own photographs classified
    python benchmarks/studio.py soak [--minutes 60]          # memory of a server that is looked at all the time

`kills` fails unless every point is there once and all weights are those of an undisturbed run, bit by bit. `watchers`
measures from a commit in the store to the event at a client of HTTP, without a browser, and what the server takes
meanwhile. All of it runs on this machine alone, and shares its cores with whatever else does.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
from jitdnn.studio.store import Store
from studio_runs import make_run

_OWN = ("watchers", "points")
_VISITS = ("newcomer", "pages", "soak", "kills")


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=(*_OWN, *_VISITS))
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    if arguments.what in _VISITS:
        import studio_visits

        studio_visits.in_a_home(arguments.what, arguments.count, arguments.minutes, arguments.seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        if arguments.what == "watchers":
            watchers(home, arguments.count or 100, arguments.seconds)
        else:
            points(home, arguments.count or 1_000_000)


# ---- watchers


def watchers(home: Path, count: int, seconds: float) -> None:
    """Lag from commit to event at so many clients, 4 commits a second; CPU and memory of the server."""
    with Store(home) as store:
        run = make_run(store, 1_000_000, state="paused")
        command = [
            sys.executable,
            "-m",
            "jitdnn",
            "studio",
            "--home",
            str(home),
            "--port",
            "0",
            "--no-open",
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        if address is None:
            sys.exit("the server does not say where it is")
        try:
            asyncio.run(_watch(store, run, urlsplit(address[0]), server.pid, count, seconds))
        finally:
            server.terminate()
            server.wait()
    print(f"this client took {resource.getrusage(resource.RUSAGE_SELF).ru_utime:.1f} s of CPU itself")


async def _watch(store: Store, run: int, address: Any, pid: int, count: int, seconds: float) -> None:
    token = parse_qs(address.query)["token"][0]
    path = f"/api/runs/{run}/events"
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    committed: dict[int, float] = {}
    lags: list[float] = []
    seen = [0] * count

    async def client(number: int) -> None:
        reader, writer = await _connected(address)
        writer.write(request)
        is_points = False
        while line := await reader.readline():
            if line.startswith(b"event: "):
                is_points = line == b"event: points\n"
            elif is_points and line.startswith(b"data: "):
                now = time.monotonic()
                for at in json.loads(line[6:])["loss"][0]:
                    lags.append(now - committed[at])
                    seen[number] += 1

    tasks = [asyncio.create_task(client(number)) for number in range(count)]
    await asyncio.sleep(3)
    idle = _cpu(pid)
    await asyncio.sleep(10)
    print(f"{count} idle streams: {(_cpu(pid) - idle) * 10:.1f} % of a core")
    stop = threading.Event()

    def write() -> None:
        at = 0
        while not stop.wait(0.25):
            at += 1
            committed[at] = time.monotonic()
            store.add_points(run, [("loss", at, 1 / at)])
            store.update("run", run, iteration=at, loss=1 / at)

    writer = threading.Thread(target=write)
    before, memory, started = _cpu(pid), [_memory(pid)], time.monotonic()
    writer.start()
    while time.monotonic() - started < seconds:
        await asyncio.sleep(min(10.0, seconds))
        memory.append(_memory(pid))
    share = (_cpu(pid) - before) / (time.monotonic() - started)
    stop.set()
    writer.join()
    await asyncio.sleep(2)
    for task in tasks:
        task.cancel()
    lags.sort()
    print(
        f"{count} streams, 4 commits a second for {seconds:.0f} s: lag median {1e3 * median(lags):.0f} ms, 99 % "
        f"{1e3 * lags[int(0.99 * len(lags))]:.0f} ms, worst {1e3 * lags[-1]:.0f} ms; "
        f"server {100 * share:.1f} % of a core"
    )
    print(f"each client has all {len(committed)} points: {set(seen) == {len(committed)}}")
    print(f"memory of the server, MiB: {' '.join(f'{each / 2**20:.0f}' for each in memory)}")


async def _connected(address: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(100):  # the address is told a moment before it is listened at
        try:
            return await asyncio.open_connection(address.hostname, address.port, limit=1 << 24)
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)
    sys.exit("the server does not listen")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- points


def points(home: Path, count: int) -> None:
    """Times of queries on a run of so many points, and on 1,000 runs."""
    with Store(home) as store:
        run = store.insert("run", name="long", state="done", iteration=count, max_iter=count)
        values = np.exp(-np.arange(count) / (count / 3)) + 0.1 * np.random.default_rng(0).standard_normal(
            count
        )
        started = time.monotonic()
        for start in range(0, count, 1000):
            store.add_points(
                run, [("loss", k + 1, v) for k, v in enumerate(values[start : start + 1000].tolist(), start)]
            )
        took = time.monotonic() - started
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = store.path.stat().st_size
        print(
            f"{count:,} points written by 1,000 in {took:.1f} s, "
            f"{1e6 * took / count:.1f} us and {size / count:.0f} bytes each"
        )
        last = store.since(run, 0, most=count).seq
        near = count - 3000, count - 1000
        for what, call in (
            ("the whole curve", lambda: store.series(run, "loss")),
            ("the whole curve, smoothed by 0.99", lambda: store.series(run, "loss", smooth=0.99)),
            ("a fifth of it, smoothed", lambda: store.series(run, "loss", count // 2, count * 7 // 10, smooth=0.99)),
            ("2,000 iterations near its end, smoothed", lambda: store.series(run, "loss", *near, smooth=0.99)),
            ("the small picture", lambda: store.spark(run)),
            ("what is new after the last point but 100", lambda: store.since(run, last - 100)),
        ):  # fmt: skip
            print(f"  {what}: {_timed(call)}")
        for k in range(999):
            other = store.insert("run", name=f"run {k}", state="done")
            store.add_points(other, [("loss", 10 * i + 1, 1 / (i + 1)) for i in range(200)])
        newest = "SELECT * FROM run WHERE kind = 'train' ORDER BY id DESC LIMIT 200"
        print(f"  1,000 runs, the newest 200 rows: {_timed(lambda: store.rows(newest))}")
        print(f"  50 small pictures: {_timed(lambda: [store.spark(run) for run in range(900, 950)])}")


def _timed(call: Callable[[], object], times: int = 7) -> str:
    found = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - started))
    return f"median {median(found):.1f} ms, first {found[0]:.1f} ms"


if __name__ == "__main__":
    main()
