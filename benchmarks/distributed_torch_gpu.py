"""Training steps of a model in PyTorch on one GPU and under DDP on several, stock and converted:

    torchrun --nproc-per-node 2 benchmarks/distributed_torch_gpu.py [--model resnet50] [--batch 128]

Each process has a GPU and --batch images. Four ways take turns in each of them: the model alone, where no process waits
for another, and under DistributedDataParallel on NCCL; stock and converted (jt.convert). A step is forward under
autocast with channels last, cross-entropy, backward and SGD's update. "scaling" is images a second of all GPUs, divided
by those of the slowest GPU alone times their number; "against stock" the median of how many times as fast as stock's
a turn was. MODEL: one of `torch_zoo.py` (tests/helpers).

Nothing is timed unless the gradients that DDP has reduced are those of all processes' models alone, averaged, as near
as stock's are. Lines of JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

import torch
import torch.distributed as dist
from torch import nn
from torch_peers import network

import jitdnn.torch as jt

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
Models = dict[tuple[str, str], nn.Module]


class Steps:
    """Training steps of models on one batch."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self._dtype = DTYPES[options.dtype]
        torch.manual_seed(1 + dist.get_rank())
        x = torch.randn(options.batch, 3, options.side, options.side, device=device)
        self._x = x.contiguous(memory_format=torch.channels_last)
        self._labels = torch.randint(0, 1000, (options.batch,), device=device)

    def gradients(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        with torch.autocast("cuda", self._dtype, enabled=self._dtype != torch.float32):
            loss = nn.functional.cross_entropy(model(self._x), self._labels)
        loss.backward()

    def seconds(self, model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> float:
        torch.cuda.synchronize()
        dist.barrier()
        begin = perf_counter()
        for _ in range(count):
            self.gradients(model)
            optimizer.step()
        torch.cuda.synchronize()
        return (perf_counter() - begin) / count


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])


def off(models: Models, steps: Steps, name: str) -> float:
    """What DDP's gradients are off the average of the gradients that each process has alone."""
    state = copy.deepcopy(models[name, "alone"].state_dict())
    steps.gradients(models[name, "alone"])
    average = flat(models[name, "alone"])
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    steps.gradients(models[name, "ddp"])
    found = float((flat(models[name, "ddp"]) - average).norm() / average.norm())
    models[name, "alone"].load_state_dict(state)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bf16")
    parser.add_argument("--steps", type=int, default=10, help="of a turn")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    plain = network(options.model).train().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    models: Models = {}
    for name in ("stock", "converted"):
        for way in ("alone", "ddp"):
            model = copy.deepcopy(plain)
            model = jt.convert(model) if name == "converted" else model
            models[name, way] = (
                nn.parallel.DistributedDataParallel(
                    model, [rank], gradient_as_bucket_view=True, broadcast_buffers=False
                )
                if way == "ddp"
                else model
            )
    steps = Steps(options, device)
    errors = {name: off(models, steps, name) for name in ("stock", "converted")}
    if errors["converted"] > max(1.5 * errors["stock"], 1e-2):
        raise SystemExit(f"gradients under DDP are off: {errors}")
    optimizers = {key: torch.optim.SGD(model.parameters(), lr=1e-5) for key, model in models.items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in models}
    for turn in range(options.turns + 1):
        for key, model in models.items():
            taken = torch.tensor(steps.seconds(model, optimizers[key], options.steps), device=device)
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            if turn:  # the first is warming
                times[key].append(float(taken))
    if not rank:
        for way in ("alone", "ddp"):
            row: dict[str, Any] = {"model": options.model, "batch": options.batch, "way": way}
            row["gpus"] = dist.get_world_size()
            for name in ("stock", "converted"):
                row[f"{name} ms"] = round(1e3 * statistics.median(times[name, way]), 2)
                pairs = zip(times[name, "alone"], times[name, way], strict=True)
                row[f"scaling of {name}"] = round(statistics.median(a / b for a, b in pairs), 4)
            pairs = zip(times["stock", way], times["converted", way], strict=True)
            row["against stock"] = round(statistics.median(a / b for a, b in pairs), 3)
            row["gradients off"] = {name: float(f"{error:.2e}") for name, error in errors.items()}
            sys.stdout.write(json.dumps(row) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
