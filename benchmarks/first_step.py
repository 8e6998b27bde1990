"""Where the time goes before a network's first step on a GPU: planning, compiling, and what the disk cache saves.

    python benchmarks/first_step.py [--suite mobilenet_v2] [--batch 32] [--math tf32] [--dtype bf16] [--layout nhwc]
                                    [--device sm_90a] [--workers 16] [--count]

No GPU is needed: every convolution of the suites (names with commas between them), in all directions, is planned for
one on paper, each time by a process of its own:

    families    by one thread: modules and processor seconds of each family of kernels, and of planning beside them
    again       the same from the disk cache
    shapes      other numbers of images of them, with the code of the first: modules that these compile, and processor
                time of each plan whose modules are all there
    wait        with an empty cache and `compile="wait"`: the seconds until every convolution can run
    background  the same with `compile="background"`, where some stand in for others, and until those are there
    threads     by as many threads as `--workers` says, as `jitdnn warm` does it
    ahead       all planned first, then compiled by as many threads as there are cores, as nets do it that are compiled

`--count` compiles nothing, and says only how many modules there are, and what planning takes.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from time import perf_counter, process_time, thread_time

import jitdnn as jd
from jitdnn import targets
from jitdnn.bench.suites import load, towards_each
from jitdnn.devices import cuda_compile
from jitdnn.devices.gpu import Source
from jitdnn.handle import current_handle
from jitdnn.ops.ahead import compile_ahead
from jitdnn.planner.plan import Plan
from jitdnn.problems import Problem

_OTHER_IMAGES = 24, 40


class Count:
    """Modules that NVRTC compiled and its processor seconds, by the name of their source; those of one thread apart."""

    def __init__(self) -> None:
        self.modules: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.here = 0.0

    @contextmanager
    def counting(self, compiles: bool) -> Iterator[None]:
        """Note all that is compiled meanwhile; without `compiles` nothing is, and kernels cannot be launched."""
        compile_one, here = cuda_compile._compile, threading.get_ident()

        def counted(source: Source, text: str, arch: str) -> bytes:
            start = thread_time()
            code = compile_one(source, text, arch) if compiles else b"-"
            seconds = thread_time() - start
            self.modules[source.name] += 1
            self.seconds[source.name] += seconds
            self.here += seconds * (threading.get_ident() == here)
            return code

        cuda_compile._compile = counted
        try:
            yield
        finally:
            cuda_compile._compile = compile_one

    def __str__(self) -> str:
        names = sorted(self.modules, key=lambda name: (-self.seconds[name], -self.modules[name]))
        rows = [f"  {name:28} {self.modules[name]:4} {self.seconds[name]:8.2f} s" for name in names]
        return "\n".join(
            [*rows, f"  {'all':28} {self.modules.total():4} {sum(self.seconds.values()):8.2f} s"]
        )


def problems_of(given: argparse.Namespace) -> list[Problem]:
    """The different convolutions of a training step."""
    layers = [layer for suite in given.suite.split(",") for layer in load(suite)]
    if given.batch:
        layers = [layer.with_batch(given.batch) for layer in layers]
    layers = towards_each([layer.stored(given.dtype, given.layout) for layer in layers], "all")
    return list(dict.fromkeys(layer.problem for layer in layers))


def plans_of(problems: list[Problem], given: argparse.Namespace) -> list[Plan]:
    handle = jd.Handle(targets.on_paper(given.device))  # type: ignore[arg-type]
    return [handle.plan(problem) for problem in problems]


def families(problems: list[Problem], given: argparse.Namespace) -> None:
    """Print what each family takes, and planning."""
    count = Count()
    with count.counting(not given.count):
        start = thread_time()
        plans_of(problems, given)
        seconds = thread_time() - start - count.here
    print(f"{count}\nplanned in {seconds:.2f} s of processor beside that")


def again(problems: list[Problem], given: argparse.Namespace) -> None:
    """Print how long importing and plans from the disk cache took."""
    begun, own, start, count = process_time(), thread_time(), perf_counter(), Count()
    with count.counting(True):
        plans_of(problems, given)
    print(
        f"again: {perf_counter() - start:.2f} s for all plans from the disk cache, {process_time() - begun:.2f} of "
        f"processor, {count.modules.total()} modules compiled; before that {begun:.2f} s of processor for imports, "
        f"{own:.2f} of this thread"
    )


def shapes(problems: list[Problem], given: argparse.Namespace) -> None:
    """Print what other shapes of the same layers cost, behind the first ones."""
    plans_of([problems[0]], given)  # imports
    for images in _OTHER_IMAGES:
        count, milliseconds = Count(), []
        others = problems_of(argparse.Namespace(**{**vars(given), "batch": images}))
        with count.counting(not given.count):
            for problem in others:
                before, start = count.modules.total(), thread_time()
                plans_of([problem], given)
                if count.modules.total() == before:
                    milliseconds.append(1e3 * (thread_time() - start))
        milliseconds.sort()
        middle, most = (milliseconds[int(share * (len(milliseconds) - 1))] for share in (0.5, 0.9))
        print(
            f"{images} images: {count.modules.total()} modules more; {len(milliseconds)} of {len(others)} plans needed "
            f"none: {middle:.1f} ms of processor each by the median, nine of ten {most:.1f} at most"
        )


def step(problems: list[Problem], given: argparse.Namespace) -> None:
    """Print how long it takes until all run."""
    start, used = perf_counter(), process_time()
    if given.process == "threads":
        shares = [problems[number :: given.workers] for number in range(given.workers)]
        threads = [
            threading.Thread(target=copy_context().run, args=(plans_of, share, given)) for share in shares
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if given.process == "ahead":
        handle = jd.Handle(targets.on_paper(given.device))  # type: ignore[arg-type]
        compile_ahead(handle, [lambda one=one: current_handle().plan(one) for one in problems])  # type: ignore[misc]
        print(f"ahead: {perf_counter() - start:.1f} s until all is compiled")
    plans = plans_of(problems, given)
    first, waiting = perf_counter() - start, sum(plan.pending is not None for plan in plans)
    before = sum(plan.seconds for plan in plans)
    for plan in plans:
        plan.wait()
    print(
        f"{given.process:10}  {first:5.1f} s until all run, {waiting} stand-ins, {1e3 * before:.2f} ms a step, then "
        f"{1e3 * sum(plan.seconds for plan in plans):.2f} ms, after {perf_counter() - start:.1f} s; "
        f"{process_time() - used:.1f} s of processor"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", default="mobilenet_v2")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--math", default="tf32")
    parser.add_argument("--dtype")
    parser.add_argument("--layout")
    parser.add_argument("--device", default="sm_90a")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--process", help=argparse.SUPPRESS)  # what a process is to do, and with which cache
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.batch is None and given.suite == "mobilenet_v2":
        given.batch = 32
    problems = problems_of(given)
    if given.process:
        mode = "background" if given.process == "background" else "wait"
        with jd.settings(cache_dir=given.folder, compile=mode, math=given.math, log="off"):
            {"families": families, "again": again, "shapes": shapes}.get(given.process, step)(problems, given)
        return
    print(f"{len(problems)} problems of {given.suite} on {given.device}", flush=True)
    with tempfile.TemporaryDirectory() as kept:
        for process in (
            ("families", "shapes")
            if given.count
            else ("families", "again", "shapes", "wait", "background", "threads", "ahead")
        ):
            with tempfile.TemporaryDirectory() as empty:
                folder = kept if process in ("families", "again", "shapes") else empty
                subprocess.run(
                    [sys.executable, *sys.argv, "--process", process, "--folder", folder], check=True
                )


if __name__ == "__main__":
    main()
