"""Every tile of the products by warpgroups beside cuDNN, on an H100 or H200: how the cost model was fitted.

    python benchmarks/warpgroup_tiles.py 'n64 c256 h56 w56 k256 r3 s3 pad1' 'n8 c320 h64 w64 k320 r3 s3 pad1'
    python benchmarks/warpgroup_tiles.py --dtype f32 'n32 c512 h14 w14 k512 r3 s3 pad1'
    python benchmarks/warpgroup_tiles.py --dtype f32 --math tf32 'n32 c512 h14 w14 k512 r3 s3 pad1'

For each layer and direction: microseconds of cuDNN's faster memory order (`benchmark=True`, strict fp32), of each tile,
of the tile that is chosen without measuring, and of `mma.sync`, all captured in CUDA graphs that take turns; then the
relative error against float64. What is not right is not printed. With `--math tf32` cuDNN may use tf32, the tiles are
those of scaled f16, and beside them stand the best tile of the instruction for tf32, and `mma.sync`.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from jitdnn.bench.gpu_timing import LEAST_ROUNDS, interleaved
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import ImplicitGemm, ImplicitGemmWgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemm,
    WarpgroupGemmInLines,
    WarpgroupWgrad,
    WarpgroupWgradInLines,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import (
    WarpgroupGemmDivided,
    WarpgroupGemmHalves,
    WarpgroupWgradBlockwise,
    WarpgroupWgradDivided,
    WarpgroupWgradDividedRows,
    WarpgroupWgradHalves,
    WarpgroupWgradRows,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.scaled import (
    WarpgroupGemmScaled,
    WarpgroupWgradScaled,
    WarpgroupWgradScaledBlockwise,
    WarpgroupWgradScaledDivided,
)
from jitdnn.kernels.cuda.warpgroup.tile import CLUSTERS, DIVIDED, TILES
from jitdnn.problems.convolution import Convolution

Run = Callable[[], Any]
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
LARGEST_ERROR = {"bf16": 4e-3, "f16": 1e-3, "f32": 2e-6, "tf32": 1.5e-3}


class Layer:
    """A convolution over random tensors in the problem's own strides."""

    def __init__(self, words: str) -> None:
        problem = Convolution.parse(words)
        assert isinstance(problem, Convolution)
        self.problem = problem
        self.x, self.w, self.y = (
            self._tensor(one, n) for n, one in enumerate((problem.x, problem.w, problem.y))
        )
        inputs = {"fwd": (self.x, self.w), "bwd_data": (self.y, self.w), "bwd_filter": (self.x, self.y)}
        self.result = {"fwd": self.y, "bwd_data": self.x, "bwd_filter": self.w}[problem.direction]
        self.operands = (*inputs[problem.direction], self.result)

    @staticmethod
    def _tensor(one: Any, seed: int) -> torch.Tensor:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        size = 1 + sum((extent - 1) * stride for extent, stride in zip(one.shape, one.strides, strict=True))
        memory = torch.randn(size, generator=generator, device="cuda").to(TYPES[one.dtype])
        return torch.as_strided(memory, one.shape, one.strides)

    def _computed(self, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        problem = self.problem
        before = [first for first, _ in problem.padding]
        if problem.direction == "fwd":
            function: Any = getattr(functional, f"conv{len(before)}d")
            return function(x, w, None, problem.stride, before, problem.dilation, problem.groups)
        wanted = [problem.direction == "bwd_data", problem.direction == "bwd_filter", False]
        found = torch.ops.aten.convolution_backward(
            y,
            x,
            w,
            None,
            problem.stride,
            before,
            problem.dilation,
            False,
            [0] * len(before),
            problem.groups,
            wanted,
        )
        return found[0 if wanted[0] else 1]

    def peer(self) -> Run:
        return lambda: self._computed(self.x, self.w, self.y)

    def reference(self) -> torch.Tensor:
        return self._computed(self.x.double(), self.w.double(), self.y.double())

    def kernel(self, algorithm: Any, device: Any) -> Run | None:
        """A call of an algorithm, None if it refuses."""
        if algorithm.refuse(self.problem, device):
            return None
        kernel, room = algorithm.build(self.problem, device), algorithm.workspace(self.problem, device)
        workspace = torch.empty(max(1, room), dtype=torch.uint8, device="cuda")
        pointers = [tensor.data_ptr() for tensor in self.operands]

        def run() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            kernel(stream, pointers, 1.0, 0.0, workspace.data_ptr() if room else 0)

        return run

    def error(self, run: Run, reference: torch.Tensor) -> float:
        self.result.fill_(float("nan"))
        run()
        return float((self.result.double() - reference).norm() / reference.norm())


def seconds(runs: Sequence[Run]) -> list[float]:
    """Medians of one call of each, taking turns."""
    taken = interleaved(torch, [lambda _, run=run: run() for run in runs], 1, LEAST_ROUNDS)
    return [statistics.median(own) for own in taken]


def measure(words: str, device: Any, math: str) -> None:
    layer, other = Layer(f"{words} nhwc"), Layer(words)
    is_wgrad, is_f32 = "bwd_filter" in words, words.endswith("f32")
    halves = WarpgroupWgradHalves if is_wgrad else WarpgroupGemmHalves
    plain = WarpgroupWgrad if is_wgrad else WarpgroupGemm
    scaled = WarpgroupWgradScaled if is_wgrad else WarpgroupGemmScaled
    is_tf32 = is_f32 and math == "tf32"
    family: Any = scaled if is_tf32 else halves if is_f32 else plain
    algorithms: dict[str, Any] = {str(tile): family((tile,)) for tile in (*TILES, *CLUSTERS)}
    others: dict[str, Any] = {}  # what else takes such tiles
    if is_wgrad and is_tf32:
        others = {"divided": WarpgroupWgradScaledDivided, "blockwise": WarpgroupWgradScaledBlockwise}
    elif is_wgrad and is_f32:
        others = {
            "divided": WarpgroupWgradDivided,
            "divided, mixed": WarpgroupWgradDividedRows,
            "dy divided": WarpgroupWgradRows,
            "blockwise": WarpgroupWgradBlockwise,
        }
    elif not is_f32:
        others = {"in lines": WarpgroupWgradInLines if is_wgrad else WarpgroupGemmInLines}
    elif is_f32 and not is_tf32:
        others = {"divided": WarpgroupGemmDivided}
    for way, other_family in others.items():
        algorithms |= {f"{tile} {way}": other_family((tile,)) for tile in (*TILES, *CLUSTERS, *DIVIDED)}
    if is_tf32:
        algorithms["wgmma of tf32"] = plain()
    if is_tf32 or not is_f32:
        algorithms["mma.sync"] = ImplicitGemmWgrad() if is_wgrad else ImplicitGemm()
    runs = {name: layer.kernel(one, device) for name, one in algorithms.items()}
    reference = layer.reference()
    errors = {name: layer.error(run, reference) for name, run in runs.items() if run}
    limit = LARGEST_ERROR["tf32" if is_tf32 else layer.problem.x.dtype]
    good = {name: run for name, run in runs.items() if run and errors[name] < limit}
    for name in errors.keys() - good.keys():
        print(f"{words}: {name} is not right, by {errors[name]:.1e}")
    times = seconds([layer.peer(), other.peer(), *good.values()])
    peer, own = min(times[:2]), dict(zip(good, times[2:], strict=True))
    plans = {way: one().sizes(layer.problem, device) for way, one in {"": family, **others}.items()}
    known = {way: plan for way, plan in plans.items() if not isinstance(plan, str)}
    best = min(known, key=lambda way: known[way].seconds, default=None)
    pick, expected = "mma.sync", 0.0
    if best is not None:
        pick, expected = f"{known[best].blocking.tile} {best}".strip(), known[best].seconds
    print(f"{words}: cuDNN {peer * 1e6:.1f} us")
    for name, time in sorted(own.items(), key=lambda item: item[1]):
        mark = f"   <- chosen, {expected * 1e6:.1f} expected" if name == pick else ""
        print(
            f"    {name:38} {time * 1e6:8.1f} us  {peer / time:5.2f}  error {errors[name]:.1e}{mark}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="+", help="a convolution without its direction and type")
    parser.add_argument("--dtype", choices=list(TYPES), default="bf16")
    parser.add_argument("--math", choices=["fp32", "tf32"], default="fp32", help="of f32 tensors")
    chosen = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = chosen.math == "tf32"
    device = cuda.device(0)
    for words in chosen.layers:
        for direction in DIRECTIONS:
            measure(f"conv_{direction} {words} {chosen.dtype}", device, chosen.math)


if __name__ == "__main__":
    main()
