"""Inference of networks in PyTorch: eager, `torch.compile` with and without freezing, and this library's ways.

    python benchmarks/torch_models.py [MODEL ...] [--batch N ...] [--threads N ...] [--peer NAME ...] [--side 224]
        [--seconds 10] [--limit 900] [--measure first|never] [--processor-time]
        [--memory-limit 24MiB] [--turns FOLDER] [--json FILE]

Milliseconds of one call, the least of all samples, which are taken in turns in one process; before that every peer's
result is held against eager's in float64. `torch_peers.py` says what the peers are. With --processor-time it is the
processor's time, of all threads: on a machine whose cores others use, that of one thread says more than the clock.
Several models, batches or numbers of threads run in a process each, which may take --limit seconds, since pools of
threads that wait take cores from one another and compiled graphs memory. --json FILE has the rows of all, also of those
before a stop, and what is in it already is not measured again. "first" has the seconds of each peer's first call, with
compiling and measuring; a peer that fails is named in "failed", and the others go on. `docs/torch_results.py` draws it.
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

from torch_peers import (
    INFERENCE,
    add,
    cells,
    children,
    conditions,
    failed,
    inference,
    is_cell,
    names,
    network,
    ratio_lines,
    read,
    turn,
)

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
    failures: dict[str, str] = {}
    for peer in peers:
        begin = perf_counter()
        try:
            function = inference(peer, model, x, arguments.measure, arguments.memory_limit)
            error = float((function().double() - wanted).abs().max() / wanted.abs().max())
        except Exception as problem:  # whatever a compiler raises: the others are measured
            failures[peer] = f"{type(problem).__name__}: {str(problem)[:200]}"
            continue
        first[peer] = perf_counter() - begin
        if error <= TOLERANCE:
            run[peer] = function
        else:
            failures[peer] = f"off by {error:.1e} of the largest element"
    best = dict.fromkeys(run, math.inf)
    with turn(arguments.turns):
        end = perf_counter() + arguments.seconds
        while perf_counter() < end:
            for peer, function in run.items():
                function()  # its threads wake up, those of the one before go to sleep
                for _ in range(2):
                    begin = clock()
                    function()
                    best[peer] = min(best[peer], clock() - begin)
    return {
        **cell(arguments, name, batch, torch.get_num_threads()), **conditions(), "first": first, "failed": failures,
        **{k: 1e3 * v for k, v in best.items()},
    }  # fmt: skip


def cell(arguments: argparse.Namespace, name: str, batch: int, threads: int) -> dict[str, Any]:
    """What tells a row from others."""
    return {
        "model": name, "what": "inference", "batch": batch, "threads": threads, "side": arguments.side,
        "measure": arguments.measure, "clock": "processor" if arguments.processor_time else "wall",
        "memory_limit": arguments.memory_limit,
    }  # fmt: skip


def report(rows: list[dict[str, Any]], peers: list[str]) -> None:
    """The table, and the geometric means of every peer's time over that of the fused graph."""
    lines = [f"{'model':18s}{'n':>3s}{'threads':>8s}" + "".join(f"{peer:>15s}" for peer in peers)]
    for one in rows:
        lines.append(f"{one['model']:18s}{one['batch']:3d}{one['threads']:8d}{cells(one, peers, 15, 2)}")
    lines += ratio_lines(rows, peers, ("fused",), "fused")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--peer", nargs="+", choices=INFERENCE, default=[one for one in INFERENCE if one != "fused_limited"]
    )
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--limit", type=float, default=900.0)
    parser.add_argument("--measure", choices=("first", "never"), default="first")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--memory-limit", help="of the peer fused_limited")
    parser.add_argument("--turns", type=Path, help="a folder: as many processes time at once as it has files")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    models = arguments.models or names()
    failures: list[str] = []
    if len(models) * len(arguments.batch) * len(arguments.threads) > 1:
        same = ["--peer", *arguments.peer, "--side", str(arguments.side), "--seconds", str(arguments.seconds)]
        same += ["--measure", arguments.measure, *["--processor-time"] * arguments.processor_time]
        if arguments.memory_limit is not None:
            same += ["--memory-limit", arguments.memory_limit]
        calls = [
            (
                {**cell(arguments, name, batch, threads), "peers": arguments.peer},
                [name, "--threads", str(threads), "--batch", str(batch), *same],
            )
            for threads, name, batch in product(arguments.threads, models, arguments.batch)
        ]
        rows, failures = children(__file__, calls, arguments.limit, arguments.json)
    else:
        import torch

        torch.set_num_threads(arguments.threads[0])
        arguments.models = models
        asked = cell(arguments, models[0], arguments.batch[0], arguments.threads[0])
        rows = [one for one in read(arguments.json) if is_cell(one, {**asked, "peers": arguments.peer})]
        with torch.no_grad():
            rows = rows or [row(arguments, process_time if arguments.processor_time else perf_counter)]
        sys.stderr.write(json.dumps(rows[0]) + "\n")
        if arguments.json is not None:
            add(rows, arguments.json)
    report(rows, arguments.peer)
    failures += failed(rows)
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
