"""Inference of networks in PyTorch: eager, `torch.compile` with and without freezing, and this library's ways.

    python benchmarks/torch_models.py [MODEL ...] [--batch N ...] [--threads N ...] [--peer NAME ...] [--side 224]
        [--seconds 10] [--limit 900] [--measure first|never] [--processor-time] [--json FILE]

Milliseconds of one call, the least of all samples, which are taken in turns in one process; before that every peer's
result is held against eager's in float64. `torch_peers.py` says what the peers are. With --processor-time it is the
processor's time, of all threads: on a machine whose cores others use, that of one thread says more than the clock.
Several models, batches or numbers of threads run in a process each, which may take --limit seconds, since pools of
threads that wait take cores from one another and compiled graphs memory; --json has the rows of all, also of those
before a stop. "first" has the seconds of each peer's first call, with compiling and measuring.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from torch_peers import INFERENCE, children, inference, names, network, write

TOLERANCE = 1e-4  # of the largest element


def row(arguments: argparse.Namespace, clock: Callable[[], float]) -> dict[str, Any]:
    """Milliseconds of every peer for one model."""
    import torch

    name, batch, side, peers = arguments.models[0], arguments.batch[0], arguments.side, arguments.peer
    model = network(name)
    x = torch.randn(batch, 3, side, side)
    wanted = model.double()(x.double())
    model.float()
    run: dict[str, Callable[[], Any]] = {}
    first: dict[str, float] = {}
    for peer in peers:
        begin = perf_counter()
        run[peer] = inference(peer, model, x, arguments.measure)
        error = (run[peer]().double() - wanted).abs().max() / wanted.abs().max()
        first[peer] = perf_counter() - begin
        if not error <= TOLERANCE:
            raise SystemExit(f"{name} n{batch}: {peer} is off by {error:.1e} of the largest element")
    best = dict.fromkeys(run, math.inf)
    end = perf_counter() + arguments.seconds
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
        "first": first,
        **{k: 1e3 * v for k, v in best.items()},
    }


def report(rows: list[dict[str, Any]], peers: list[str]) -> None:
    """The table, and the geometric means of every peer's time over that of the fused graph."""
    lines = [f"{'model':18s}{'n':>3s}{'threads':>8s}" + "".join(f"{peer:>15s}" for peer in peers)]
    for one in rows:
        times = "".join(f"{one[peer]:15.2f}" for peer in peers)
        lines.append(f"{one['model']:18s}{one['batch']:3d}{one['threads']:8d}{times}")
    for peer in peers if "fused" in peers and rows else []:
        if peer != "fused":
            mean = math.exp(sum(math.log(one[peer] / one["fused"]) for one in rows) / len(rows))
            worst = min(rows, key=lambda one: one[peer] / one["fused"])
            lines.append(
                f"{peer} / fused: geometric mean {mean:.2f}, least {worst[peer] / worst['fused']:.2f} "
                f"({worst['model']} n{worst['batch']}, {worst['threads']} threads)"
            )
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--peer", nargs="+", choices=INFERENCE, default=list(INFERENCE))
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--limit", type=float, default=900.0)
    parser.add_argument("--measure", choices=("first", "never"), default="first")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    models = arguments.models or names()
    failures: list[str] = []
    if len(models) * len(arguments.batch) * len(arguments.threads) > 1:
        same = ["--peer", *arguments.peer, "--side", str(arguments.side), "--seconds", str(arguments.seconds)]
        same += ["--measure", arguments.measure, *["--processor-time"] * arguments.processor_time]
        calls = [
            [name, "--threads", str(threads), "--batch", str(batch), *same]
            for threads, name, batch in product(arguments.threads, models, arguments.batch)
        ]
        rows, failures = children(__file__, calls, arguments.limit, arguments.json)
    else:
        import torch

        torch.set_num_threads(arguments.threads[0])
        arguments.models = models
        with torch.no_grad():
            rows = [row(arguments, process_time if arguments.processor_time else perf_counter)]
        sys.stderr.write(json.dumps(rows[0]) + "\n")
        if arguments.json is not None:
            write(rows, arguments.json)
    report(rows, arguments.peer)
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
