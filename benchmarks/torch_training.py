"""Training steps of networks in PyTorch: eager, `torch.compile`, and converted models, in turns in one process.

    python benchmarks/torch_training.py [MODEL ...] [--batch 8] [--threads 1] [--peer NAME ...] [--side 224]
        [--seconds 20] [--processor-time] [--json FILE]

A step is the forward pass in training mode, the cross-entropy and the backward pass. Milliseconds are the least of all
samples, taken in turns. Before that gradients are held against eager's in float64: as one vector ours may be off three
times as far as the worst of torch's own in float32. "_last" lies in memory with channels last. With
--processor-time it is the processor's time of all threads.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

PEERS = ("eager", "eager_last", "compile", "converted", "converted_last")
OURS = ("converted", "converted_last")


def step_of(peer: str, model: Any, x: Any, labels: Any) -> tuple[Any, Callable[[], None]]:
    """A peer's own model, and what runs one step of it."""
    import torch

    import jitdnn.torch as jt

    own, y = copy.deepcopy(model), x
    if peer.endswith("_last"):
        own, y = own.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    if peer.startswith("converted"):
        jt.convert(own)
    run = torch.compile(own) if peer == "compile" else own

    def step() -> None:
        for parameter in own.parameters():
            parameter.grad = None
        torch.nn.functional.cross_entropy(run(y), labels).backward()

    return own, step


def gradients(model: Any) -> Any:
    """All gradients of a model as one vector of float64."""
    import torch

    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


def row(
    name: str, batch: int, side: int, peers: list[str], seconds: float, clock: Callable[[], float]
) -> Any:
    """Milliseconds of a step of every peer for one model."""
    import torch

    from torch_models import MODELS, settled

    model = settled(MODELS[name]()).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # peers draw other numbers
    x, labels = torch.randn(batch, 3, side, side), torch.randint(0, 10, (batch,))
    exact = copy.deepcopy(model).double()
    torch.nn.functional.cross_entropy(exact(x.double()), labels).backward()
    wanted = gradients(exact)
    del exact
    steps, errors = {}, {}
    for peer in sorted({"eager", *peers}, key=OURS.__contains__):  # torch's own first
        own, steps[peer] = step_of(peer, model, x, labels)
        steps[peer]()
        errors[peer] = float((gradients(own) - wanted).norm() / wanted.norm())
    most = 3 * max(error for peer, error in errors.items() if peer not in OURS) + 1e-6
    if any(errors[peer] > most for peer in peers):
        raise SystemExit(f"{name}: gradients are off by {errors}")
    best = dict.fromkeys(peers, math.inf)
    end = perf_counter() + seconds
    while perf_counter() < end:
        for peer in peers:
            for _ in range(2):  # of the first, threads of the one before go to sleep
                begin = clock()
                steps[peer]()
                best[peer] = min(best[peer], clock() - begin)
    times = {peer: 1e3 * value for peer, value in best.items()}
    return {"model": name, "batch": batch, "threads": torch.get_num_threads(), **times}


def report(rows: list[dict[str, Any]], peers: list[str]) -> None:
    """The table, and geometric means of the others' times over the better one of ours."""
    lines = [f"{'model':18s}{'n':>3s}{'threads':>8s}" + "".join(f"{peer:>16s}" for peer in peers)]
    for one in rows:
        times = "".join(f"{one[peer]:16.1f}" for peer in peers)
        lines.append(f"{one['model']:18s}{one['batch']:3d}{one['threads']:8d}{times}")
    ours = [peer for peer in peers if peer in OURS]
    for peer in [peer for peer in peers if peer not in OURS] if ours and rows else []:
        ratios = [one[peer] / min(one[own] for own in ours) for one in rows]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"{peer} / ours: geometric mean {mean:.2f}, least {min(ratios):.2f}")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch

    from torch_models import MODELS

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    clock = process_time if arguments.processor_time else perf_counter
    rows = []
    for name in arguments.models or MODELS:
        rows.append(row(name, arguments.batch, arguments.side, arguments.peer, arguments.seconds, clock))
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
    report(rows, arguments.peer)
    if arguments.json is not None:
        arguments.json.write_text("\n".join(map(json.dumps, rows)) + "\n")


if __name__ == "__main__":
    main()
