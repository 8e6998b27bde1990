"""`jitdnn warm`: plan and compile suites, nets or problems into the disk cache before anybody waits for them.

What that made can be written to a file, and taken in by other machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from jitdnn.bench.suites import Layer, load, towards_each
from jitdnn.caffe import load_net
from jitdnn.cli.console import progress, say
from jitdnn.errors import InvalidArgument
from jitdnn.ops.warm import Recorder, Wanted, Warmed, warm
from jitdnn.planner.code_file import export_code, merge_code
from jitdnn.problems import parse
from jitdnn.rtcg.use import Use, noting
from jitdnn.settings import settings


def run_warm(
    names: Sequence[str],
    direction: str,
    batch: int | None,
    threads: int | None,
    workers: int | None,
    merge: Sequence[Path],
    export: Path | None,
) -> int:
    """Take in files, plan and compile, write a file, and say what that came to.

    Returns 1 if any problem has no plan, or nothing of a file can be used, else 0.
    """
    if not (names or merge or export):
        raise InvalidArgument(
            "nothing to warm: give problem strings, suites or files, or --merge or --export"
        )
    code = max([_merge(path) for path in merge], default=0)
    with noting() as use:
        code = max(code, _warm(names, direction, batch, threads, workers, use)) if names else code
    if export is not None:
        done = export_code(export, use.keys, use.looked_up) if names else export_code(export)
        say(f"{export}: {done.modules} modules and {done.times} times written, sha256 {done.digest}")
    return code


def _merge(path: Path) -> int:
    merged = merge_code(path)
    say(
        f"{path} (sha256 {merged.digest}): {merged.taken} modules and {merged.times} times taken in, "
        f"{merged.known} modules were here; their code runs as this user's own from now on"
    )
    for left in merged.left_out:
        say(f"{path}: {left}")
    return 1 if merged.left_out and not (merged.taken or merged.known) else 0


def _warm(
    names: Sequence[str],
    direction: str,
    batch: int | None,
    threads: int | None,
    workers: int | None,
    use: Use,
) -> int:
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
            use.keys |= result.used.keys
            use.looked_up |= result.used.looked_up
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
