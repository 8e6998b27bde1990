"""How long the first step of a network waits for NVRTC, with `compile="wait"` and `"background"`. No GPU is needed.

    python benchmarks/first_step.py [--suite mobilenet_v2] [--batch 32] [--math tf32] [--device sm_90a]

Every convolution of a suite, in all directions, is planned for a GPU on paper, with an empty cache for each mode: until
then nothing of the step could run. Printed are the seconds until each problem has a kernel, how many of these
stand in for another one, the expected time of a step with them and with the chosen ones, and the seconds until all of
those are there.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import tempfile
from time import perf_counter

import jitdnn as jd
from jitdnn import targets
from jitdnn.bench.suites import load, towards_each
from jitdnn.problems import Problem


def step(mode: str, problems: list[Problem], device: str, math: str) -> str:
    """Plan all problems in one mode, as a line of text."""
    with (
        tempfile.TemporaryDirectory() as folder,
        jd.settings(cache_dir=folder, compile=mode, math=math, log="off"),
    ):
        handle = jd.Handle(targets.on_paper(device))  # type: ignore[arg-type]
        start = perf_counter()
        plans = [handle.plan(problem) for problem in problems]
        first, waiting = perf_counter() - start, sum(plan.pending is not None for plan in plans)
        before = sum(plan.seconds for plan in plans)
        for plan in plans:
            plan.wait()
        after = sum(plan.seconds for plan in plans)
        return (
            f"{mode:10}  {first:6.1f} s until all run, {waiting} stand-ins, {1e3 * before:.2f} ms a step, then "
            f"{1e3 * after:.2f} ms, after {perf_counter() - start:.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", default="mobilenet_v2")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--math", default="tf32")
    parser.add_argument("--device", default="sm_90a")
    given = parser.parse_args()
    layers = towards_each([layer.with_batch(given.batch) for layer in load(given.suite)], "all")
    problems = list(dict.fromkeys(layer.problem for layer in layers))
    print(f"{len(problems)} problems of {given.suite} on {given.device}")
    for mode in ("wait", "background"):
        print(step(mode, problems, given.device, given.math), flush=True)


if __name__ == "__main__":
    main()
