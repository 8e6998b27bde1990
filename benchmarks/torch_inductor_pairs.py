"""The parent of `torch_inductor_apart.py`: starts the processes, has a pair at a time run on each GPU, prints rows."""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Lock, Semaphore, Thread
from time import perf_counter, sleep
from typing import Any

import torch_inductor

SIDES = ("stock", "ours")
HEAD = (
    f"{'model':24s}{'mode':16s}{'n':>4s}{'stock ms':>9s}{'ours':>8s}{'speed':>7s}{'host ms':>10s}{'ours':>8s}"
    f"{'peak MiB':>10s}{'ours':>8s}{'bound':>7s}{'ours':>6s}{'first s':>10s}{'ours':>8s}"
)
LEAST = 3  # samples of each side
WANTED = ".wanted"  # behind the name of a lock: one that those who measure for their graph share
PATIENCE = 40.0  # seconds that a pair waits for them
QUIET = 2  # cores of a GPU that are left to what is timed


class Gone(Exception):
    """A process has ended before it said what was asked."""


class Child:
    """One side of one model, a process."""

    def __init__(self, command: Sequence[str], gpu: str | None, log: Path, nice: int) -> None:
        settings = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        environment = {**settings, **os.environ} | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
        self.log = log
        command = ["nice", "-n", str(nice), *command]
        with log.open("a") as said:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment,
                process_group=0,
            )  # fmt: skip

    def hear(self) -> dict[str, Any]:
        """What it says next. Raises Gone."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Gone
        found: dict[str, Any] = json.loads(line)
        return found

    def order(self, what: str) -> dict[str, Any]:
        """Have it do something. Raises Gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
        except OSError:
            raise Gone from None
        return self.hear()

    def leave(self) -> None:
        """Until it has ended by itself, and has given its memory back, or some seconds."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self.kill()

    def kill(self) -> None:
        """With the compilers that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Gpu:
    """A GPU, or the processor: its lock, its cores for what is timed, and the pairs that wait for it."""

    def __init__(self, name: str | None, lock: Path, quiet: Sequence[int]) -> None:
        self.name, self.lock, self.quiet = name, lock, quiet
        self.waiting: Queue[Pair] = Queue()

    def wait_for_graphs(self) -> None:
        """Until nobody measures for a graph, or for so long."""
        end = perf_counter() + PATIENCE
        with open(f"{self.lock}{WANTED}", "a") as file:
            while perf_counter() < end:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                sleep(0.05)


class Pair:
    """Both sides of a model."""

    def __init__(self, spec: str, gpu: Gpu, table: Table, is_first_only: bool) -> None:
        self.spec, self.gpu, self._table, self._is_first_only = spec, gpu, table, is_first_only
        self._has_failed = False
        name, *options = spec.split(",")
        arguments = [one for one in sys.argv[1:] if one not in table.arguments.models]
        given = dict(one.partition("=")[::2] for one in options)
        batch, mode, nice = (given.pop(what, None) for what in ("batch", "mode", "nice"))
        own = [f"{what}={value}" for what, value in given.items()]
        self.modes = [mode] if mode else list(table.arguments.mode)
        arguments += ["--lock", str(gpu.lock), "--quiet", ",".join(map(str, gpu.quiet))]
        arguments += ["--is-first-only"] if is_first_only else []
        arguments += ["--batch", batch] if batch else []
        arguments += ["--mode", *self.modes]
        arguments += ["--setting", *table.arguments.setting, *own] if own else []
        self.children = {}
        for side in SIDES:
            log = table.logs / f"{spec.replace('/', '_')}.{side}.txt"
            command = [sys.executable, table.script, name, *arguments, "--only", side]
            self.children[side] = Child(command, gpu.name, log, int(nice or 0))

    def watch(self) -> None:
        """Tell the GPU whenever both have compiled, until they have ended."""
        try:
            for mode in self.modes:
                self.mode = mode
                for one in self.children.values():
                    one.hear()
                self._turn_is_over = Semaphore(0)
                self.gpu.waiting.put(self)
                self._turn_is_over.acquire()
        except Gone:
            self.failed()
            for one in self.children.values():
                one.kill()
        for one in self.children.values():
            one.leave()

    def run(self, lock: Any) -> None:
        """First steps, samples in turns and the row, alone on the GPU."""
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            cells = {side: one.order("go") for side, one in self.children.items()}
            times: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
            end = perf_counter() + self._table.arguments.seconds
            while not self._is_first_only and (len(times["ours"]) < LEAST or perf_counter() < end):
                for side, one in self.children.items():
                    times[side].append(one.order("sample"))
            for side in SIDES:
                for what in ("ms", "host ms"):
                    cells[side][what] = min((each[what] for each in times[side]), default=math.nan)
            self._table.add(self.spec, self.mode, cells)
            if self._table.arguments.parts and not self._is_first_only:
                for one in self.children.values():
                    one.order("parts")
            is_last = len(self.modes) == self.modes.index(self.mode) + 1
            for one in self.children.values():
                if is_last and self.mode in torch_inductor.GRAPHS:
                    one.kill()  # with what its graphs have recorded
                else:
                    one.order("end")
        except Gone:
            self.failed()
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            self._turn_is_over.release()

    def failed(self) -> None:
        """Say so, once, with the last that both sides told."""
        if self._has_failed or self._table.is_over:
            return
        self._has_failed = True
        tails = "\n".join(
            f"-- {side}\n" + "\n".join(one.log.read_text(errors="replace").splitlines()[-12:])
            for side, one in self.children.items()
        )
        self._table.say(f"{self.spec}: a process has ended\n{tails}")


class Table:
    """Rows as they come."""

    def __init__(self, arguments: argparse.Namespace, script: str, logs: Path) -> None:
        self.arguments, self.script, self.logs = arguments, script, logs
        self._speeds: dict[str, list[float]] = {}
        self._lock, self._begin = Lock(), perf_counter()
        self.is_over = False

    def say(self, line: str) -> None:
        with self._lock:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def add(self, spec: str, mode: str, cells: dict[str, dict[str, Any]]) -> None:
        stock, ours = (cells[side] for side in SIDES)
        speed = stock["ms"] / ours["ms"]
        most = 2e-2 if self.arguments.dtype != "f32" else 1e-4
        differ = "" if math.isclose(stock["loss"], ours["loss"], rel_tol=most) else "  the losses differ"
        self.say(
            f"{spec:24s}{mode:16s}{ours['batch']:4d}{stock['ms']:9.2f}{ours['ms']:8.2f}{speed:7.3f}"
            f"{stock['host ms']:10.2f}{ours['host ms']:8.2f}{stock['peak']:10.0f}{ours['peak']:8.0f}"
            f"{bound(stock):>7s}{bound(ours):>6s}{stock['first s']:10.1f}{ours['first s']:8.1f}{differ}"
            f"  after {perf_counter() - self._begin:.0f} s"
        )
        if not math.isnan(speed):
            self._speeds.setdefault(mode, []).append(speed)
        if self.arguments.json is not None:
            with self._lock, self.arguments.json.open("a") as kept:
                kept.write(json.dumps({"model": spec, "mode": mode, "speed": speed, **cells}) + "\n")

    def close(self) -> None:
        for mode, speeds in self._speeds.items():
            mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
            self.say(f"{mode}: {len(speeds)}, geometric mean {mean:.3f}, least {min(speeds):.3f}")


def bound(cell: dict[str, Any]) -> str:
    """What a step waits for."""
    return "host" if cell["host ms"] > 0.97 * cell["ms"] else "GPU"


def serve(gpu: Gpu) -> None:
    """Run pairs one at a time, those that are ready first."""
    with gpu.lock.open("a") as lock:
        while True:
            pair = gpu.waiting.get()
            gpu.wait_for_graphs()
            pair.run(lock)


def compete(table: Table, gpus: Sequence[Gpu], pairs: int, is_first_only: bool, end: float) -> None:
    """All pairs, so many at a time."""
    names = table.arguments.models or list(torch_inductor.MODELS)
    table.say(HEAD)
    running: list[Pair] = []
    free = Semaphore(pairs or len(names))

    def watch(number: int, name: str) -> None:
        with free:
            if perf_counter() < end:
                running.append(Pair(name, gpus[number % len(gpus)], table, is_first_only))
                running[-1].watch()

    watchers = [Thread(target=watch, args=one, daemon=True) for one in enumerate(names)]
    for one in watchers:
        one.start()
    for one in watchers:
        one.join(max(0.0, end - perf_counter()) if end < math.inf else None)
    table.is_over = perf_counter() >= end
    for pair in running:
        for child in pair.children.values():
            child.kill()


def parent(arguments: argparse.Namespace, script: str) -> None:
    """All pairs on all GPUs, and their rows."""
    end = perf_counter() + arguments.limit
    cores = sorted(os.sched_getaffinity(0))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    names = visible if arguments.device == "cuda" else [None]
    are_many = len(cores) >= 8 * len(names)
    with tempfile.TemporaryDirectory() as folder:
        gpus = []
        for number, name in enumerate(names):
            quiet = cores[number * QUIET : (number + 1) * QUIET] if are_many else []
            lock = Path(folder) / f"lock{number}"
            if arguments.lock:  # which others share
                lock = Path(f"{arguments.lock}{number or ''}")
            gpus.append(Gpu(name, lock, quiet))
            Thread(target=serve, args=(gpus[-1],), daemon=True).start()
        os.sched_setaffinity(0, set(cores).difference(*(gpu.quiet for gpu in gpus)))
        logs = arguments.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        table = Table(arguments, script, logs)
        try:
            compete(table, gpus, arguments.pairs, False, end)
            if arguments.again and perf_counter() < end:
                compete(table, gpus, 2 * len(gpus), True, end)
        finally:
            table.close()
            if arguments.logs is None and arguments.parts:
                for each in sorted(logs.glob("*.txt")):
                    sys.stderr.write(each.read_text(errors="replace"))
