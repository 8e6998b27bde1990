"""Convolutions with a prologue and sums by channel beside the same in kernels one after the other, on an H100 or H200.

    python benchmarks/warpgroup_prologue.py 'n64 c256 h56 w56 k256 r3 s3 pad1' 'n64 c256 h56 w56 k64 r1 s1'
    python benchmarks/warpgroup_prologue.py --tiles --dtype f16 'n32 c512 h14 w14 k512 r3 s3 pad1'

For each layer, channels last: microseconds, all captured in CUDA graphs that take turns, of

    the convolution alone                 ours, and cuDNN's (`benchmark=True`)
    with sums by channel                  in one kernel; the convolution, then a pass over y, ours and PyTorch's
                                          `batch_norm_stats` behind cuDNN
    with relu(scale * x + shift)          in one kernel; a pass over x before; cuDNN behind PyTorch's two passes
    with both                             in one kernel, and separately
    filter gradient, with the prologue    in one kernel, separately, and without it

and the relative errors of y, sums and dw against float64. What is not right is not timed. `--tiles` times every tile of
the fused kernels, by which the factors of `fusion.py` are fitted: how many times as long they take as without.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from warpgroup_tiles import TYPES, Run, seconds

from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupWgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fused import WarpgroupFused
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.kernels.cuda.warpgroup.tile import TILES
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_fused import FusedConvolution

_OWN = {one.name: one for one in ALGORITHMS[FusedConvolution, "fwd"]}
SEPARATE = {"f32": _OWN["separate_kernels_tf32"]}
LARGEST_ERROR = {"bf16": 8e-3, "f16": 2e-3, "f32": 2e-3}


class Layer:
    """A forward convolution, its filter gradient, and what is fused with them, over random tensors."""

    def __init__(self, words: str, dtype: str, device: Any) -> None:
        self.device, self.limit = device, LARGEST_ERROR[dtype]
        self.forward, self.gradient = (
            Convolution.parse(f"conv_{direction} {words} {dtype} nhwc") for direction in ("fwd", "bwd_filter")
        )
        assert isinstance(self.forward, Convolution)
        generator = torch.Generator(device="cuda").manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device="cuda")

        def tensor(shape: Sequence[int]) -> torch.Tensor:
            last = random(shape[0], *shape[2:], shape[1]).to(TYPES[dtype])
            return last.movedim(-1, 1)

        problem = self.forward
        self.x, self.w, self.dy = (tensor(one.shape) for one in (problem.x, problem.w, problem.y))
        self.y, self.dw = torch.empty_like(self.dy), torch.empty_like(self.w)
        self.scale, self.shift = random(problem.c), random(problem.c)
        self.sums, self.squares = (torch.empty(problem.k, device="cuda") for _ in range(2))
        spread = (1, -1, *(1,) * len(problem.spatial))
        self.wide = self.scale.view(spread), self.shift.view(spread)
        self.narrow = tuple(one.to(TYPES[dtype]) for one in self.wide)

    def fused(self, direction: str, has_prologue: bool, has_sums: bool) -> FusedConvolution:
        own: Any = self.forward if direction == "fwd" else self.gradient
        return FusedConvolution.of(own, "relu" if has_prologue else None, has_sums)

    def kernel(self, algorithm: Any, problem: Any) -> Run | None:
        """A call of an algorithm; None, with its reason in print, if it refuses."""
        if reason := algorithm.refuse(problem, self.device):
            print(f"    {algorithm.name} refuses: {reason}")
            return None
        kernel, room = algorithm.build(problem, self.device), algorithm.workspace(problem, self.device)
        workspace = torch.empty(max(1, room), dtype=torch.uint8, device="cuda")
        pointers = [getattr(self, operand.name).data_ptr() for operand in problem.operands]

        def run() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            kernel(stream, pointers, 1.0, 0.0, workspace.data_ptr() if room else 0)

        return run

    def convolved(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        problem: Any = self.forward
        before = [first for first, _ in problem.padding]
        function: Any = getattr(functional, f"conv{len(before)}d")
        found: torch.Tensor = function(x, w, None, problem.stride, before, problem.dilation, problem.groups)
        return found

    def filter_gradient(self, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        problem: Any = self.forward
        before = [first for first, _ in problem.padding]
        found: torch.Tensor = torch.ops.aten.convolution_backward(
            dy, x, self.w.to(x.dtype), None, problem.stride, before, problem.dilation, False, [0] * len(before),
            problem.groups, [False, True, False],
        )[1]  # fmt: skip
        return found

    def normalized(self) -> torch.Tensor:
        """What the prologue makes of x, as PyTorch computes it in x's type: two passes."""
        scale, shift = self.narrow
        return torch.relu_(torch.addcmul(shift, self.x, scale))

    def errors(self, problem: FusedConvolution, run: Run) -> dict[str, float]:
        """Relative errors of all results against float64."""
        x = self.x.double()
        if problem.has_prologue:
            scale, shift = (one.double() for one in self.wide)
            x = torch.relu(x * scale + shift)
        if problem.direction == "bwd_filter":
            exact = {"dw": self.filter_gradient(x, self.dy.double())}
        else:
            y = self.convolved(x, self.w.double())
            axes = [axis for axis in range(y.ndim) if axis != 1]
            exact = {"y": y}
            if problem.has_sums:
                exact |= {"sums": y.sum(axes), "squares": (y * y).sum(axes)}
        for name in exact:
            getattr(self, name).fill_(float("nan"))
        run()
        found = {}
        for name, value in exact.items():
            size = value.norm()
            if (
                name == "sums"
            ):  # where they nearly cancel, what counts is how far such sums typically are from 0
                size = torch.maximum(size, exact["squares"].sum().sqrt())
            found[name] = float((getattr(self, name).double() - value).norm() / size)
        return found


def measure(words: str, dtype: str, every_tile: bool, device: Any) -> None:
    layer = Layer(words, dtype, device)
    print(f"{words} {dtype}", flush=True)
    runs: dict[str, Run] = {}
    separate = SEPARATE.get(dtype, _OWN["separate_kernels"])
    plain = {"fwd": WarpgroupGemm(), "bwd_filter": WarpgroupWgrad()}
    for direction, own in (("fwd", layer.forward), ("bwd_filter", layer.gradient)):
        if run := layer.kernel(plain[direction], own):
            runs[f"{direction}: alone"] = run
    runs["fwd: alone, cuDNN"] = lambda: layer.convolved(layer.x, layer.w)
    runs["bwd_filter: alone, cuDNN"] = lambda: layer.filter_gradient(layer.x, layer.dy)
    runs["fwd: sums, cuDNN then batch_norm_stats"] = lambda: torch.batch_norm_stats(
        layer.convolved(layer.x, layer.w), 1e-5
    )
    runs["fwd: prologue, PyTorch then cuDNN"] = lambda: layer.convolved(layer.normalized(), layer.w)
    runs["fwd: prologue and sums, PyTorch and cuDNN"] = lambda: torch.batch_norm_stats(
        layer.convolved(layer.normalized(), layer.w), 1e-5
    )
    runs["bwd_filter: prologue, PyTorch then cuDNN"] = lambda: layer.filter_gradient(
        layer.normalized(), layer.dy
    )
    for direction, has_prologue, has_sums in (
        ("fwd", False, True),
        ("fwd", True, False),
        ("fwd", True, True),
        ("bwd_filter", True, False),
    ):
        problem = layer.fused(direction, has_prologue, has_sums)
        what = " and ".join(name for name, has in (("prologue", has_prologue), ("sums", has_sums)) if has)
        algorithms: dict[str, Any] = {"one kernel": WarpgroupFused(separate), "separate kernels": separate}
        if every_tile:
            algorithms |= {str(tile): WarpgroupFused(separate, (tile,)) for tile in TILES}
        for name, algorithm in algorithms.items():
            run = layer.kernel(algorithm, problem)
            if run is None:
                continue
            found = layer.errors(problem, run)
            text = ", ".join(f"{of} {error:.1e}" for of, error in found.items())
            if max(found.values()) < layer.limit:  # NaN is not less
                runs[f"{direction}: {what}, {name} (errors: {text})"] = run
            else:
                print(f"    {direction}: {what}, {name} IS NOT RIGHT: {text}")
    for name, time in zip(runs, seconds(list(runs.values())), strict=True):
        print(f"    {time * 1e6:9.1f} us  {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="+", help="a convolution without its direction and type")
    parser.add_argument("--dtype", choices=list(TYPES), default="bf16")
    parser.add_argument("--tiles", action="store_true", help="time every tile of the fused kernels")
    chosen = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    device = cuda.device(0)
    for words in chosen.layers:
        measure(words, chosen.dtype, chosen.tiles, device)


if __name__ == "__main__":
    main()
