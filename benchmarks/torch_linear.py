"""Linear layers of networks as `jt.fuse` runs them, beside PyTorch's with a packed weight: oneDNN's and MKL's.

    python benchmarks/torch_linear.py [NETWORK ...] [--batch 1 8] [--threads 1] [--seconds 0.5]
        [--shapes 197x3072x768 ...]

A shape is rows x depth x columns. `torch.compile` with freezing takes MKL's kernel for f32 where PyTorch has it. Each
call gives a result without a bias; the sides take turns in an order by chance. Printed are the least milliseconds, the
part of the multiply-add peak, and the median over all turns of the quicker peer's time over ours, which stays the same
to a few percent on a busy machine, where least times do not. On one thread the thread's own time is measured.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import geometric_mean, median
from time import perf_counter, thread_time

import torch
from torch import Tensor

from jitdnn.frameworks.torch.kernels import described
from jitdnn.handle import Handle
from jitdnn.ops.kept_filter import KeptFilter
from jitdnn.planner.plan import Request
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor

#: rows of one image, depth, columns
LAYERS = {
    "convnext_tiny": [
        (side * side, *pair)
        for side, c in ((56, 96), (28, 192), (14, 384), (7, 768))
        for pair in ((c, 4 * c), (4 * c, c))
    ],
    "vit_small": [(197, 384, 1152), (197, 384, 384), (197, 384, 1536), (197, 1536, 384)],
    "vit_base": [(197, 768, 2304), (197, 768, 768), (197, 768, 3072), (197, 3072, 768)],
    "swin_tiny": [
        (3136, 96, 288), (3136, 96, 96), (784, 384, 192), (784, 192, 576), (784, 192, 192), (196, 384, 1152),
        (196, 384, 384), (196, 768, 384), (49, 768, 2304), (49, 768, 768), (49, 1536, 768),
    ],
}  # fmt: skip
TOLERANCE = 1e-5  # of the largest element


def ours(handle: Handle, x: Tensor, w: Tensor, y: Tensor) -> Callable[[], object]:
    """A call of our kernel with a kept weight, which writes y."""
    rows, columns = y.shape

    def pixels(tensor: Tensor) -> TensorDescriptor:
        return described(tensor.t()[None, :, None, :])

    taps = w[:, :, None, None]
    problem = Convolution.make("fwd", pixels(x), described(taps), y=pixels(y))
    plan = handle.plan(problem, replace(Request.of(handle.settings), keeps_filter=True))
    kept, addresses = KeptFilter(taps), [t.data_ptr() for t in (x, w, y)]
    assert (rows, columns) == (x.shape[0], w.shape[0])
    return lambda: kept.run(handle, plan, addresses)


def peers(x: Tensor, w: Tensor) -> dict[str, Callable[[], object]]:
    """Calls of PyTorch's kernels with a packed weight."""
    rows = x.shape[0]
    dnn = torch.ops.mkldnn._reorder_linear_weight(w, rows)
    found = {"onednn": lambda: torch.ops.mkldnn._linear_pointwise(x, dnn, None, "none", [], "")}
    if torch.backends.mkl.is_available():
        mkl = torch.ops.mkl._mkl_reorder_linear_weight(w, rows)
        found["mkl"] = lambda: torch.ops.mkl._mkl_linear(x, mkl, w, None, rows)
    return found


def in_turns(
    ways: Sequence[Callable[[], object]], seconds: float, clock: Callable[[], float]
) -> list[list[float]]:
    """Seconds of each way in every round."""
    rounds: list[list[float]] = []
    order = list(range(len(ways)))
    for way in ways:
        way()
    end = perf_counter() + seconds
    while len(rounds) < 5 or perf_counter() < end:
        times = [0.0] * len(ways)
        random.shuffle(order)
        for number in order:
            ways[number]()
            begin = clock()
            ways[number]()
            times[number] = clock() - begin
        rounds.append(times)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", choices=[[], *LAYERS])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--shapes", nargs="+", help="rows x depth x columns, in place of networks")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    handle = Handle(threads=arguments.threads)
    clock = thread_time if arguments.threads == 1 else perf_counter
    layers = [(name, *shape) for name in arguments.networks or LAYERS for shape in LAYERS[name]]
    if arguments.shapes:
        layers = [("-", *map(int, text.split("x"))) for text in arguments.shapes]
    ratios = []
    peak = handle.device.measure_peak("f32")
    for batch in arguments.batch:
        for name, rows, depth, columns in layers:
            rows *= batch
            x, w = torch.randn(rows, depth), torch.randn(columns, depth) / math.sqrt(depth)
            y = torch.full((rows, columns), math.nan)
            ways = {"ours": ours(handle, x, w, y), **peers(x, w)}
            ways["ours"]()
            wanted = x.double() @ w.double().t()
            error = float((y - wanted).abs().max() / wanted.abs().max())
            assert error <= TOLERANCE, error
            times = list(zip(*in_turns(list(ways.values()), arguments.seconds, clock), strict=True))
            ratio = min(median(b / a for a, b in zip(times[0], peer, strict=True)) for peer in times[1:])
            ratios.append(ratio)
            cells = (
                f"{way} {1e3 * min(each):8.3f} ({2e2 * rows * depth * columns / min(each) / peak:3.0f} %)"
                for way, each in zip(ways, times, strict=True)
            )
            print(
                f"{name:14s} n{batch} {rows:6d} x {depth:4d} x {columns:4d}",
                *cells,
                f"{ratio:5.2f}",
                flush=True,
            )
    print(
        f"geometric mean {geometric_mean(ratios):.2f}, slower {sum(r < 1 for r in ratios)} of {len(ratios)}"
    )


if __name__ == "__main__":
    with torch.no_grad():
        main()
