"""The processor as a device: its instruction set, its threads, its measured speed, and kernel launches."""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jitdnn.devices.processor_facts import efficiency, processor_of
from jitdnn.devices.quiet import settle
from jitdnn.devices.threads import phase_table, pool
from jitdnn.rtcg.builder import Builder, Module
from jitdnn.rtcg.compile import Library, load
from jitdnn.rtcg.isa import Isa, isa, processor_name
from jitdnn.rtcg.processor import REFERENCE
from jitdnn.rtcg.recording import compiling
from jitdnn.settings import Settings, current
from jitdnn.tensor import compute_dtype

_PROBE_CHAINS = 12  # independent sums: enough to hide the latency of a multiply-add on every set
_PROBE_STEPS = 20_000


@dataclass(frozen=True)
class CpuDevice:
    """A processor seen as a device: one instruction set and a number of threads to use."""

    isa: Isa
    threads: int
    #: estimated over measured seconds by "algorithm kind", where a device file states them
    efficiency: tuple[tuple[str, float], ...] = ()

    target = "cpu"

    @property
    def name(self) -> str:
        """What measurements are filed under: processor, instruction set and threads."""
        return f"{processor_name()} {self.isa.name} x{self.threads}"

    def peak_flops(self, dtype: str) -> float:
        """Multiply-add rate of all threads in FLOP/s, measured once in this process for each type."""
        return _single_peak(replace(self.isa, processor=REFERENCE), compute_dtype(dtype)) * self.threads

    @property
    def bandwidth(self) -> float:
        """Bytes per second that a plain copy moves (read plus written), measured once in this process."""
        return _copy_rate()

    def measure_peak(self, dtype: str) -> float:
        """Multiply-add rate of all threads in FLOP/s, measured now: clocks and neighbours change.

        Of 8-bit integers where one instruction makes sums of their products, else of the reals that stand for them.
        """
        settle()
        is_dot = dtype == "i8" and self.isa.has_dot
        return _probe(self.isa, dtype if is_dot else compute_dtype(dtype), self.threads)


@dataclass(frozen=True)
class Kept:
    """What a kernel prepares from its filter alone, so that a caller may have it done once and keep it.

    The first ``phases`` phases read only the filter and write only the first ``bytes`` bytes of the workspace;
    the later ones read these bytes through ``Arguments.kept`` and write none of them.
    """

    bytes: int
    phases: int


class CpuKernel:
    """Compiled code and how to launch it: phases of (function name, tasks), one after the other.

    Every task gets the argument block: the pointers, the workspace, alpha and beta as doubles, where the
    prepared filter lies, then ``extras``, the integers that the code takes at run time. ``workspace``: the bytes of it
    that the code uses, where whoever made the kernel says so.
    """

    def __init__(
        self, library: Library, phases: Sequence[tuple[str, int]], pointers: int, threads: int,
        extras: Sequence[int] = (), kept: Kept | None = None, workspace: int | None = None,
    ) -> None:  # fmt: skip
        self._library = library  # the code lives as long as the kernel
        self._phases = [(library.address(name), tasks) for name, tasks in phases]
        self._table = phase_table(self._phases)
        self._count = len(self._phases)
        self._threads = threads
        self._extras = struct.pack(f"{len(extras)}q", *extras)
        self._pack = struct.Struct(f"{pointers + 1}q2dq{len(self._extras)}s").pack
        self.kept = kept
        self.workspace = workspace
        if kept is not None:
            self._leading = phase_table(self._phases[: kept.phases])
            self._later = phase_table(self._phases[kept.phases :])

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        block = self._pack(*pointers, workspace, alpha, beta, workspace, self._extras)
        pool().launch(self._table, self._count, block, self._threads)

    def keep(self, stream: Any, pointers: Sequence[int], memory: int) -> None:
        """Prepare the filter: run the leading phases, which fill ``kept.bytes`` bytes at ``memory``.

        ``memory`` is 64-byte aligned. Of the ``pointers`` only the filter's is used.
        """
        assert self.kept is not None
        block = self._pack(*pointers, memory, 1.0, 0.0, memory, self._extras)
        pool().launch(self._leading, self.kept.phases, block, self._threads)

    def run_kept(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int, memory: int
    ) -> None:
        """Run the other phases with what ``keep`` left at ``memory``; the filter itself is not read.

        ``workspace`` has ``kept.bytes`` bytes less than an ordinary call needs.
        """
        assert self.kept is not None
        # where the workspace would begin if the prepared filter lay in it: nobody touches those bytes
        start = workspace - self.kept.bytes
        block = self._pack(*pointers, start, alpha, beta, memory, self._extras)
        pool().launch(self._later, self._count - self.kept.phases, block, self._threads)


def launch(phases: Sequence[tuple[int, int]], block: bytes, threads: int) -> None:
    """Run (function address, tasks) one after the other, every task with the argument block."""
    pool().launch(phase_table(phases), len(phases), block, threads)


class Arguments:
    """The argument block of ``CpuKernel`` as traced code reads it."""

    def __init__(self, k: Builder, args: Any, pointers: int) -> None:
        self.k, self.args, self._pointers = k, args, pointers

    def pointer(self, number: int, dtype: str) -> Any:
        """The pointer to operand ``number``."""
        return self.k.pointer(self.args, number, dtype)

    def workspace(self, dtype: str) -> Any:
        return self.k.pointer(self.args, self._pointers, dtype)

    def alpha(self, dtype: str) -> Any:
        return self.k.number(self.args, self._pointers + 1, dtype)

    def beta(self, dtype: str) -> Any:
        return self.k.number(self.args, self._pointers + 2, dtype)

    def kept(self, dtype: str) -> Any:
        """What the leading phases made of the filter: the start of the workspace, or memory of the caller."""
        return self.k.pointer(self.args, self._pointers + 3, dtype)

    def extra(self, number: int) -> Any:
        """Integer ``number`` of the kernel's extras."""
        return self.args.load(first_extra(self._pointers) + number)


def first_extra(pointers: int) -> int:
    """The slot of the argument block in which the extras of a kernel of so many pointers begin."""
    return pointers + 4


def host(threads: int, cpu: str = "host") -> CpuDevice:
    """This machine with ``threads`` threads and the instruction set called ``cpu``."""
    found = isa(cpu)
    return CpuDevice(replace(found, processor=processor_of(found)), threads, efficiency())


def device(index: int = 0, values: Settings | None = None) -> CpuDevice:
    """This machine as the settings describe it, those in force for None; it has no other number than 0."""
    values = values or current()
    return host(values.threads, values.cpu)


def device_count() -> int:
    """One: the processors of this machine are one device."""
    return 1


def missing() -> str | None:
    """None: this module can only be imported where the compiler of its kernels is."""
    return None


def _trace_probe(module: Module, dtype: str) -> None:
    """Chains of multiply-adds in registers; the result is stored so that they are not removed."""
    with module.task("probe") as (k, args, task, _):
        lanes = k.lanes(dtype)
        where = k.pointer(args, 0, dtype) + task * (lanes * _PROBE_CHAINS)
        chains = [k.register(k.constant(i + 1.0, dtype, lanes)) for i in range(_PROBE_CHAINS)]
        shrink = k.splat(k.number(args, 2, dtype), lanes)
        grow = k.splat(k.number(args, 3, dtype), lanes)
        for _step in k.range(_PROBE_STEPS):
            for chain in chains:
                chain.set(k.fma(chain.get(), shrink, grow))
        for i, chain in enumerate(chains):
            where.store(chain.get(), i * lanes)


def _trace_dot_probe(module: Module) -> None:
    """The same of dot products of four 8-bit integers."""
    with module.task("probe") as (k, args, task, _):
        lanes = k.lanes("i32")
        where = k.pointer(args, 0, "i32") + task * (lanes * _PROBE_CHAINS)
        some = where.load(0, lanes)
        chains = [k.register(k.constant(i, "i32", lanes)) for i in range(_PROBE_CHAINS)]
        for _step in k.range(_PROBE_STEPS):
            for chain in chains:
                chain.set(k.dot(some, some, chain.get()))
        for i, chain in enumerate(chains):
            where.store(chain.get(), i * lanes)


def _probe(processor: Isa, dtype: str, threads: int) -> float:
    import numpy as np

    lanes = processor.lanes(dtype)
    with compiling():
        library = load(
            "probe", (dtype, _PROBE_CHAINS, _PROBE_STEPS), processor,
            lambda m: _trace_dot_probe(m) if dtype == "i8" else _trace_probe(m, dtype),
        )  # fmt: skip
    kernel = CpuKernel(library, [("probe", threads)], pointers=1, threads=threads)
    room = np.empty(threads * lanes * _PROBE_CHAINS + 64, np.float64)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        kernel(None, (room.ctypes.data,), 0.999, 0.001, 0)
        best = min(best, time.perf_counter() - start)
    return 2.0 * lanes * _PROBE_CHAINS * _PROBE_STEPS * threads / best


def multiply_add_rate(processor: Isa) -> float:
    """FLOP/s of one thread that multiplies and adds in f32, measured once in this process."""
    return _single_peak(replace(processor, processor=REFERENCE), "f32")


@functools.cache
def _single_peak(processor: Isa, dtype: str) -> float:
    return _probe(processor, dtype, 1)


@functools.cache
def _copy_rate() -> float:
    import numpy as np

    size = 4 << 20  # of 8 bytes: beyond most caches
    while True:
        try:
            source = np.ones(size, np.float64)
            target = np.empty_like(source)
            break
        except MemoryError:  # a figure for estimates is not worth failing for
            if size <= 1 << 12:
                raise
            size //= 4
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - start)
    return 2.0 * source.nbytes / best
