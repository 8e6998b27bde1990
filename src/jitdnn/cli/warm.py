"""`jitdnn warm`: plan and compile suites, nets or problems into the disk cache before anybody waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from jitdnn.bench.suites import Layer, load, towards_each
from jitdnn.caffe import load_net
from jitdnn.cli.console import progress, say
from jitdnn.ops.warm import Recorder, Wanted, Warmed, warm
from jitdnn.problems import parse
from jitdnn.settings import settings


def run_warm(
    names: Sequence[str], direction: str, batch: int | None, threads: int | None, workers: int | None
) -> int:
    """Plan, compile, and say what that came to. Returns 1 if any problem has no plan, else 0."""
    wanted: list[Wanted] = []
    for name in names:
        if name.endswith(".prototxt"):
            wanted += of_net(name)
        else:
            layers: Sequence[Layer] = [Layer(parse(name))] if " " in name else load(name)
            if batch is not None:
                layers = [layer.with_batch(batch) for layer in layers]
            wanted += [Wanted(layer.problem) for layer in towards_each(layers, direction)]
    wanted = list(dict.fromkeys(wanted))
    found: list[Warmed] = []
    start = perf_counter()
    overrides = {} if threads is None else {"threads": threads}
    with progress(len(wanted), "planning and compiling") as advance:

        def note(result: Warmed) -> None:
            found.append(result)
            advance(len(found), f"{result.problem.kind} {result.algorithm or ''}")

        warm(wanted, workers=workers, progress=note, **overrides)
    for result in found:
        if result.failure is not None:
            say(f"FAILED {result.problem}: {result.failure}")
    say(summary(found, perf_counter() - start))
    return 1 if any(result.failure for result in found) else 0


def summary(found: Sequence[Warmed], seconds: float) -> str:
    """One line: how many plans, how many were compiled, and how long each took."""
    done = [result for result in found if result.failure is None]
    compiled = [result for result in done if result.compiled]
    text = f"{len(done)} plans in {seconds:.1f} s: {len(compiled)} compiled"
    if compiled:
        slowest = max(compiled, key=lambda result: result.seconds)
        mean = sum(result.seconds for result in compiled) / len(compiled)
        text += f" ({1e3 * mean:.0f} ms each, {1e3 * slowest.seconds:.0f} ms at most for {slowest.problem})"
    return f"{text}, {len(done) - len(compiled)} from the cache"


def of_net(source: str) -> list[Wanted]:
    """Every plan that training and testing a net asks for: found by running it without its kernels."""
    with settings(log="off"), Recorder() as recorder:
        net = load_net(source, "TRAIN", seed=0)
        net.forward()
        net.backward()
        load_net(source, "TEST", seed=0).forward()
    return recorder.wanted
