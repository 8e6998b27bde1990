"""Ctrl-C, and signal handlers that compute, at every place where Python would run them.

    python tests/faults/interrupt.py launch
    python tests/faults/interrupt.py compile --points 2000

Python runs a signal's handler between two of its instructions: behind a call, behind a jump back, and where a
function begins. A scenario is run once to count these places in this library's code, then again for each place (or for
`--points` of them, spread evenly), and there KeyboardInterrupt is raised, or the library is called as a handler would
(`--how call`). After each the library is used again, by this thread and by another, which would wait for ever for a
lock that was left held, and what it says is compared with NumPy's.
"""

from __future__ import annotations

import argparse
import dis
import faulthandler
import importlib
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import jitdnn as jd
from jitdnn.devices import openmp
from jitdnn.devices import threads as threads_module
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.devices.threads import ThreadPool
from jitdnn.planner.store import Store
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.cache import CodeCache
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import isa

PACKAGE = str(Path(jd.__file__).parent)
# behind these the interpreter looks for signals
_CHECKED = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME", "CALL_FUNCTION", "CALL_METHOD"}
PATIENCE = 60.0


class Places:
    """Counts the places of a run, and does `act` at place `at`."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at, self.act, self.count, self.where = at, act, 0, ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        before = ""

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal before
            if event != "opcode":
                return trace
            last, before = before, dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if last in _CHECKED:
                if self.count == self.at:
                    self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    self.count += 1
                    self.act()
                self.count += 1
            return trace

        return trace


def at_every_place(
    prepare: Callable[[], Callable[[], object]],
    check: Callable[[], None],
    act: Callable[[], None],
    points: int | None,
) -> int:
    """Run what `prepare` gives with `act` at each place, then `check`; the number of places."""

    def once(at: int) -> Places:
        run, places = prepare(), Places(at, act)
        sys.settrace(places)
        try:
            run()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        return places

    once(-1)  # what is done once in a process is done
    check()
    whole = once(-1).count
    chosen = (
        range(whole) if points is None or points >= whole else [n * whole // points for n in range(points)]
    )
    done = 0
    for at in chosen:
        places = once(at)
        if not places.where:
            continue  # this run was shorter
        done += 1
        try:
            elsewhere(check)
            check()
        except BaseException as error:
            raise AssertionError(f"after place {at}, {places.where}: {error!r}") from error
    return done


def elsewhere(check: Callable[[], None]) -> None:
    """By another thread, which has no part in locks that this one holds."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            check()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        faulthandler.dump_traceback(all_threads=True)
        raise AssertionError("another thread waits for ever")
    if failed:
        raise failed[0]


_numbers = itertools.count(1)
X = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)
LARGE = np.random.default_rng(1).standard_normal(1 << 18).astype(np.float32)


def scale(n: int) -> None:
    """A kernel of its own for each n: the first call compiles it."""
    np.testing.assert_allclose(jd.elementwise(f"x: {n} * x + 1")(X), n * X + 1, rtol=1e-6, atol=1e-6)


def relu() -> None:
    np.testing.assert_array_equal(jd.relu(LARGE), np.maximum(LARGE, 0))


def two_threads() -> None:
    with jd.settings(threads=2):
        relu()


TASKS = 20_000


def take_part() -> None:
    """Launch until a worker has done some of the work."""

    def generate(module: Module) -> None:
        with module.task("who") as (k, args, task, thread):
            Arguments(k, args, 1).pointer(0, "i64").store(thread, task)

    kernel = CpuKernel(load("test-who", TASKS, isa(), generate), [("who", TASKS)], 1, 2)
    cells = np.zeros(TASKS, np.int64)
    deadline = time.monotonic() + PATIENCE
    while not cells.any():
        assert time.monotonic() < deadline, "no worker takes part any more"
        kernel(None, [cells.ctypes.data], 1.0, 0.0, 0)


def fall_asleep(pool: ThreadPool) -> None:
    """Wait until every worker sleeps."""
    deadline = time.monotonic() + PATIENCE
    while pool.sleeping < len(pool._workers):
        assert time.monotonic() < deadline, "a worker does not fall asleep"
        time.sleep(0.0002)


class Scenario:
    """What is interrupted, and what must hold afterwards."""

    #: places that are looked at in a short run
    points = 40

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> Callable[[], object]:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    def handle(self) -> None:
        """What a signal handler may do."""
        two_threads()
        scale(next(_numbers))

    def finish(self) -> None:
        """Once, at the end."""


class Launch(Scenario):
    """A call on two threads whose worker sleeps."""

    points = 200

    def prepare(self) -> Callable[[], object]:
        two_threads()
        fall_asleep(threads_module.pool())
        return two_threads

    def check(self) -> None:
        two_threads()
        take_part()
        numbers = [thread.name for thread in threads_module.pool()._workers]
        assert len(set(numbers)) == len(numbers), f"workers of one number: {numbers}"

    def finish(self) -> None:
        pool = threads_module.pool()
        assert all(thread.is_alive() for thread in pool._workers), "a worker that never began"
        fall_asleep(pool)
        two_threads()
        thread = threading.Thread(target=pool.stop, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the workers do not end"


class First(Launch):
    """The first call on several threads, which makes the pool and starts its workers."""

    points = 60

    def prepare(self) -> Callable[[], object]:
        self.finish()
        threads_module._pool = None
        return two_threads


class Shared(Scenario):
    """The first call on PyTorch's threads, which finds them."""

    points = 60

    def prepare(self) -> Callable[[], object]:
        importlib.import_module("torch")
        openmp._shared = None
        return two_threads

    def check(self) -> None:
        two_threads()
        assert openmp._shared is not None, openmp._refusal
        take_part()


class Compile(Scenario):
    """The first call of a kernel: traced, compiled, put on disk, loaded."""

    def prepare(self) -> Callable[[], object]:
        self.number = next(_numbers)
        return lambda: scale(self.number)

    def check(self) -> None:
        scale(self.number)
        scale(next(_numbers))


class Find(Scenario):
    """The first call for a problem, whose algorithms are compiled and measured."""

    points = 12

    def prepare(self) -> Callable[[], object]:
        self.batch = next(_numbers)
        return self.call

    def call(self) -> None:
        x = np.ones((self.batch, 2, 6, 6), np.float32)
        w = np.ones((3, 2, 3, 3), np.float32)
        with jd.settings(choice="find"):
            np.testing.assert_allclose(jd.conv(x, w), np.full((self.batch, 3, 4, 4), 18.0), rtol=1e-6)

    check = call


class Code(Scenario):
    """An entry of the code cache, replaced."""

    points = 150
    OLD, NEW = b"old" * 1000, b"new" * 2000

    def prepare(self) -> Callable[[], object]:
        self.cache = CodeCache(self.folder / "code", 1 << 20)
        self.cache.put("a" * 64, self.OLD)
        return lambda: (self.cache.put("a" * 64, self.NEW), self.cache.get("a" * 64))

    def check(self) -> None:
        found = CodeCache(self.folder / "code", 1 << 20).get("a" * 64)
        assert found in (self.OLD, self.NEW), f"an entry of {found and len(found)} bytes"
        left = list((self.folder / "code").glob("*.tmp"))
        assert not left, f"{left[0].name} is left"


class Rows(Scenario):
    """Rows of the tuning store."""

    points = 100

    def prepare(self) -> Callable[[], object]:
        self.store, self.name = Store(self.folder / "tuning.sqlite"), f"problem {next(_numbers)}"
        return lambda: self.store.record(self.name, "", "machine", [("a", 1, 0.5, 0), ("b", 1, 0.25, 0)])

    def check(self) -> None:
        assert len(self.store.look_up(self.name, "", "machine")) in (0, 2)
        self.store.record(self.name, "", "machine", [("a", 1, 0.5, 0), ("b", 1, 0.25, 0)])
        assert len(Store(self.store.path).look_up(self.name, "", "machine")) == 2
        assert not list(self.folder.glob("*.repair"))


class Snapshot(Scenario):
    """A snapshot, replaced."""

    points = 60

    def prepare(self) -> Callable[[], object]:
        from jitdnn.caffe import snapshot

        self.path = snapshot.path_of(str(self.folder / "run"), 1)
        snapshot.write(self.path, {"iteration": 1}, {"weights/a": np.ones(5000, np.float32)})
        return lambda: snapshot.write(self.path, {"iteration": 1}, {"weights/a": np.zeros(7000, np.float32)})

    def check(self) -> None:
        from jitdnn.caffe import snapshot

        assert snapshot.read(self.path).arrays["weights/a"].size in (5000, 7000)
        assert [path for path in self.folder.iterdir() if path.is_file()] == [self.path]


class OpenCl(Scenario):
    """A call on an OpenCL device, of a kernel that was launched before; handlers launch the very same."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.x, self.y = jd.to_device(X, "opencl"), jd.to_device(np.flip(X), "opencl")

    def prepare(self) -> Callable[[], object]:
        return self.check

    def check(self) -> None:
        np.testing.assert_array_equal(jd.relu(self.x).numpy(), np.maximum(X, 0))

    def handle(self) -> None:
        np.testing.assert_array_equal(jd.relu(self.y).numpy(), np.maximum(np.flip(X), 0))


SCENARIOS: dict[str, type[Scenario]] = {
    "launch": Launch, "first": First, "shared": Shared, "compile": Compile, "find": Find, "code": Code, "store": Rows,
    "snapshot": Snapshot, "opencl": OpenCl,
}  # fmt: skip


def interrupt() -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--how", choices=("interrupt", "call"), default="interrupt")
    parser.add_argument("--points", type=int, help="places to look at; all by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jitdnn-interrupt-") as folder:
        scenario = SCENARIOS[given.scenario](Path(folder))
        act = interrupt if given.how == "interrupt" else scenario.handle
        if given.how == "call":
            scenario.handle()
        with jd.settings(cache_dir=Path(folder) / "cache"):
            done = at_every_place(scenario.prepare, scenario.check, act, given.points)
            scenario.finish()
    sys.stdout.write(f"{given.scenario}, {given.how}: {done} places, 0 faults\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
