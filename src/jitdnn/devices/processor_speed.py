"""How fast this machine's processor is: probes of its clock, its multiply-adds and its memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import Isa
from jitdnn.rtcg.processor import Processor
from jitdnn.rtcg.recording import compiling

_PROBE_CHAINS = 12  # independent sums: enough to hide the latency of a multiply-add on every set
_PROBE_STEPS = 20_000
_TURNS = 4  # measurements of which the best counts
_CHAIN = 100_000  # additions that wait for each other
_STREAMS = 8  # sums of one pass over memory, so that no addition waits
_MOST_BYTES = 64 << 20  # that are read, to see where the last cache ends
_ENOUGH = 32 << 20  # bytes that one timing reads, again and again


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


def probe(processor: Isa, dtype: str, threads: int) -> float:
    """FLOP/s of so many threads that multiply and add; of i8, of dot products."""
    import numpy as np

    lanes = processor.lanes(dtype)
    with compiling():
        library = load(
            "probe", (dtype, _PROBE_CHAINS, _PROBE_STEPS), processor,
            lambda m: _trace_dot_probe(m) if dtype == "i8" else _trace_probe(m, dtype),
        )  # fmt: skip
    kernel = CpuKernel(library, [("probe", threads)], pointers=1, threads=threads)
    room = np.empty(threads * lanes * _PROBE_CHAINS + 64, np.float64)
    seconds = _best(lambda: kernel(None, (room.ctypes.data,), 0.999, 0.001, 0), 2 * _TURNS)
    return 2.0 * lanes * _PROBE_CHAINS * _PROBE_STEPS * threads / seconds


def measure(isa: Isa, sizes: Processor) -> Processor:
    """The clock, the ports and the rates of one thread, for caches of the given sizes."""
    code = _Probe(isa)
    clock = code.clock()
    ports = max(1, round(probe(isa, "f32", 1) / (2 * isa.lanes("f32") * clock)))
    rates = {size: code.rate(size) / clock for size in _working_sets(sizes)}
    near = rates[min(rates)]
    beyond = {size: rate for size, rate in rates.items() if size > sizes.l2_bytes}
    memory, last = beyond[max(beyond)], beyond[min(beyond)]
    # as far as reads are nearer to those from the last cache than to those from memory
    reach = max(
        (size for size, rate in beyond.items() if rate > math.sqrt(memory * last)), default=sizes.l2_bytes
    )
    l3 = min(sizes.l3_bytes, reach) if last > 1.25 * memory else min(sizes.l3_bytes, _MOST_BYTES // 2)
    return replace(
        sizes, fma_ports=ports, clock=_rounded(clock), l3_bytes=l3,
        l2_rate=_rounded(near), l3_rate=_rounded(last), memory_rate=_rounded(memory),
    )  # fmt: skip


def _working_sets(sizes: Processor) -> list[int]:
    sets, size = [sizes.l2_bytes // 2], 2 * sizes.l2_bytes
    while size < _MOST_BYTES:
        sets.append(size)
        size *= 2
    return [*sets, _MOST_BYTES]


def _rounded(value: float) -> float:
    """Two digits: a machine that is measured anew gives the same plans."""
    return float(f"{value:.1e}")


class _Probe:
    """Code that adds in a chain, and code that reads memory from one end to the other."""

    def __init__(self, isa: Isa) -> None:
        with compiling():
            library = load("facts", (_CHAIN, _STREAMS), isa, _trace)
        self._lanes = isa.lanes("f64")
        self._chain = CpuKernel(library, [("chain", 1)], pointers=2, threads=1)
        self._library = library
        self._memory: Any = None

    def clock(self) -> float:
        """Cycles per second, by additions of integers, which take one cycle each."""
        import numpy as np

        numbers = np.arange(4, dtype=np.int64)
        pointers = numbers.ctypes.data, numbers.ctypes.data + 16
        return 2 * _CHAIN / _best(lambda: self._chain(None, pointers, 1.0, 0.0, 0))

    def rate(self, size: int) -> float:
        """Bytes per second of reading so many bytes over and over."""
        import numpy as np

        if self._memory is None:
            self._memory = np.ones(_MOST_BYTES // 8 + 8)
            self._sum = np.zeros(64)
        step = 8 * self._lanes * _STREAMS
        passes, vectors = max(1, _ENOUGH // size), size // step
        start = (self._memory.ctypes.data + 63) // 64 * 64
        kernel = CpuKernel(self._library, [("read", 1)], pointers=2, threads=1, extras=(passes, vectors))
        seconds = _best(lambda: kernel(None, (start, self._sum.ctypes.data), 1.0, 0.0, 0))
        return passes * vectors * step / seconds


def _trace(module: Module) -> None:
    with module.task("chain") as (k, args, _, _):
        numbers = Arguments(k, args, 2).pointer(0, "i64")
        first, second = numbers.load(0), numbers.load(1)
        chain = k.register(second)
        for _step in k.range(_CHAIN):
            chain.set((chain.get() ^ first) + second)
        Arguments(k, args, 2).pointer(1, "i64").store(chain.get(), 0)
    with module.task("read") as (k, args, _, _):
        arguments, lanes = Arguments(k, args, 2), k.lanes("f64")
        sums = [k.register(k.constant(0.0, "f64", lanes)) for _ in range(_STREAMS)]
        for _pass in k.range(arguments.extra(0)):
            for vector in k.range(arguments.extra(1)):
                here = arguments.pointer(0, "f64") + vector * (lanes * _STREAMS)
                for i, total in enumerate(sums):
                    total.set(total.get() + here.load(i * lanes, lanes))
        for i, total in enumerate(sums):
            arguments.pointer(1, "f64").store(k.reduce(total.get()), i)


def _best(call: Callable[[], object], turns: int = _TURNS) -> float:
    """Seconds of the fastest of so many calls."""
    best = math.inf
    for _ in range(turns):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
