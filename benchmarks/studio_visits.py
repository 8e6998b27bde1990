"""Measurements of a whole studio, as people use it: `benchmarks/studio.py newcomer`, `soak`, `pages` and
`kills` come here."""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from statistics import mean

import numpy as np
from studio_first_pictures import pages
from studio_gpu import gpu
from studio_kills import kills
from studio_watchers import watchers

from jitdnn.studio import nets
from jitdnn.studio.client import Client
from studio_browser import Server, running

_TEXTURES = Path(__file__).resolve().parent.parent / "examples" / "studio_textures.py"
#: a net for the textures: the gallery's for small pictures, longer than by itself
_OPTIONS = {
    "epochs": 40,
    "batch": 16,
    "rate": 0.003,
    "solver": "Adam",
    "crop": 56,
    "mirror": True,
    "patience": 0,
}


# ---- newcomer


def newcomer(home: Path, is_installed: bool) -> None:
    """From nothing to a net that reads digits, by one click, and to own photographs that are classified.

    `is_installed`: in an environment of its own, which is made first, and with an empty cache of code.
    """
    begun = time.monotonic()
    clock = _Clock(begun)
    python = _install(home.parent / "venv") if is_installed else sys.executable
    if is_installed:
        clock.tell("installed: jitdnn[studio], in an environment of its own")
    environment = {"XDG_CACHE_HOME": str(home.parent / "cache")} if is_installed else {}
    with running(home, python, environment) as server, contextlib.closing(clock):
        studio = Client(home=home)
        _get(server, "/")
        clock.tell("the first page")
        if is_installed and time.monotonic() - begun > 60:
            print("FAILED: the first page within 60 s of the install's begin")
        request = urllib.request.Request(
            server.base + "/first", b"", {"Authorization": f"Bearer {server.token}"}, method="POST"
        )
        urllib.request.urlopen(request, timeout=60).close()
        while (studio.run(1)["best"] or 0) < 0.95:
            if studio.run(1)["state"] not in ("queued", "running"):
                sys.exit(f"FAILED: {studio.run(1)}")
            time.sleep(0.1)
        clock.tell(f"one click, and {100 * studio.run(1)['best']:.1f} % of the digits are right")
        with contextlib.suppress(Exception):
            studio.stop(1)
        accuracy = photographs(studio, home.parent)
        clock.tell(
            f"own photographs sent, trained on and classified: {100 * accuracy:.1f} % of the test crops are right"
        )
        if accuracy < 0.9 or time.monotonic() - begun > 300:
            sys.exit("FAILED: 90 % in five minutes is promised")


def _install(folder: Path) -> str:
    """Make an environment with this repository's jitdnn[studio] and all that it needs; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin" / "python")
    what = f"{Path(__file__).resolve().parent.parent}[studio]"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-input", what], check=True)
    return python


def photographs(studio: Client, folder: Path, epochs: int = 40) -> float:
    """The share of test crops of three photographs, none of which overlaps one that was trained on, that a net says
    right."""
    path = folder / "textures.zip"
    runpy.run_path(str(_TEXTURES))["write"](path)
    data = studio.create_dataset(path, "Textures", width=64, height=64, grey=True)
    net = next(each["text"] for each in nets.gallery("classification") if each["key"] == "cifar_quick")
    run = studio.wait(studio.start(data["id"], net, **(_OPTIONS | {"epochs": epochs}))["id"])
    if run["state"] != "done":
        raise RuntimeError(f"the training of the photographs is {run['state']}: {run['message']}")
    return float(studio.evaluate(run["id"], part="test")["summary"]["accuracy"])


class _Clock:
    def __init__(self, begun: float) -> None:
        self._begun = self._last = begun

    def tell(self, what: str) -> None:
        now = time.monotonic()
        print(f"{now - self._last:6.1f} s  {what}", flush=True)
        self._last = now

    def close(self) -> None:
        print(f"{time.monotonic() - self._begun:6.1f} s  in all")


# ---- soak


def soak(home: Path, minutes: float, watchers: int = 20) -> None:
    """Memory of a server, and of its processes, while a net trains, streams are read and all pages are looked at."""
    with running(home) as server:
        assert server.process is not None
        pid, stop = server.process.pid, threading.Event()
        _first(server)
        threads = [threading.Thread(target=_watch, args=(server, stop), daemon=True) for _ in range(watchers)]
        threads.append(threading.Thread(target=_visit, args=(server, stop), daemon=True))
        for thread in threads:
            thread.start()
        samples: list[tuple[float, float, float]] = []
        begun = time.monotonic()
        while time.monotonic() - begun < 60 * minutes:
            time.sleep(min(10.0, 6 * minutes))
            own, all_of_them = (
                _resident(pid),
                _resident(pid) + sum(_resident(child) for child in _children(pid)),
            )
            samples.append((time.monotonic() - begun, own / 2**20, all_of_them / 2**20))
            _go_on(server)
        stop.set()
    quarter = max(1, len(samples) // 4)
    for at, who in ((1, "server"), (2, "server and inspectors")):
        parts = [mean(each[at] for each in samples[k * quarter : (k + 1) * quarter]) for k in range(4)]
        slope = (
            60
            * np.polyfit(
                [each[0] / 60 for each in samples[quarter:]], [each[at] for each in samples[quarter:]], 1
            )[0]
        )
        print(f"{who}, MiB by quarters of {minutes:g} minutes: {' '.join(f'{part:.1f}' for part in parts)}; "
              f"after the first {slope:+.1f} an hour")  # fmt: skip
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    if mean(each[1] for each in last) > 1.1 * mean(each[1] for each in second):
        sys.exit("FAILED: the server grows")


def _first(server: Server) -> None:
    request = urllib.request.Request(
        server.base + "/first", b"", {"Authorization": f"Bearer {server.token}"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=60).close()


def _go_on(server: Server) -> None:
    """Have some net train: the first one again, as a copy, where none does."""
    studio = Client(home=server.home)
    if not any(row["state"] in ("queued", "running") for row in studio.runs(count=5)):
        run = studio.get("/api/runs", count=1)[0]
        net = next(each["text"] for each in nets.gallery() if each["key"] == "lenet")
        studio.start(run["dataset"], net, epochs=200)


def _watch(server: Server, stop: threading.Event) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    while not stop.is_set():
        with contextlib.suppress(OSError):
            request = urllib.request.Request(f"{server.base}/api/runs/1/events", headers=headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                until = time.monotonic() + 30  # then it comes again, as a page that was hidden
                while not stop.is_set() and time.monotonic() < until and answer.readline():
                    pass


def _visit(server: Server, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(0.5):
        newest = 1
        with contextlib.suppress(Exception):
            newest = Client(home=server.home).runs(count=1)[0]["id"]
        looked = ("/", f"/runs/{newest}", f"/runs/{newest}/evaluation", f"/runs/{newest}/classify?at={number % 500}",
                  f"/runs/{newest}/inside?at={number % 500}", "/data/1", "/train", "/queue", "/settings", "/api",
                  f"/compare?run=1&run={newest}", f"/api/runs/{newest}/series?name=loss")  # fmt: skip
        with contextlib.suppress(OSError):
            _get(server, looked[number % len(looked)])
        number += 1


def _get(server: Server, path: str) -> bytes:
    request = urllib.request.Request(server.base + path, headers={"Authorization": f"Bearer {server.token}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: bytes = answer.read()
        return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _children(pid: int) -> list[int]:
    """Processes that a server answers by; workers are in a session of their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == pid and int(fields[3]) == os.getsid(pid):
                found.append(int(stat.parent.name))
    return found


def in_a_home(asked: argparse.Namespace) -> None:
    """Run one of them in a folder that goes with it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        match asked.what:
            case "newcomer":
                newcomer(home, asked.install)
            case "kills":
                kills(home, asked.count or 100, asked.seed)
            case "watchers":
                watchers(home, asked.count or 100, asked.seconds)
            case "pages":
                pages(home, asked.count or 1_000_000)
            case "gpu":
                gpu(home)
            case _:
                soak(home, asked.minutes)
