"""Host time of a call of a converted layer beside torch's own, on layers so small that kernels take nothing.

    python benchmarks/torch_host_time.py [LAYER ...] [--seconds 4] [--device cpu] [--autocast]

Microseconds of processor time of the calling thread, on a GPU of the clock until all is enqueued, forward without
gradients, and forward and backward; the least of samples of 20 calls in turns. Ours run whatever is faster
(measure="never"). `--autocast`: to bfloat16, with weights of float32.
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
    "convolution with circular edges": (
        lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        (1, 4, 4, 4),
    ),
    "depthwise 3x3": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), (1, 8, 4, 4)),
    "transposed 2x2": (lambda: nn.ConvTranspose2d(4, 4, 2, 2), (1, 4, 2, 2)),
    "linear": (lambda: nn.Linear(8, 8), (4, 8)),
    "batch normalization, SiLU": (
        lambda: nn.Sequential(nn.BatchNorm2d(8), nn.SiLU(inplace=True)),
        (2, 8, 4, 4),
    ),
    "convolution, batch normalization, SiLU": (
        lambda: nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(inplace=True)
        ),
        (2, 8, 4, 4),
    ),
    "LayerNorm": (lambda: nn.LayerNorm(8), (4, 8)),
    "RMSNorm": (lambda: nn.RMSNorm(8), (4, 8)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), (2, 8, 4, 4)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(8, affine=True), (2, 8, 4, 4)),
    "GELU": (nn.GELU, (4, 8)),
    "SiLU": (nn.SiLU, (4, 8)),
    "Softmax": (lambda: nn.Softmax(-1), (4, 8)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (1, 4, 4, 4)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (1, 4, 4, 4)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), (1, 4, 4, 4)),
}


def way(model: nn.Module, x: torch.Tensor, has_gradients: bool, is_cast: bool) -> Callable[[], Any]:
    """A call of a layer, and of its backward pass."""

    def forward(given: torch.Tensor = x) -> Any:
        with (
            torch.set_grad_enabled(has_gradients),
            torch.autocast(x.device.type, torch.bfloat16, enabled=is_cast),
        ):
            return model(given)

    if not has_gradients:
        return forward
    leaf = x.clone().requires_grad_()
    wanted = [leaf, *model.parameters()]
    dy = torch.ones_like(forward(leaf).detach())
    return lambda: torch.autograd.grad(forward(leaf), wanted, dy)


def least(ways: list[Callable[[], Any]], seconds: float, is_on_gpu: bool) -> list[float]:
    """Seconds of one call of each."""
    clock, wait = (perf_counter, torch.cuda.synchronize) if is_on_gpu else (thread_time, lambda: None)
    best = [math.inf] * len(ways)
    for run in ways * 3:
        run()
    end = perf_counter() + seconds
    while perf_counter() < end:
        for place, run in enumerate(ways):
            wait()
            begin = clock()
            for _ in range(_CALLS):
                run()
            best[place] = min(best[place], (clock() - begin) / _CALLS)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="[all]")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--autocast", action="store_true")
    arguments = parser.parse_args()
    is_on_gpu = arguments.device.startswith("cuda")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.stdout.write(f"{'us':40s}{'torch':>9s}{'ours':>9s}{'both ways, torch':>19s}{'ours':>9s}\n")
    for name in arguments.layers or LAYERS:
        make, shape = LAYERS[name]
        stock = make().to(arguments.device)
        ours = jt.convert(copy.deepcopy(stock), measure="never")
        x = torch.randn(shape, device=arguments.device)
        numbers = []
        for has_gradients in (False, True):
            ways = [way(model, x, has_gradients, arguments.autocast) for model in (stock, ours)]
            numbers += [1e6 * one for one in least(ways, arguments.seconds, is_on_gpu)]
        sys.stdout.write(f"{name:40s}{numbers[0]:9.1f}{numbers[1]:9.1f}{numbers[2]:19.1f}{numbers[3]:9.1f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
