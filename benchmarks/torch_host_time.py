"""Host time of a call of a converted layer beside torch's own, on layers so small that kernels take nothing.

    python benchmarks/torch_host_time.py [--seconds 4]

Microseconds of processor time of the calling thread, forward without gradients, and forward and backward; the least of
samples of 20 calls in turns. Ours run whatever is faster (measure="never").
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import nn

import jitdnn.torch as jt

_CALLS = 20
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution 1x1": (lambda: nn.Conv2d(4, 4, 1), (1, 4, 2, 2)),
    "convolution 1x1 without a bias": (lambda: nn.Conv2d(4, 4, 1, bias=False), (1, 4, 2, 2)),
    "depthwise 3x3": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), (1, 8, 4, 4)),
    "transposed 2x2": (lambda: nn.ConvTranspose2d(4, 4, 2, 2), (1, 4, 2, 2)),
    "linear": (lambda: nn.Linear(8, 8), (4, 8)),
}


def way(model: nn.Module, x: torch.Tensor, has_gradients: bool) -> Callable[[], Any]:
    """A call of a layer, and of its backward pass."""
    if not has_gradients:

        def forward() -> Any:
            with torch.no_grad():
                return model(x)

        return forward
    leaf = x.clone().requires_grad_()
    wanted = [leaf, *model.parameters()]
    dy = torch.ones_like(model(leaf).detach())
    return lambda: torch.autograd.grad(model(leaf), wanted, dy)


def least(ways: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Seconds of one call of each."""
    best = [math.inf] * len(ways)
    for run in ways * 3:
        run()
    end = perf_counter() + seconds
    while perf_counter() < end:
        for place, run in enumerate(ways):
            begin = thread_time()
            for _ in range(_CALLS):
                run()
            best[place] = min(best[place], (thread_time() - begin) / _CALLS)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.stdout.write(f"{'us':34s}{'torch':>9s}{'ours':>9s}{'both ways, torch':>19s}{'ours':>9s}\n")
    for name, (make, shape) in LAYERS.items():
        stock = make()
        ours = jt.convert(copy.deepcopy(stock), measure="never")
        x = torch.randn(shape)
        numbers = [
            1e6 * one
            for has_gradients in (False, True)
            for one in least([way(model, x, has_gradients) for model in (stock, ours)], arguments.seconds)
        ]
        sys.stdout.write(f"{name:34s}{numbers[0]:9.1f}{numbers[1]:9.1f}{numbers[2]:19.1f}{numbers[3]:9.1f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
