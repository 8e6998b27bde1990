"""Inference of networks in PyTorch: eager, `torch.compile` with and without freezing, and `jitdnn` fused graphs.

"compile_ours" and "freezing_ours" are `torch.compile` with our pass inside of Inductor.

    python benchmarks/torch_models.py [MODEL ...] [--batch N ...] [--threads N ...] [--peer NAME ...] [--side 224]
        [--seconds 10] [--measure first|never] [--processor-time] [--json FILE]

Milliseconds of one call, the least of all samples, which are taken in turns in one process; before that every peer's
result is held against eager's in float64. "eager" and "eager_last" lie in memory with channels first and last.
With --processor-time it is the processor's time, of all threads: on a machine whose cores others use, that of one
thread says more than the clock. Each number of threads runs in a process of its own, since pools of threads that wait
take cores from one another.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

PEERS = ("eager", "eager_last", "compile", "freezing", "compile_ours", "freezing_ours", "fused")
TOLERANCE = 1e-4  # of the largest element


def callables(model: Any, x: Any, peers: list[str], measure: str) -> dict[str, Callable[[], Any]]:
    """What each peer runs."""
    import copy

    import torch
    import torch._inductor.config as inductor

    import jitdnn.torch as jt

    def compiled(peer: str) -> Callable[[], Any]:
        own = copy.deepcopy(model)
        # a function of its own for each: what Dynamo keeps for one piece of code it would hand to both
        space: dict[str, Any] = {"own": own}
        exec(
            compile("def run(x):\n return own(x)", f"<{peer}>", "exec"),
            space,
        )
        function = torch.compile(space["run"])
        ours = jt.InductorPass(measure=measure) if peer.endswith("_ours") else None
        with inductor.patch(freezing=peer.startswith("freezing"), post_grad_custom_pre_pass=ours):
            function(x)
        return lambda: function(x)

    found: dict[str, Callable[[], Any]] = {}
    for peer in peers:
        if peer == "eager":
            found[peer] = lambda: model(x)
        elif peer == "eager_last":
            last, y = (copy.deepcopy(o).to(memory_format=torch.channels_last) for o in (model, x))
            found[peer] = lambda last=last, y=y: last(y)  # type: ignore[misc]
        elif peer != "fused":
            found[peer] = compiled(peer)
        else:
            fused = jt.fuse(model, measure=measure)
            found[peer] = lambda fused=fused: fused(x)  # type: ignore[misc]
    return found


def row(
    name: str,
    batch: int,
    side: int,
    peers: list[str],
    seconds: float,
    measure: str,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Milliseconds of every peer for one model."""
    import torch

    from torch_models import MODELS, settled

    model = settled(MODELS[name]())
    x = torch.randn(batch, 3, side, side)
    wanted = model.double()(x.double())
    model.float()
    run = callables(model, x, peers, measure)
    for peer, function in run.items():
        error = (function().double() - wanted).abs().max() / wanted.abs().max()
        if not error <= TOLERANCE:
            raise SystemExit(f"{name} n{batch}: {peer} is off by {error:.1e} of the largest element")
    best = dict.fromkeys(run, math.inf)
    end = perf_counter() + seconds
    while perf_counter() < end:
        for peer, function in run.items():
            function()  # its threads wake up, those of the one before go to sleep
            for _ in range(2):
                begin = clock()
                function()
                best[peer] = min(best[peer], clock() - begin)
    return {
        "model": name,
        "batch": batch,
        "threads": torch.get_num_threads(),
        **{k: 1e3 * v for k, v in best.items()},
    }


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def report(rows: list[dict[str, Any]], peers: list[str]) -> None:
    """The table, and the geometric means of every peer's time over that of the fused graph."""
    _say(f"{'model':18s}{'n':>3s}{'threads':>8s}" + "".join(f"{peer:>15s}" for peer in peers))
    for one in rows:
        times = "".join(f"{one[peer]:15.2f}" for peer in peers)
        _say(f"{one['model']:18s}{one['batch']:3d}{one['threads']:8d}{times}")
    if "fused" in peers and rows:
        for peer in peers:
            if peer != "fused":
                mean = math.exp(sum(math.log(one[peer] / one["fused"]) for one in rows) / len(rows))
                worst = min(rows, key=lambda one: one[peer] / one["fused"])
                _say(
                    f"{peer} / fused: geometric mean {mean:.2f}, least {worst[peer] / worst['fused']:.2f} "
                    f"({worst['model']} n{worst['batch']}, {worst['threads']} threads)"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--measure", choices=("first", "never"), default="first")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if len(arguments.threads) > 1:
        for threads in arguments.threads:
            words = [*arguments.models, "--threads", str(threads), "--batch", *map(str, arguments.batch)]
            words += ["--peer", *arguments.peer, "--side", str(arguments.side)]
            words += ["--seconds", str(arguments.seconds), "--measure", arguments.measure]
            words += ["--processor-time"] * arguments.processor_time
            subprocess.run([sys.executable, __file__, *words], check=True)
        return
    import torch

    from torch_models import MODELS

    torch.set_num_threads(arguments.threads[0])
    torch.manual_seed(0)
    clock = process_time if arguments.processor_time else perf_counter
    with torch.no_grad():
        for name in arguments.models or MODELS:
            for batch in arguments.batch:
                rows.append(
                    row(
                        name,
                        batch,
                        arguments.side,
                        arguments.peer,
                        arguments.seconds,
                        arguments.measure,
                        clock,
                    )
                )
                sys.stderr.write(json.dumps(rows[-1]) + "\n")
    report(rows, arguments.peer)
    if arguments.json is not None:
        arguments.json.write_text("\n".join(map(json.dumps, rows)) + "\n")


if __name__ == "__main__":
    main()
