"""Products by warpgroups of 8-bit integers and 8-bit reals beside those of bf16 and their peers, on an H100 or H200.

    python benchmarks/warpgroup_fp8.py
    python benchmarks/warpgroup_fp8.py --layer 'n64 c256 h56 w56 k256 r3 s3 pad1' --product 'm8192 k8192 n8192' --tiles

For each layer (forward, data, filter) and each matrix product: microseconds and 10^12 operations a second of ours in
bf16, f8e4m3 (gradients: f8e5m2 by f8e4m3) and i8, by the tile that is chosen without measuring, or by every tile; of
cuDNN in bf16, and, where Python has its `cudnn` front end, in the same types; of `torch._scaled_mm` and
`torch._int_mm`. All are captured in CUDA graphs that take turns. Behind each time stands the relative error against
float64; integers must be exact. What cannot be run says why.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from warpgroup_tiles import Run, seconds

from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupWgrad
from jitdnn.kernels.cuda.warpgroup.tile import TILES
from jitdnn.kernels.cuda.warpgroup_matmul import WarpgroupMatmul
from jitdnn.problems import Convolution, MatMul, Problem, parse

LAYERS = (
    "n64 c256 h56 w56 k256 r3 s3 pad1", "n256 c128 h28 w28 k128 r3 s3 pad1", "n256 c512 h7 w7 k512 r3 s3 pad1",
    "n256 c1024 h14 w14 k256 r1 s1", "n8 c320 h64 w64 k320 r3 s3 pad1", "n256 c128 h56 w56 k128 r3 s3 pad1 stride2",
)  # fmt: skip
PRODUCTS = ("m4096 k4096 n4096", "m8192 k8192 n8192", "m16384 k1024 n4096", "m512 k8192 n8192")
TYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i8": torch.int8, "i32": torch.int32,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
CASES = {
    "fwd": ("bf16", "f8e4m3 to_bf16", "f8e4m3 to_f8e4m3", "i8 to_i8", "i8 to_i32"),
    "bwd_data": ("bf16", "f8e5m2 by_f8e4m3 to_bf16"),
    "bwd_filter": ("bf16", "f8e4m3 by_f8e5m2 to_bf16", "f8e4m3 by_f8e5m2"),
}
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 0.0, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}
LARGEST_ERROR = 2.0**-9
"""Of sums of products of 8-bit reals."""


def filled(one: Any, seed: int) -> torch.Tensor:
    """Random numbers in a tensor's own strides; integers over their whole range."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(one.shape, one.strides, strict=True))
    if one.dtype in ("i8", "i32"):
        memory = torch.randint(-128, 128, (size,), generator=generator, device="cuda").to(TYPES[one.dtype])
    else:
        memory = torch.randn(size, generator=generator, device="cuda").to(TYPES[one.dtype])
    return torch.as_strided(memory, one.shape, one.strides)


class Case:
    """A problem over random tensors."""

    def __init__(self, words: str) -> None:
        self.problem: Problem = parse(words)
        self.operands = [filled(one.descriptor, n) for n, one in enumerate(self.problem.operands)]
        self.result = self.operands[-1]
        self.is_integer = self.problem.inputs[0].descriptor.dtype == "i8"
        # of integers the results are to have a few hundred steps
        self.alpha = 2.0**-9 if self.problem.output.dtype == "i8" else 1.0
        self._reference: torch.Tensor | None = None

    @property
    def reference(self) -> torch.Tensor:
        """The result in float64, made once."""
        if self._reference is None:
            first, second = (one.double() for one in self.operands[:2])
            self._reference = computed(self.problem, first, second) * self.alpha
        return self._reference

    def kernel(self, algorithm: Any, device: Any) -> Run | None:
        """A call of an algorithm; None, with its reason told, if it refuses."""
        reason = algorithm.refuse(self.problem, device)
        if reason:
            print(f"    {self.problem}: {reason}")
            return None
        kernel, room = algorithm.build(self.problem, device), algorithm.workspace(self.problem, device)
        workspace = torch.empty(max(1, room), dtype=torch.uint8, device="cuda")
        pointers = [tensor.data_ptr() for tensor in self.operands]

        def run() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            kernel(stream, pointers, self.alpha, 0.0, workspace.data_ptr() if room else 0)

        return run

    def error(self, run: Run) -> tuple[float, bool]:
        """The relative error of a run of ours, and whether it is as small as promised."""
        self.result.fill_(77 if self.is_integer and self.problem.output.dtype != "f32" else float("nan"))
        run()
        reference, dtype = self.reference, self.problem.output.dtype
        if self.is_integer:
            least, most = (-128, 127) if dtype == "i8" else (-(2**31), 2**31 - 1)
            wrong = (self.result.double() != reference.round().clamp(least, most)).sum()
            return float(wrong), not bool(wrong)
        if dtype.startswith("f8"):
            limits = torch.finfo(self.result.dtype)
            reference = reference.clamp(limits.min, limits.max)
        error = float((self.result.double() - reference).norm() / reference.norm())
        return error, error < LARGEST_ERROR + ROUNDING[dtype]


def computed(problem: Problem, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """What PyTorch makes of the inputs, in their type."""
    if isinstance(problem, MatMul):
        return first @ second
    assert isinstance(problem, Convolution)
    pads = [before for before, _ in problem.padding]
    form = (problem.stride, pads, problem.dilation)
    if problem.direction == "fwd":
        function: Any = getattr(functional, f"conv{len(pads)}d")
        return function(first, second, None, *form, problem.groups)
    is_data = problem.direction == "bwd_data"
    absent = problem.x if is_data else problem.w
    other = torch.empty_strided(absent.shape, absent.strides, dtype=first.dtype, device="cuda")
    x, w = (other, second) if is_data else (first, other)
    y = first if is_data else second
    found = torch.ops.aten.convolution_backward(
        y, x, w, None, *form, False, [0] * len(pads), problem.groups, [is_data, not is_data, False]
    )
    return found[0 if is_data else 1]


def peers(case: Case) -> dict[str, Run]:
    """Other libraries' calls of the same problem."""
    problem, (first, second, result) = case.problem, case.operands
    kind = problem.inputs[0].descriptor.dtype
    if kind == "bf16":
        name = "cuBLAS" if isinstance(problem, MatMul) else "cuDNN"
        return {name: lambda: computed(problem, first, second)}
    if isinstance(problem, Convolution):
        return graph_of_cudnn(case)
    if kind == "i8":
        return {"torch._int_mm": lambda: torch._int_mm(first, second)} if result.dtype == torch.int32 else {}
    one = torch.ones((), device="cuda")

    def scaled(is_fast: bool) -> Run:
        return lambda: torch._scaled_mm(
            first, second, scale_a=one, scale_b=one, out_dtype=result.dtype, use_fast_accum=is_fast
        )

    return {"torch._scaled_mm": scaled(False), "torch._scaled_mm, 14 bits": scaled(True)}


def graph_of_cudnn(case: Case) -> dict[str, Run]:
    """A convolution by cuDNN's graphs, where its front end is there and takes it."""
    problem, (first, second, result) = case.problem, case.operands
    assert isinstance(problem, Convolution)
    try:
        import cudnn

        kinds = cudnn.data_type
        types = {
            "f8e4m3": kinds.FP8_E4M3, "f8e5m2": kinds.FP8_E5M2, "i8": kinds.INT8, "i32": kinds.INT32,
            "bf16": kinds.BFLOAT16, "f32": kinds.FLOAT,
        }  # fmt: skip
        exact = kinds.INT32 if case.is_integer else kinds.FLOAT
        graph = cudnn.pygraph(intermediate_data_type=exact, compute_data_type=exact)
        inputs = [
            graph.tensor(
                name=operand.name, dim=list(tensor.shape), stride=list(tensor.stride()),
                data_type=types[operand.descriptor.dtype],
            )
            for operand, tensor in zip(problem.inputs, (first, second), strict=True)
        ]  # fmt: skip
        form = {
            "padding": [before for before, _ in problem.padding],
            "stride": list(problem.stride),
            "dilation": list(problem.dilation),
        }
        if problem.direction == "fwd":
            made = graph.conv_fprop(image=inputs[0], weight=inputs[1], **form)
        elif problem.direction == "bwd_data":
            made = graph.conv_dgrad(loss=inputs[0], filter=inputs[1], **form)
        else:
            made = graph.conv_wgrad(image=inputs[0], loss=inputs[1], **form)
        made.set_output(True).set_data_type(types[problem.output.dtype])
        made.set_dim(list(result.shape)).set_stride(list(result.stride()))
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")
        handle, given = (
            cudnn.create_handle(),
            {**dict(zip(inputs, (first, second), strict=True)), made: result},
        )

        def run() -> None:
            cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
            graph.execute(given, workspace, handle=handle)

        run()
        torch.cuda.synchronize()
    except Exception as error:  # not installed, or not for these types: told, not fatal
        print(f"    cuDNN, {problem}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        return {}
    return {"cuDNN": run}


def measure(title: str, all_words: Sequence[str], device: Any, every_tile: bool) -> None:
    """Times of the same problem in several types; the first is what the others are compared with."""
    print(title)
    rows: list[tuple[str, Run, str, int]] = []
    for words in all_words:
        case = Case(words)
        problem = case.problem
        family: Any = WarpgroupMatmul if isinstance(problem, MatMul) else WarpgroupGemm
        if isinstance(problem, Convolution) and problem.direction == "bwd_filter":
            family = WarpgroupWgrad
        types = " ".join(
            word for word in words.split() if word.startswith(("bf16", "i8", "f8", "by_", "to_"))
        )
        algorithms = {f"ours {types}": family()}
        if every_tile:
            algorithms |= {f"ours {types}, {tile}": family((tile,)) for tile in TILES}
        for name, algorithm in algorithms.items():
            run = case.kernel(algorithm, device)
            if run is None:
                continue
            error, is_right = case.error(run)
            unit = " wrong" if case.is_integer else ""
            note = f"{error:.1e}{unit}, {algorithm.estimate(problem, device) * 1e6:.1f} us expected"
            rows.append((name, run, note if is_right else f"NOT RIGHT: {note}", problem.flops))
        for name, peer in peers(case).items():
            try:
                peer()
                torch.cuda.synchronize()
            except RuntimeError as error:
                print(f"    {name}, {words}: {str(error).splitlines()[0]}")
            else:
                rows.append((f"{name} {types}", peer, "", problem.flops))
    times = seconds([run for _, run, _, _ in rows], rounds=9)
    for (name, _, note, flops), time in zip(rows, times, strict=True):
        rate = flops / time * 1e-12
        print(
            f"    {name:44} {time * 1e6:9.1f} us {rate:7.0f} T/s {times[0] / time:6.2f}x  {note}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layer", action="append", help="a convolution without its direction and type")
    parser.add_argument("--product", action="append", help="a matrix product without its type")
    parser.add_argument("--tiles", action="store_true", help="every tile, beside the one that is chosen")
    chosen = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    device = cuda.device(0)
    print(device.name)
    is_default = not chosen.layer and not chosen.product
    for words in chosen.layer or (LAYERS if is_default else ()):
        for direction, types in CASES.items():
            problems = [f"conv_{direction} {words} {one} nhwc" for one in types]
            measure(f"conv_{direction} {words}", problems, device, chosen.tiles)
    for words in chosen.product or (PRODUCTS if is_default else ()):
        problems = [
            f"matmul {words} {one} b=columns"
            for one in ("bf16", "f8e4m3 to_bf16", "f8e4m3 by_f8e5m2", "i8 to_i32")
        ]
        measure(f"matmul {words}", problems, device, chosen.tiles)


if __name__ == "__main__":
    main()
