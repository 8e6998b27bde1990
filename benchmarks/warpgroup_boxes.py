"""Boxes of convolutions of few channels beside other algorithms and cuDNN, on an H100 or H200: for their models.

    python benchmarks/warpgroup_boxes.py 'conv_bwd_filter n2 c32 d96 h96 w96 k32 t3 r3 s3 pad1 bf16 nhwc' ...
    python benchmarks/warpgroup_boxes.py --unet --most 0

For each problem (bf16, channels last, both operands read where they are): microseconds of cuDNN's search in that memory
order, then of products by warpgroups, in lines and in boxes, of products by `mma.sync` and of kernels for first layers,
those that are expected to take less than 2.6 times the least, each with what was expected; and of boxes that are
expected to be fast, up to `--most`: d,h,w of pixels / stages of a filter's gradient, else consumers, patches of each,
channels of the result / stages, t: patches of 1 x 64. All are captured in CUDA graphs that take turns, over sets of
tensors larger than L2. What differs from cuDNN's result is named. `--unet`: layers of a 3-D U-Net of 2 x 96^3 voxels.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from warpgroup_candidates import LARGEST_ERROR, ROUNDS, Tensors, peer

from jitdnn.bench.gpu_timing import interleaved
from jitdnn.devices import cuda
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.convolution.boxes import correlation_plan, wgrad_plan
from jitdnn.kernels.cuda.convolution.boxes.algorithm import WarpgroupGemmInBoxes, WarpgroupWgradInBoxes
from jitdnn.kernels.cuda.convolution.few_channels.algorithm import FewChannels
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import ImplicitGemm, ImplicitGemmWgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemm,
    WarpgroupGemmInLines,
    WarpgroupWgrad,
    WarpgroupWgradInLines,
)
from jitdnn.planner.compiling import compile_all
from jitdnn.problems.convolution import DIRECTIONS, Convolution
from jitdnn.rtcg.missing import gathering

FORWARD: tuple[Algorithm, ...] = (
    WarpgroupGemm(), WarpgroupGemmInLines(), WarpgroupGemmInBoxes(), ImplicitGemm(), FewChannels()
)  # fmt: skip
WGRAD: tuple[Algorithm, ...] = (
    WarpgroupWgrad(), WarpgroupWgradInLines(), WarpgroupWgradInBoxes(), ImplicitGemmWgrad(), FewChannels()
)  # fmt: skip
FACTOR = 2.6
UNET = ((32, 96, 32), (64, 96, 32), (32, 48, 64), (64, 48, 64), (128, 48, 64))
"""Channels, extent and channels of the result of the layers with 3x3x3 taps that boxes may take."""


def boxes(problem: Convolution, device: Any, most: int) -> list[tuple[str, Algorithm]]:
    """Those that are expected to be fastest."""
    found: list[tuple[float, str, Algorithm]] = []
    if problem.direction == "bwd_filter":
        for box in wgrad_plan.Layer.of(problem).boxes(device.shared_bytes):
            one = WarpgroupWgradInBoxes((box,))
            name = f"{box.d},{box.h},{box.w}/{box.stages}"
            found.append((one.estimate(problem, device), name, one))
    else:
        layer = correlation_plan.Layer.of(problem)
        for own in filter(None, (layer, layer.turned)):
            for each in own.boxes(device.shared_bytes):
                other = WarpgroupGemmInBoxes((each,))
                turned = "t" if each.patch_h == 1 else ""
                name = f"{turned}{each.consumers},{each.patches},{each.columns}/{each.stages}"
                found.append((other.estimate(problem, device), name, other))
    return [(name, one) for _, name, one in sorted(found, key=lambda one: one[0])[:most]]


def candidates(problem: Convolution, device: Any, most: int) -> list[tuple[str, Algorithm]]:
    table = WGRAD if problem.direction == "bwd_filter" else FORWARD
    taking = [one for one in table if one.refuse(problem, device) is None]
    seconds = [one.estimate(problem, device) for one in taking]
    found = [(one.name, one) for one, own in zip(taking, seconds, strict=True) if own < FACTOR * min(seconds)]
    in_boxes = any(one.name == WarpgroupGemmInBoxes.name for one in taking)
    return found + (boxes(problem, device, most) if in_boxes and most else [])


def measure(problem: Convolution, found: list[tuple[str, Algorithm]], device: Any, memory: Any) -> None:
    memory.normal_()  # results of those before are operands of this one
    sets = Tensors(problem, memory).sets
    runs = {"cuDNN": [peer(problem, *one) for one in sets]}
    expected = runs["cuDNN"][0]().clone().float()
    for name, algorithm in found:
        kernel, room = algorithm.build(problem, device), max(1, algorithm.workspace(problem, device))
        workspace = torch.empty(room, dtype=torch.uint8, device="cuda")

        def call(one: list[torch.Tensor], kernel: Any = kernel, workspace: torch.Tensor = workspace) -> Any:
            pointers, stream = [tensor.data_ptr() for tensor in one], torch.cuda.current_stream
            return lambda: kernel(stream().cuda_stream, pointers, 1.0, 0.0, workspace.data_ptr())

        own = [call(one) for one in sets]
        sets[0][2].fill_(float("nan"))
        own[0]()
        error = float((sets[0][2].float() - expected).norm() / expected.norm())
        if error < LARGEST_ERROR:
            runs[f"{name} ({algorithm.estimate(problem, device) * 1e6:.0f})"] = own
        else:
            print(f"{problem}: {name} is not right, by {error:.1e}")
    calls = [lambda number, own=own: own[number]() for own in runs.values()]
    taken = interleaved(torch, calls, len(sets), ROUNDS)
    medians = [statistics.median(times) * 1e6 for times in taken]
    others = sorted(zip(runs, medians, strict=True), key=lambda one: one[1])
    print(f"{problem}: " + ", ".join(f"{name} {time:.1f}" for name, time in others), flush=True)


def main() -> None:
    """Print a line for each problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--unet", action="store_true", help="the layers of a 3-D U-Net")
    parser.add_argument("--most", type=int, default=6, help="boxes of each")
    options = parser.parse_args()
    words = list(options.problems)
    if options.unet:
        words += [
            f"conv_{direction} n2 c{c} d{d} h{d} w{d} k{k} t3 r3 s3 pad1 bf16 nhwc"
            for c, d, k in UNET
            for direction in DIRECTIONS
        ]
    device = cuda.device(0)
    problems = [Convolution.parse(one) for one in words]
    work = [(one, candidates(one, device, options.most)) for one in problems]
    with gathering() as missing:
        for problem, found in work:
            for _, algorithm in found:
                algorithm.build(problem, device)
    compile_all(missing)
    torch.backends.cudnn.benchmark = True
    memory = torch.empty(700_000_000, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for problem, found in work:
            measure(problem, found, device, memory)


if __name__ == "__main__":
    main()
