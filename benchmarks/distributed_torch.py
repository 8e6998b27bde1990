"""Images a second of a model in PyTorch under DDP and FSDP2, stock and converted, of one and of two processes on gloo.

    python benchmarks/distributed_torch.py --model resnet18 --batch 4 --side 64

A step is forward, cross-entropy, backward and SGD's update, --batch images for each process. Both models are in each
process, and take turns; a figure is the median of all turns. "scaling" is images a second of all processes, divided
by those of one times their number; "against stock" the median of how many times as fast as stock's a turn was.

Before that every layer is held against float64 on the operands that it has in a step, by the bound that its
algorithm declares. "gradients off" is what the whole gradient is off float64's, of both models, and of float64 itself
when its weights are rounded to float32 somewhere else: where batch normalization has two values a channel, as with
--batch 2 --side 32, that is more than rounding, whoever computes it. "gradients apart": what the wrapping has
reduced, from stock's. Lines of JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from process_groups import Ranks

WRAPS = ("ddp", "fsdp2")


def wrapped(model: Any, wrap: str) -> Any:
    """The model under data parallel training."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if wrap == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for child in model.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def work(group: Any, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """One process: seconds of a step in each turn, by the wrapping and the model, and how far gradients are."""
    import torch
    import torch.distributed as dist

    import jitdnn.torch as jt
    from torch_zoo import MODELS, settled

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    plain = settled(MODELS[options.model]()).train()
    for module in plain.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # both draw other numbers
    torch.manual_seed(group.rank)
    x = torch.randn(options.batch, 3, options.side, options.side)
    labels = torch.randint(0, 10, (options.batch,))
    off = _check(plain, x, labels)
    rows: dict[str, dict[str, Any]] = {}
    for wrap in WRAPS:
        models = {"stock": copy.deepcopy(plain), "converted": jt.convert(copy.deepcopy(plain))}
        wrapped_models = {name: wrapped(model, wrap) for name, model in models.items()}
        steps = {name: _step(model, x, labels) for name, model in wrapped_models.items()}
        apart = _apart(models, steps)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(options.turns + 1):
            for name, step in steps.items():
                dist.barrier()
                begin = perf_counter()
                for _ in range(options.steps):
                    step()
                if turn:  # the first is warming
                    times[name].append((perf_counter() - begin) / options.steps)
        rows[wrap] = {**times, "apart": apart, "off": off}
    return rows


def _apart(models: dict[str, Any], steps: dict[str, Callable[[], None]]) -> float:
    """How far reduced gradients are from stock's, relative to them, all as one vector, behind a first step."""
    import torch

    found = []
    for name, model in models.items():
        steps[name]()
        grads = [each.grad for each in model.parameters() if each.grad is not None]
        whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in grads]
        found.append(torch.cat([each.double().flatten() for each in whole]))
    stock, ours = found
    return float((ours - stock).norm() / stock.norm())


def _check(plain: Any, x: Any, labels: Any) -> dict[str, float]:
    """Hold each layer against float64; what whole gradients are off."""
    import torch

    import jitdnn.torch as jt
    from torch_layers import layer_errors

    def loss(model: Any) -> Any:
        given = x.to(next(model.parameters()).dtype)
        return torch.nn.functional.cross_entropy(model(given), labels)

    bad = [one for one in layer_errors(jt.convert(copy.deepcopy(plain)), loss) if not one.is_good]
    if bad:
        raise SystemExit("\n".join(map(str, bad)))
    moved = copy.deepcopy(plain).double()
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.mul_(1 + 2.0**-24 * (2 * torch.rand_like(parameter) - 1))
    models = {
        "exact": copy.deepcopy(plain).double(),
        "rounded": moved,
        "stock": copy.deepcopy(plain),
        "converted": jt.convert(copy.deepcopy(plain)),
    }
    found = {}
    for name, model in models.items():
        loss(model).backward()
        found[name] = torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
    exact = found.pop("exact")
    return {name: float((each - exact).norm() / exact.norm()) for name, each in found.items()}


def _step(model: Any, x: Any, labels: Any) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3, help="of a turn")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    found = {}
    for size in (1, options.processes):
        ranks = Ranks(size)
        found[size] = ranks("distributed_torch.work", options, seconds=3600)[0]
        ranks.close()
    for wrap in WRAPS:
        alone = {name: statistics.median(found[1][wrap][name]) for name in ("stock", "converted")}
        for size, rows in found.items():
            times = rows[wrap]
            row: dict[str, Any] = {"wrap": wrap, "processes": size}
            for name in ("stock", "converted"):
                seconds = statistics.median(times[name])
                row[name] = round(size * options.batch / seconds, 2)
                row[f"scaling of {name}"] = round(alone[name] / seconds, 3)
            turns = [stock / ours for stock, ours in zip(times["stock"], times["converted"], strict=True)]
            row["against stock"] = round(statistics.median(turns), 3)
            row["turns"] = [round(min(turns), 3), round(max(turns), 3)]
            row["gradients apart"] = float(f"{times['apart']:.2e}")
            row["gradients off"] = {name: float(f"{off:.2e}") for name, off in times["off"].items()}
            sys.stdout.write(json.dumps({"model": options.model, "batch": options.batch, **row}) + "\n")


if __name__ == "__main__":
    main()
