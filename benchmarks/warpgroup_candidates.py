"""Every blocking of products by warpgroups, estimated and measured, on an H100 or H200: how their model was fitted.

    python benchmarks/warpgroup_candidates.py 512x768x3072t 'conv_fwd n8 c2048 h33 w33 k256 r1 s1 bf16 nhwc'
    python benchmarks/warpgroup_candidates.py --file problems.txt --most 14

A problem is a convolution in bf16, channels last, or a product M x N x K of bf16: with `t` behind it B has its columns
in one piece, with `n` its rows. For each: microseconds of cuDNN's search in that memory order or of cuBLAS, with all
operands in L2 and with sets of tensors larger than L2 in turns; then of the blockings that are expected to be fastest,
which are captured in CUDA graphs that take turns: orientation (rows or columns of a product, v of a convolution, p
and q without taps that read padding alone along one and two axes, h with stride phases as halves of the columns, s with
its pixels as columns, l in lines, m both l and p), `down,across,rows,columns,cluster` of the tile / parts of K (k: B is
kept; =: as many thread blocks have equal parts of all) / stages, tiles numbered across of tiles down x across,
expected, measured in L2, measured in turns.
What differs from the peer's result is named and left out.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from jitdnn.bench.gpu_timing import interleaved
from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import choose
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import kernel_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.exchanged import exchanged
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pointwise import of_pixels, transposed
from jitdnn.kernels.cuda.gemm.code import Reordered
from jitdnn.kernels.cuda.matmul import indices_of, orientation_of
from jitdnn.kernels.cuda.warpgroup import best
from jitdnn.kernels.cuda.warpgroup.candidates import blockings
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import CLUSTERS, TILES, WHOLE, Tile
from jitdnn.planner.compiling import compile_all
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.matmul import MatMul
from jitdnn.rtcg.missing import gathering

Call = Callable[[], Any]
BYTES = 150_000_000  # of all sets of tensors, more than L2 has
MOST_SETS, ROUNDS = 256, 7
LARGEST_ERROR = 6e-3  # beside the peer's result, relative
FACTOR = 1.4  # on the least estimate, within which blockings are measured


def problem_of(words: str) -> Any:
    if words.startswith("conv"):
        return Convolution.parse(words)
    m, n, k = map(int, words[:-1].split("x"))
    return MatMul.make((m, k), (k, n), "bf16", b_strides=(1, k) if words[-1] == "t" else (n, 1))


def plans(one: Convolution, device: Any, tiles: Sequence[Tile], **words: Any) -> Iterator[Plan]:
    """A plan for each blocking of each tile, of those that need no copy of an operand."""
    number = seen = 0

    def only(*given: Any, **words: Any) -> list[Blocking]:
        nonlocal seen  # they come by the cuts of K
        found = blockings(*given, **words)
        before, seen = seen, seen + len(found)
        return found[max(0, number - before) : max(0, number - before + 1)]

    best.blockings = only  # type: ignore[attr-defined]
    for tile in tiles:
        for number in range(8):  # noqa: B007
            seen = 0
            plan = choose.plan_of.__wrapped__(one, device, (tile,), True, 1, None, NOTHING, **words)
            if not isinstance(plan, Plan):
                break
            if not any(plan.packs):
                yield plan
    best.blockings = blockings  # type: ignore[attr-defined]


def label(way: str, plan: Plan) -> str:
    blocking, tile = plan.blocking, plan.blocking.tile
    shape = f"{tile.down},{tile.across},{tile.rows},{tile.wn},{tile.cluster}"
    parts = (
        f"{blocking.sharers}=" if blocking.sharers else f"{blocking.splits}{'k' if blocking.keeps_b else ''}"
    )
    text = f"{way}:{shape}/{parts}/{blocking.stages}"
    if plan.phases > 1:
        return f"{text}|-"
    down, across, _, strip = plan.tables.numbers[32:36]
    return f"{text}|{strip}of{down}x{across}"


def candidates(problem: Any, device: Any, most: int) -> list[tuple[str, Plan, Any]]:
    """What is expected to be fastest: its name, its plan, and the orientation of a product."""
    tiles = (*TILES, *CLUSTERS, *WHOLE)
    found: list[tuple[str, Plan, Any]] = []
    if isinstance(problem, MatMul):
        for name in ("rows", "columns"):
            orientation = orientation_of(problem, name)
            found += [(name[0], plan, orientation) for plan in plans(orientation.problem, device, tiles)]
    else:
        found += [("v", plan, None) for plan in plans(problem, device, tiles)]
        found += [("l", plan, None) for plan in plans(problem, device, tiles, is_in_lines=True)]
        in_lines = {"is_in_lines": True, "skips_padding": 1}
        found += [("m", plan, None) for plan in plans(problem, device, tiles, **in_lines)]
        found += [("p", plan, None) for plan in plans(problem, device, tiles, skips_padding=1)]
        found += [("q", plan, None) for plan in plans(problem, device, tiles, skips_padding=2)]
        found += [("h", plan, None) for plan in plans(problem, device, tiles, is_paired=True)]
        if other := transposed(problem):
            found += [("s", of_pixels(plan), None) for plan in plans(other, device, tiles)]
        elif problem.groups == 1 and problem.direction != "bwd_filter":
            found += [("s", plan, None) for plan in plans(problem, device, tiles, pixels_are_columns=True)]
        if other := exchanged(problem):
            found += [("x", of_pixels(plan), None) for plan in plans(other, device, tiles)]
    found.sort(key=lambda one: one[1].seconds)
    near = [one for one in found if one[1].seconds <= FACTOR * found[0][1].seconds]
    return [(label(way, plan), plan, orientation) for way, plan, orientation in near[:most]]


def kernel(problem: Any, plan: Plan, orientation: Any, device: Any) -> Any:
    def other() -> Any:
        raise AssertionError("addresses are multiples of 16 bytes")

    if orientation is None:
        return kernel_of(plan, problem.output, device, None, lambda: None)  # type: ignore[arg-type, return-value]
    indices = [
        one.split(" %")[0].strip("()") for one in indices_of(problem, orientation, "channel_", "pixel.c")
    ]
    made = kernel_of(plan, problem.c, device, None, lambda: None, indices)  # type: ignore[arg-type, return-value]
    return Reordered(made, (1, 0)) if orientation.is_transposed else made


class Tensors:
    """Sets of operands, each with its result, in memory that all problems share."""

    def __init__(self, problem: Any, memory: torch.Tensor) -> None:
        descriptors = [*(one.descriptor for one in problem.inputs), problem.output]
        descriptors[-1] = getattr(problem.output, "descriptor", problem.output)
        sizes = [
            -(-(1 + sum((n - 1) * s for n, s in zip(one.shape, one.strides, strict=True))) // 128) * 128
            for one in descriptors
        ]
        count = min(MOST_SETS, memory.numel() // sum(sizes), math.ceil(BYTES / (2 * sum(sizes))))
        self.sets = []
        for number in range(max(1, count)):
            at, own = number * sum(sizes), []
            for one, size in zip(descriptors, sizes, strict=True):
                own.append(torch.as_strided(memory, one.shape, one.strides, at))
                at += size
            self.sets.append(own)


def peer(problem: Any, first: torch.Tensor, second: torch.Tensor, result: torch.Tensor) -> Call:
    if isinstance(problem, MatMul):
        return lambda: torch.matmul(first, second, out=result)
    before = [side for side, _ in problem.padding]
    if problem.direction == "fwd":
        convolution: Any = getattr(functional, f"conv{len(before)}d")
        return lambda: convolution(
            first, second, None, problem.stride, before, problem.dilation, problem.groups
        )
    if problem.direction == "bwd_filter":
        w = torch.empty_strided(problem.w.shape, problem.w.strides, dtype=torch.bfloat16, device="cuda")
        return lambda: torch.ops.aten.convolution_backward(
            second, first, w, None, problem.stride, before, problem.dilation, False, [0] * len(before), problem.groups,
            [False, True, False],
        )[1]  # fmt: skip
    x = torch.empty_strided(problem.x.shape, problem.x.strides, dtype=torch.bfloat16, device="cuda")
    return lambda: torch.ops.aten.convolution_backward(
        first, x, second, None, problem.stride, before, problem.dilation, False, [0] * len(before), problem.groups,
        [True, False, False],
    )[0]  # fmt: skip


def measure(
    words: str, problem: Any, found: list[tuple[str, Plan, Any]], device: Any, memory: torch.Tensor
) -> None:
    memory.normal_()  # results of those before are operands of this one
    sets = Tensors(problem, memory).sets
    runs: dict[str, list[Call]] = {"peer": [peer(problem, *one) for one in sets]}
    expected = runs["peer"][0]().clone().float()
    for name, plan, orientation in found:
        made, room = kernel(problem, plan, orientation, device), max(1, plan.workspace)
        workspace = torch.empty(room, dtype=torch.uint8, device="cuda")

        def call(one: list[torch.Tensor], made: Any = made, workspace: torch.Tensor = workspace) -> Call:
            pointers = [tensor.data_ptr() for tensor in one]
            return lambda: made(
                torch.cuda.current_stream().cuda_stream, pointers, 1.0, 0.0, workspace.data_ptr()
            )

        own = [call(one) for one in sets]
        sets[0][2].fill_(float("nan"))
        own[0]()
        error = float((sets[0][2].float() - expected).norm() / expected.norm())
        if error < LARGEST_ERROR:
            runs[f"{name}|{plan.seconds * 1e6:.2f}"] = own
        else:
            print(f"{words}: {name} is not right, by {error:.1e}")
    calls = [lambda number, own=own: own[number]() for own in runs.values()]
    both = [
        [statistics.median(taken) * 1e6 for taken in interleaved(torch, calls, count, ROUNDS)]
        for count in (1, len(sets))
    ]
    medians = dict(zip(runs, zip(*both, strict=True), strict=True))
    in_cache, in_turns = medians.pop("peer")
    print(f"= {words} | {in_cache:.2f} {in_turns:.2f} | {len(sets)}")
    for name, (first, second) in sorted(medians.items(), key=lambda item: item[1][1]):
        print(f"{name}|{first:.2f}|{second:.2f}", flush=True)


def main() -> None:
    """Print a block for each problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--file", type=Path, help="more problems, one a line")
    parser.add_argument("--most", type=int, default=14, help="blockings of each")
    options = parser.parse_args()
    lines = options.file.read_text().splitlines() if options.file else []
    device = cuda.device(0)
    work = []
    for words in (*options.problems, *filter(None, lines)):
        problem = problem_of(words)
        work.append((words, problem, candidates(problem, device, options.most)))
    with gathering() as missing:
        for _, problem, found in work:
            for _, plan, orientation in found:
                kernel(problem, plan, orientation, device)
    compile_all(missing)
    torch.backends.cudnn.benchmark = True
    memory = torch.randn(400_000_000, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for words, problem, found in work:
            measure(words, problem, found, device, memory)


if __name__ == "__main__":
    main()
