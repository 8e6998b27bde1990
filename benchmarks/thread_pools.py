"""Kernels on threads of their own, or on PyTorch's: what a launch costs, and what sharing is worth beside PyTorch.

    python benchmarks/thread_pools.py [--threads 2] [--rounds 15] [--seconds 0.1]

Both pools take turns in one process, each after a pause. Prints for every row the least and the lower quartile of the
rounds in microseconds, and the quotient of the quartiles. Other programs must not run: a parallel region waits for
every thread of its team, and one that has lost its core is away for milliseconds.

"launch": a kernel of so many tasks that do nothing. "alone": `jd.conv` again and again. "alternating": a convolution of
ours between a linear layer and a ReLU of PyTorch, as in a model some of whose layers are ours; beside it PyTorch's
convolution in the same place.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import quantiles
from time import perf_counter

import numpy as np
import torch

import jitdnn as jd
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.devices.quiet import settle
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import isa

POOLS = ("own", "openmp")
#: images, channels, filters, size, taps a side
LAYERS = (
    (1, 64, 64, 14, 3),
    (1, 64, 64, 28, 3),
    (1, 96, 96, 28, 1),
    (1, 128, 128, 56, 3),
)
#: rows and features of the linear layer
WIDTHS = ((64, 256), (128, 512))

Work = Callable[[], object]


def idle(tasks: int, phases: int, threads: int) -> Work:
    """A launch of tasks that do nothing."""

    def generate(module: Module) -> None:
        with module.task("nothing"):
            pass

    kernel = CpuKernel(load("bench-nothing", 0, isa(), generate), [("nothing", tasks)] * phases, 0, threads)
    return lambda: kernel(None, [], 1.0, 0.0, 0)


def seconds_of(work: Work, seconds: float) -> float:
    """Seconds of one call: so many calls as take about ``seconds``, after some that do not count."""
    settle()
    begin = perf_counter()
    work()
    work()
    repeats = max(3, int(seconds / (perf_counter() - begin) * 2))
    for _ in range(max(1, repeats // 10)):
        work()
    begin = perf_counter()
    for _ in range(repeats):
        work()
    return (perf_counter() - begin) / repeats


def quartile(times: list[float]) -> float:
    """The lower one."""
    return quantiles(times, n=4, method="inclusive")[0]


def compare(name: str, work: Work, rounds: int, seconds: float, theirs: Work | None = None) -> None:
    """Print a row: both pools in turn, and what PyTorch does instead."""
    times: dict[str, list[float]] = {pool: [] for pool in POOLS}
    times["torch"] = []
    for _ in range(rounds):
        for pool in POOLS:
            with jd.settings(thread_pool=pool):
                work()
                times[pool].append(seconds_of(work, seconds))
        if theirs is not None:
            times["torch"].append(seconds_of(theirs, seconds))
    cells = [
        f"{1e6 * min(one):9.2f} {1e6 * quartile(one):9.2f}" if one else " " * 19 for one in times.values()
    ]
    own, shared = (quartile(times[pool]) for pool in POOLS)
    print(f"{name:44} {'  '.join(cells)}   {own / shared:5.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each measurement")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    rng = np.random.default_rng(0)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape, np.float32))

    def row(name: str, work: Work, theirs: Work | None = None) -> None:
        compare(name, work, options.rounds, options.seconds, theirs)

    with jd.settings(threads=options.threads):
        print(f"{'least, lower quartile in us':44} {'own':>19}  {'shared':>19}  {'torch':>19}   own/shared")
        for tasks, phases in ((1, 1), (2, 1), (64, 1), (2, 4)):
            row(f"launch, {tasks} tasks x {phases} phases", idle(tasks, phases, options.threads))
        for n, c, k, size, taps in LAYERS:
            x, w = tensor(n, c, size, size), tensor(k, c, taps, taps)
            conv = lambda x=x, w=w, p=taps // 2: jd.conv(x, w, padding=p)  # noqa: E731
            peer = lambda x=x, w=w, p=taps // 2: torch.nn.functional.conv2d(x, w, padding=p)  # noqa: E731
            row(f"alone, {n}x{c}x{size}x{size} * {k}x{taps}x{taps}", conv, peer)
            for rows, features in WIDTHS:
                a, b = tensor(rows, features), tensor(features, features)

                def alternating(layer: Work, a: torch.Tensor = a, b: torch.Tensor = b) -> None:
                    torch.nn.functional.linear(a, b)
                    layer()
                    torch.nn.functional.relu(a)

                row(
                    f"alternating, with linear {rows} x {features}",
                    lambda layer=conv, run=alternating: run(layer),
                    lambda layer=peer, run=alternating: run(layer),
                )


if __name__ == "__main__":
    main()
