"""A GPU whose compiler does what tests tell it to, and algorithms whose code it compiles."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from jitdnn import targets
from jitdnn.kernels.algorithm import Algorithm, Epilogue, Kernel
from jitdnn.planner import background, compiling
from jitdnn.planner.compiling import Pool
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.cache import CodeCache, Origin
from jitdnn.rtcg.missing import Missing, gathered
from jitdnn.rtcg.use import note_compiled
from planner_fakes import Fake

_ORIGIN = Origin("fake", "arch1", "compiler 1")
SECONDS = 20.0  # that no test waits for unless something hangs


def own_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """For a fixture: a pool of the test's own, of two threads, which end with it."""
    made = Pool(2)
    monkeypatch.setattr(compiling, "pool", made)
    monkeypatch.setattr(background, "pool", made)
    yield made
    made.close(SECONDS)
    assert not any(thread.is_alive() for thread in made._threads), "a thread was left"


class Gate:
    """Where a compilation waits until it may go on."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self._reached.set()
        assert self._open.wait(SECONDS), "nobody opened the gate"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(SECONDS), "nobody came to the gate"

    @property
    def was_reached(self) -> bool:
        return self._reached.is_set()

    def open(self) -> None:
        self._open.set()


@dataclass
class Gpu:
    """As much of a GPU as handles and the planner ask for."""

    target: str = "fake"
    name: str = "fake GPU"
    threads: int = 1
    bandwidth: float = 1e12
    default_stream: int = 0
    capturing: set[int] = field(default_factory=set)
    origin: Origin = _ORIGIN

    device_id = ("fake", 0)

    def __hash__(self) -> int:
        return id(self)

    def peak_flops(self, dtype: str) -> float:
        return 1e13

    def stream(self, given: Any) -> Any:
        return given

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    def allocate(self, size: int, stream: Any = None) -> Any:
        return SimpleNamespace(pointer=1 << 20, size=size, free=lambda: None, streams=frozenset())

    def trim(self) -> None: ...

    def compile(self, name: str, work: Callable[[], object], is_generic: bool) -> bytes:
        key = hashlib.sha256(f"{name} {self.origin}".encode()).hexdigest()
        code = CodeCache.default().get(key)
        missing = gathered()
        if code is None and missing is not None:
            missing.append(Missing(name, key, is_generic, lambda: self.compile(name, work, is_generic)))
            return b""
        if code is None:
            work()
            note_compiled(name)
            code = name.encode()
            CodeCache.default().put(key, code, self.origin)
        return code


@dataclass
class Compiled(Fake):
    """An algorithm with modules of code, called by their names; compiling one goes through its gate, or raises."""

    modules: tuple[str, ...] = ()
    is_generic: bool = False
    gates: dict[str, Gate] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    compilations: list[str] = field(default_factory=list)

    def build(self, problem: Problem, device: Any, epilogue: Epilogue | None = None) -> Kernel:
        kernel = super().build(problem, device, epilogue)
        codes = [
            device.compile(module, lambda module=module: self._compile(module), self.is_generic)
            for module in self.modules or (self.name,)
        ]

        def run(stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int) -> None:
            assert all(codes), f"{self.name} runs without its code"
            assert bool(workspace) == bool(self.needs), f"{self.name} with somebody else's workspace"
            kernel(stream, pointers, alpha, beta, workspace)

        return run

    def _compile(self, module: str) -> None:
        self.compilations.append(module)
        if module in self.gates:
            self.gates[module].pass_through()
        if module in self.errors:
            raise self.errors[module]

    @property
    def runs(self) -> int:
        return len(self.calls)


@contextmanager
def gpu_target(gpu: Gpu, *algorithms: Algorithm) -> Iterator[None]:
    """The target `fake`, of GPUs, with these algorithms for convolutions forward."""
    table: Any = SimpleNamespace(ALGORITHMS={(Convolution, "fwd"): algorithms})
    devices: Any = SimpleNamespace(
        device=lambda index=0, values=None: gpu,
        device_count=lambda: 1,
        missing=lambda: None,
        origins=lambda: [gpu.origin],
    )
    targets.register(targets.Target("fake", lambda: devices, lambda: table, has_graphs=True), replace=True)
    try:
        yield
    finally:
        targets.unregister("fake")
