"""Training steps of networks in PyTorch: eager, `torch.compile`, and this library's ways, in turns in one process.

    python benchmarks/torch_training.py [MODEL ...] [--batch 8] [--threads 1] [--peer NAME ...] [--side 224]
        [--seconds 20] [--limit 1200] [--measure first|never] [--processor-time] [--turns FOLDER] [--json FILE]

A step is the forward pass in training mode, the cross-entropy and the backward pass. Milliseconds are the least of all
samples, taken in turns. Before that gradients of the second step are held against eager's in float64: as one vector
ours may be off three times as far as the worst of torch's own in float32. Where they are farther off all peers are
compared anew, each with a float64 step that takes the sides which its own rectifiers and maxima took
(`torch_gradients.py`; what follows normalizations runs by itself there, as hooks watch it), by the same rule.
`torch_peers.py` says what the peers are. With --processor-time it is the processor's time of all threads. Several
models run in a process each, which may take --limit seconds. --json FILE has the rows of all, also of those before a
stop, and what is in it already is not measured again. "first" has the seconds of each peer's first step, with
compiling and measuring; a peer that fails is named in "failed", and the others go on. `docs/torch_results.py` draws
it.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from torch_peers import (
    OURS,
    TRAINING,
    add,
    cells,
    children,
    conditions,
    failed,
    is_cell,
    names,
    network,
    ratio_lines,
    read,
    timed,
    training,
    turn,
    without_dropout,
)


def row(arguments: argparse.Namespace, clock: Callable[[], float]) -> dict[str, Any]:
    """Milliseconds of a step of every peer for one model."""
    import torch
    from torch_gradients import NEAR, gradients, replayed, watched

    name, batch, side, peers = arguments.models[0], arguments.batch, arguments.side, arguments.peer
    model = without_dropout(network(name)).train()
    x, labels = torch.randn(batch, 3, side, side), torch.randint(0, 10, (batch,))
    exact = copy.deepcopy(model).double()
    torch.nn.functional.cross_entropy(exact(x.double()), labels).backward()
    wanted = gradients(exact)
    del exact
    owns, steps, errors, first, failures = {}, {}, {}, {}, {}
    for peer in sorted({"eager", *peers}, key=OURS.__contains__):  # torch's own first
        try:
            own, step = training(peer, model, x, labels, arguments.measure)
            first[peer] = timed(step)
            step()  # from the second one on what follows normalizations is one operation with them
            errors[peer] = float((gradients(own) - wanted).norm() / wanted.norm())
            owns[peer], steps[peer] = own, step
        except Exception as problem:  # whatever a compiler raises: the others are measured
            failures[peer] = f"{type(problem).__name__}: {str(problem)[:200]}"
    wrong = too_far(errors)
    if wrong:
        errors, wrong = {}, {}
        for peer, step in steps.items():
            with watched(owns[peer]) as sides:
                step()
            exact_gradients, far = replayed(model, sides, x, labels)
            errors[peer] = float((gradients(owns[peer]) - exact_gradients).norm() / exact_gradients.norm())
            if far > NEAR:
                wrong[peer] = (
                    f"a rectifier or maximum is off by {far:.1e} of its layer, and may be by {NEAR:.1e}"
                )
        wrong = {**too_far(errors), **wrong}
    failures.update(wrong)
    for peer in wrong:
        del steps[peer]
    asked = [peer for peer in peers if peer in steps]
    best = dict.fromkeys(asked, math.inf)
    with turn(arguments.turns):
        end = perf_counter() + arguments.seconds
        while perf_counter() < end:
            for peer in asked:
                for _ in range(2):  # of the first, threads of the one before go to sleep
                    begin = clock()
                    steps[peer]()
                    best[peer] = min(best[peer], clock() - begin)
    times = {peer: 1e3 * value for peer, value in best.items()}
    found = cell(arguments, name, torch.get_num_threads())
    return {**found, **conditions(), "first": first, "failed": failures, **times}


def too_far(errors: dict[str, float]) -> dict[str, str]:
    """What is wrong with the peers whose gradients are off three times as far as the worst of torch's own."""
    most = 3 * max(error for peer, error in errors.items() if peer not in OURS) + 1e-6
    return {
        peer: f"gradients are off by {error:.1e}, and may be by {most:.1e}"
        for peer, error in errors.items()
        if not error <= most
    }


def cell(arguments: argparse.Namespace, name: str, threads: int) -> dict[str, Any]:
    """What tells a row from others."""
    return {
        "model": name, "what": "training", "batch": arguments.batch, "threads": threads, "side": arguments.side,
        "measure": arguments.measure, "clock": "processor" if arguments.processor_time else "wall",
    }  # fmt: skip


def report(rows: list[dict[str, Any]], peers: list[str]) -> None:
    """The table, and geometric means of the others' times over the best one of ours."""
    lines = [f"{'model':18s}{'n':>3s}{'threads':>8s}" + "".join(f"{peer:>16s}" for peer in peers)]
    for one in rows:
        lines.append(f"{one['model']:18s}{one['batch']:3d}{one['threads']:8d}{cells(one, peers, 16, 1)}")
    lines += ratio_lines(rows, peers, [peer for peer in peers if peer in OURS], "ours")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer", nargs="+", choices=TRAINING, default=list(TRAINING))
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--limit", type=float, default=1200.0)
    parser.add_argument("--measure", choices=("first", "never"), default="first")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--turns", type=Path, help="a folder: as many processes time at once as it has files")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.models = arguments.models or names()
    failures: list[str] = []
    if len(arguments.models) > 1:
        same = ["--batch", str(arguments.batch), "--threads", str(arguments.threads)]
        same += [
            "--peer",
            *arguments.peer,
            "--side",
            str(arguments.side),
            "--seconds",
            str(arguments.seconds),
        ]
        same += ["--measure", arguments.measure, *["--processor-time"] * arguments.processor_time]
        calls = [
            ({**cell(arguments, name, arguments.threads), "peers": arguments.peer}, [name, *same])
            for name in arguments.models
        ]
        rows, failures = children(__file__, calls, arguments.limit, arguments.json)
    else:
        import torch

        torch.set_num_threads(arguments.threads)
        asked = cell(arguments, arguments.models[0], arguments.threads)
        rows = [one for one in read(arguments.json) if is_cell(one, {**asked, "peers": arguments.peer})]
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
