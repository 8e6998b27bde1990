"""Peak memory and seconds of a training step of a small ResNet under limits, measured beside what the plan says."""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import copy
import statistics
import time
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import jitdnn.torch
from jitdnn.frameworks.torch.memory_meter import MemoryMeter
from jitdnn.planner.recompute import RecomputePlan
from jitdnn.settings import format_bytes


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        is_same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """The result has the channels of `outputs`."""
        return torch.relu(self.body(input) + self.shortcut(input))


def resnet() -> nn.Sequential:
    """A ResNet of 8 blocks for images of 64 x 64."""
    widths = [32, 32, 32, 64, 64, 128, 128, 256, 256]
    blocks = [Block(i, o, 1 + (i != o)) for i, o in pairwise(widths)]
    stem = (nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(256, 10)
    )


def main() -> None:
    """Print a row for each limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("batch", type=int, nargs="?", default=8, help="images; 8 if not given")
    batch = parser.parse_args().batch
    torch.manual_seed(0)
    images, labels = torch.randn(batch, 3, 64, 64), torch.randint(10, (batch,))
    model = resnet()

    def loss(output: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, labels)

    plain = jitdnn.torch.limit_memory(model, images, memory_limit=None, loss=loss)
    smallest = jitdnn.torch.limit_memory(model, images, memory_limit="least", loss=loss)
    limits = [None, *(smallest.peak + (plain.peak - smallest.peak) * part // 4 for part in (3, 2, 1, 0))]
    print(f"{'limit':>12}{'planned':>12}{'measured':>12}{'planned s':>12}{'measured s':>12}{'run again':>12}")
    rows: list[tuple[Any, RecomputePlan, int, nn.Module, list[float]]] = []
    for limit in limits:
        limited = copy.deepcopy(model)
        plan = jitdnn.torch.limit_memory(limited, images, memory_limit=limit, loss=loss)
        with MemoryMeter() as meter:
            loss(limited(images)).backward()
        rows.append((limit, plan, meter.peak, limited, []))
    for _ in range(9):  # in turns, since other processes come and go
        for _, _, _, limited, times in rows:
            limited.zero_grad()
            start = time.perf_counter()
            loss(limited(images)).backward()
            times.append(time.perf_counter() - start)
    for limit, plan, peak, _, times in rows:
        print(
            f"{'none' if limit is None else format_bytes(limit):>12}{format_bytes(plan.peak):>12}"
            f"{format_bytes(peak):>12}{plan.seconds:>12.3f}{statistics.median(times):>12.3f}{len(plan.rerun):>12}"
        )


if __name__ == "__main__":
    main()
