"""Every tile of convolutions by warpgroups, at sizes of several waves of thread blocks, whether each bit is right.

    python benchmarks/warpgroup_exact.py [--types 'f32 nhwc' ...] [--directions fwd ...] [--epilogues '' bias ...]
        [--algorithms NAME ...] [--layers WORDS ...] [--part N OF] [--seconds S] [--repeat R] [--offline]

Operands are small whole numbers, of which all products and sums are exact in every arithmetic: so results are those of
float64, rounded once, and a single product that is missing shows. Each algorithm of products by warpgroups is planned
with each of its tiles alone, and run R times with alpha 1, beta 0 into memory full of NaN, and with alpha 2, beta 1.
What is wrong is told with the tile, how many results, and in which slab of 64 rows of a warpgroup and which 132 tiles
they lie; the last line counts. `--part 1 4` takes every fourth, from the second on; `--offline` counts, and runs
nothing. Needs PyTorch, and a GPU of compute capability 9.0.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from jitdnn.devices import cuda
from jitdnn.errors import InvalidType
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.tables import algorithms
from jitdnn.planner.compiling import begin
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.expression import apply, trace
from jitdnn.rtcg.missing import gathering
from jitdnn.tensor import TensorDescriptor

TYPES = (
    "bf16 nhwc",
    "f16 nhwc",
    "f32 nhwc",
    "i8 to_i8 nhwc",
    "i8 nhwc",
    "f8e4m3 to_bf16 nhwc",
    "f8e4m3 nhwc",
)
LAYERS = (
    "n16 c128 h56 w56 k256 r3 s3 pad1",
    "n32 c256 h56 w56 k320 r1 s1",
    "n16 c64 h56 w56 k128 r3 s3 pad1 stride2",
    "n16 c1024 h7 w7 k512 r3 s3 pad1",
)
DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "i8": torch.int8,
    "i32": torch.int32,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}
BESIDE = 4096  # bytes behind a result, which stay as they are


@dataclass(frozen=True)
class Candidate:
    """An algorithm with one tile, for a problem and an epilogue."""

    words: str
    epilogue: str
    algorithm: Any
    tile: str
    problem: Convolution
    given: Epilogue | None

    def __str__(self) -> str:
        return f"{self.algorithm.name} {self.tile} | {self.words} | {self.epilogue or 'plain'}"


def epilogue_of(problem: Convolution, name: str) -> Epilogue | None:
    shape, dtype = problem.output.shape, problem.output.dtype
    bias = TensorDescriptor(shape, (0, 1, *(0 for _ in shape[2:])), dtype)
    residual = TensorDescriptor(shape, problem.output.strides, dtype)
    if name == "bias":
        return Epilogue(trace(lambda acc, b: acc + b), (bias,))
    if name == "residual":
        return Epilogue(trace(lambda acc, b, r: apply("relu", acc + b) + r), (bias, residual))
    return None


def candidates(options: Any, device: Any) -> Iterator[Candidate]:
    for direction in options.directions:
        for types in options.types:
            for layer in options.layers:
                words = f"conv_{direction} {layer} {types}"
                try:
                    problem = Convolution.parse(words)
                except InvalidType:  # integers have no gradients
                    continue
                for epilogue in options.epilogues:
                    if epilogue and (direction == "bwd_filter" or problem.output.dtype not in DTYPES):
                        continue
                    given = epilogue_of(problem, epilogue)
                    for one in algorithms(problem, "cuda"):
                        if not isinstance(one, WarpgroupGemm):
                            continue
                        if options.algorithms and one.name not in options.algorithms:
                            continue
                        for tile in one._tiles:
                            algorithm = type(one)((tile,))
                            if algorithm.refuse(problem, device, given) is not None:
                                continue
                            if isinstance(algorithm.sizes(problem, device, given), Plan):
                                yield Candidate(words, epilogue, algorithm, str(tile), problem, given)


def strided(descriptor: Any, beside: int = 0) -> torch.Tensor:
    """Memory of a descriptor."""
    size = 1 + sum((n - 1) * s for n, s in zip(descriptor.shape, descriptor.strides, strict=True))
    memory = torch.zeros(size + beside, dtype=DTYPES[descriptor.dtype], device="cuda")
    return torch.as_strided(memory, descriptor.shape, descriptor.strides)


class Data:
    """Operands of a problem, and the results of float64."""

    def __init__(self, words: str, epilogue: str) -> None:
        problem = Convolution.parse(words)
        self.inputs = [self._whole(one.descriptor, number) for number, one in enumerate(problem.inputs)]
        given = epilogue_of(problem, epilogue)
        self.operands = [self._whole(one, 7 + n) for n, one in enumerate(given.operands if given else ())]
        self.output = problem.output
        sums = self._sums(problem, *(one.double() for one in self.inputs))
        if epilogue:
            sums = sums + self.operands[0].double()
        if epilogue == "residual":
            sums = sums.relu() + self.operands[1].double()
        self.sums = sums
        self.before = self._whole(problem.output, 5)

    @staticmethod
    def _whole(descriptor: Any, seed: int) -> torch.Tensor:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        size = 1 + sum((n - 1) * s for n, s in zip(descriptor.shape, descriptor.strides, strict=True))
        numbers = torch.randint(-2, 3, (size,), generator=generator, device="cuda").to(
            DTYPES[descriptor.dtype]
        )
        return torch.as_strided(numbers, descriptor.shape, descriptor.strides)

    @staticmethod
    def _sums(problem: Convolution, first: torch.Tensor, second: torch.Tensor) -> Any:
        before = [side for side, _ in problem.padding]
        if problem.direction == "fwd":
            convolution: Any = getattr(functional, f"conv{len(before)}d")
            return convolution(first, second, None, problem.stride, before, problem.dilation, problem.groups)
        is_data = problem.direction == "bwd_data"
        x, w = (None, second) if is_data else (first, None)
        dy = first if is_data else second
        x = torch.empty(problem.x.shape, dtype=dy.dtype, device="cuda") if x is None else x
        w = torch.empty(problem.w.shape, dtype=dy.dtype, device="cuda") if w is None else w
        made = torch.ops.aten.convolution_backward(
            dy, x, w, None, problem.stride, before, problem.dilation, False, [0] * len(before), problem.groups,
            [is_data, not is_data, False],
        )  # fmt: skip
        return made[0 if is_data else 1]

    def expected(self, alpha: float, beta: float) -> torch.Tensor:
        found = alpha * self.sums + beta * self.before.double()
        kind = DTYPES[self.output.dtype]
        if kind is torch.int8:
            return found.clamp(-128, 127).to(kind)
        if kind is torch.float8_e4m3fn:
            return found.clamp(-448, 448).float().to(kind)
        return found.to(kind)


def wrong_places(actual: torch.Tensor, expected: torch.Tensor, plan: Any) -> str:
    """How many results differ, by slab of 64 rows, and by the turn of the thread block that made them."""
    tile = plan.blocking.tile
    is_wrong = (actual != expected) | (actual != actual)  # NaN
    order = (0, *range(2, actual.dim()), 1)
    rows, columns = is_wrong.permute(order).reshape(-1, actual.shape[1]).nonzero(as_tuple=True)
    slabs = Counter((rows // 64 % tile.rows).tolist())
    turns = Counter(
        (rows // tile.m * (-(-actual.shape[1] // tile.n)) + columns // tile.n).div(132).int().tolist()
    )
    count, first_turns = int(is_wrong.sum()), dict(sorted(turns.items())[:4])
    share = count / is_wrong.numel()
    return f"{count} wrong ({share:.1e}), by slab {dict(slabs)}, by 132 tiles {first_turns}"


def run(candidate: Candidate, data: Data, device: Any, repeat: int) -> str:
    """What is wrong; nothing if nothing is."""
    problem, algorithm = candidate.problem, candidate.algorithm
    kernel = algorithm.build(problem, device, candidate.given)
    room = algorithm.workspace(problem, device, candidate.given)
    workspace = torch.full((room + BESIDE,), 0xFF, dtype=torch.uint8, device="cuda")
    scales = ((1.0, 0.0),) if DTYPES[problem.output.dtype].itemsize == 1 else ((1.0, 0.0), (2.0, 1.0))
    for alpha, beta in scales:
        expected = data.expected(alpha, beta)
        for _ in range(repeat):
            output = strided(problem.output, BESIDE)
            storage = output.untyped_storage()
            whole = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
            whole.fill_(0xFF)
            if beta:
                output.copy_(data.before)
            pointers = [one.data_ptr() for one in (*data.inputs, output, *data.operands)]
            torch.cuda.synchronize()
            kernel(None, pointers, alpha, beta, workspace.data_ptr())
            device.synchronize()
            actual, wanted = (one.float() if one.dtype.itemsize == 1 else one for one in (output, expected))
            if not torch.equal(actual, wanted):
                return f"alpha {alpha:g}, beta {beta:g}: " + wrong_places(
                    actual, wanted, algorithm.sizes(problem, device, candidate.given)
                )
            if not bool((whole[-BESIDE:] == 0xFF).all()) or not bool((workspace[room:] == 0xFF).all()):
                return "wrote beside its result or its workspace"
    return ""


def main() -> None:
    """Print a line for each that is wrong, and how many were run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--layers", nargs="+", default=LAYERS)
    parser.add_argument("--directions", nargs="+", default=("fwd", "bwd_data", "bwd_filter"))
    parser.add_argument("--epilogues", nargs="+", default=("", "bias", "residual"))
    parser.add_argument("--algorithms", nargs="+", default=())
    parser.add_argument("--part", nargs=2, type=int, default=(0, 1))
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no more is compiled or run")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--offline", action="store_true")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    device = cuda.offline("sm_90a") if options.offline else cuda.device()
    number, of = options.part
    found = list(candidates(options, device))[number::of]
    with gathering() as missing:
        for one in found:
            one.algorithm.build(one.problem, device, one.given)
    kinds = Counter((one.algorithm.name, one.words.split()[0], one.epilogue or "plain") for one in found)
    print(f"{len(found)} configurations, {len({one.key for one in missing})} modules to compile")
    if options.offline:
        for kind, count in sorted(kinds.items()):
            print(count, *kind)
        return
    begin(missing)
    data = cache(Data)
    data.cache_clear()
    counts: Counter[str] = Counter()
    for one in found:
        if time.monotonic() > until:
            counts["not run"] += 1
            continue
        try:
            wrong = run(one, data(one.words, one.epilogue), device, options.repeat)
        except Exception as error:  # the others go on
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
        counts["wrong" if wrong else "right"] += 1
        if wrong:
            print(f"WRONG {one}: {wrong}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
