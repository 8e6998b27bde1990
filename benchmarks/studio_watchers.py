"""Many who watch one run: `benchmarks/studio.py watchers` comes here."""

# ruff: noqa: T201

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from statistics import median
from typing import Any

from jitdnn.studio.store import Store
from studio_browser import Server, chromium, running
from studio_runs import make_run

#: what a page notes: each number of iterations that it shows, and when
_OBSERVE = """() => {
  window.told = [];
  const status = document.querySelector("#status");
  let last = "";
  new MutationObserver(() => {
    const now = status.querySelector(".stats dd").firstChild.textContent.replace(/\\D/g, "");
    if (now !== last) window.told.push([+now, Date.now()]);
    last = now;
  }).observe(status, { subtree: true, childList: true, characterData: true });
}"""


def watchers(home: Path, count: int, seconds: float) -> None:
    """Lag from commit to event at so many clients, and to the number on a page, with 4 commits a second; CPU and memory
    of the server."""
    with Store(home) as store, running(home) as server:
        run = make_run(store, 1_000_000, state="paused")
        asyncio.run(_watch(store, run, server, count, seconds))
    print(f"this client took {resource.getrusage(resource.RUSAGE_SELF).ru_utime:.1f} s of CPU itself")


async def _watch(store: Store, run: int, server: Server, count: int, seconds: float) -> None:
    assert server.process is not None
    pid = server.process.pid
    committed: dict[int, tuple[float, float]] = {}
    lags: list[float] = []
    seen = [0] * count

    def point(number: int, at: int) -> None:
        lags.append(time.monotonic() - committed[at][0])
        seen[number] += 1

    tasks = [asyncio.create_task(_client(server, run, number, point)) for number in range(count)]
    async with _page(server, run) as page:
        await asyncio.sleep(3)
        idle = _cpu(pid)
        await asyncio.sleep(10)
        print(f"{count} idle streams: {(_cpu(pid) - idle) * 10:.1f} % of a core", flush=True)
        stop = threading.Event()

        def write() -> None:
            at = 0
            while not stop.wait(0.25):
                at += 1
                committed[at] = time.monotonic(), time.time()
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
        told = await page.evaluate("window.told") if page else []
    for task in tasks:
        task.cancel()
    print(f"{count} streams, 4 commits a second for {seconds:.0f} s: lag {_spread(lags)}; "
          f"server {100 * share:.1f} % of a core")  # fmt: skip
    print(f"each client has all {len(committed)} points: {set(seen) == {len(committed)}}")
    print(f"memory of the server, MiB: {' '.join(f'{each / 2**20:.0f}' for each in memory)}")
    on_page = [shown / 1e3 - committed[at][1] for at, shown in told if at in committed]
    if on_page:
        print(f"on a page in a browser, {len(on_page)} numbers: {_spread(on_page)}")
    if set(seen) != {len(committed)} or share > 0.15 or (on_page and median(on_page) > 0.5):
        sys.exit("FAILED: all points, under 15 % of a core and half a second are promised")


async def _client(server: Server, run: int, number: int, point: Callable[[int, int], None]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 24)
    host, token = f"127.0.0.1:{server.port}", server.token
    asked = f"GET /api/runs/{run}/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(asked.encode())
    is_points = False
    while line := await reader.readline():
        if line.startswith(b"event: "):
            is_points = line == b"event: points\n"
        elif is_points and line.startswith(b"data: "):
            for at in json.loads(line[6:])["loss"][0]:
                point(number, at)


@contextlib.asynccontextmanager
async def _page(server: Server, run: int) -> AsyncIterator[Any]:
    """The page of the run in a browser, observed; None where there is no browser."""
    if chromium() is None:
        print("there is no Chromium, so no page is measured: apt-get install chromium")
        yield None
        return
    from playwright import async_api as playwright

    async with playwright.async_playwright() as play:
        browser = await play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(f"{server.base}/?token={server.token}")
        await page.goto(f"{server.base}/runs/{run}")
        await page.evaluate(_OBSERVE)
        yield page
        await browser.close()


def _spread(lags: list[float]) -> str:
    lags = sorted(lags)
    return (
        f"median {1e3 * median(lags):.0f} ms, 99 % {1e3 * lags[int(0.99 * len(lags))]:.0f} ms, "
        f"worst {1e3 * lags[-1]:.0f} ms"
    )


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
