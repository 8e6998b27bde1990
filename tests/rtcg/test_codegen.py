"""The micro-kernel as machine code, for processors that this machine need not be."""

from __future__ import annotations

import re

import numpy as np
import pytest

from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.cpu.convolution.implicit_gemm.code import trace
from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import make_plan
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import Geometry
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad import code as wgrad_code
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad import cost as wgrad_cost
from jitdnn.kernels.cpu.lowering import lower_convolution
from jitdnn.kernels.cpu.microkernel.gemm import Loop, trace_microkernel
from jitdnn.kernels.cpu.microkernel.register_tiles import choose_tile
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import assembly, load
from jitdnn.rtcg.isa import NAMES, isa

LAYERS = {
    "3x3": Convolution.make("fwd", (2, 64, 56, 56), (64, 64, 3, 3), padding=1),
    "7x7 stride 2": Convolution.make("fwd", (2, 3, 64, 64), (64, 3, 7, 7), stride=2, padding=3),
    "odd channels": Convolution.make("fwd", (2, 13, 17, 19), (37, 13, 5, 3), padding=2),
    "f64": Convolution.make("fwd", (1, 16, 14, 14), (24, 16, 3, 3), dtype="f64"),
}


def body_of(text: str, name: str) -> str:
    """The assembler lines of one function."""
    start = re.search(rf"^{name}:", text, re.MULTILINE)
    assert start, f"{name} is not in the code"
    end = re.compile(r"^\s+retq?$", re.MULTILINE).search(text, start.end())
    assert end
    return text[start.end() : end.start()]


@pytest.mark.parametrize("layer", LAYERS)
def test_sums_stay_in_registers(layer: str) -> None:
    """Nothing in the micro-kernel touches the stack: no sum is spilled, which would cost half the speed."""
    (part,) = lower_convolution(LAYERS[layer])
    module = Module("spills", isa("avx512"))
    trace(make_plan(Geometry.of(part.merged(), module.isa)), module, "", 3, (0, 1, 2), None)
    body = body_of(assembly(module), "microkernel0")
    assert body.count("vfmadd") >= 8
    vectors_on_stack = [line for line in body.splitlines() if "(%rsp)" in line and "mm" in line]
    assert vectors_on_stack == []


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_set_compiles(name: str) -> None:
    """Forward, backward data and backward filter compile for processors that this machine need not be."""
    expected = {"avx512": "zmm", "avx2": "ymm", "neon": "fmla", "plain": "mulps"}[name]
    for direction in ("fwd", "bwd_data", "bwd_filter"):
        problem = Convolution.make(direction, (2, 5, 9, 11), (7, 5, 3, 3), stride=2, padding=1)
        module = Module("any", isa(name))
        for number, part in enumerate(lower_convolution(problem)):
            if direction == "bwd_filter":
                wgrad_code.trace(module, wgrad_cost.choose_plan(part, module.isa))
            else:
                plan = make_plan(Geometry.of(part.merged(), module.isa))
                trace(plan, module, f"p{number}_", 3, (0, 1, 2), None)
        assert expected in assembly(module)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extents", [(1, 1, 1, 7), (8, 1, 56, 56), (3, 5, 2, 13)])
@pytest.mark.parametrize("width", [1, 20, 64, 100])
def test_tiles_fit_the_registers(name: str, extents: tuple[int, ...], width: int) -> None:
    target = isa(name)
    tile = choose_tile(extents, width, target, "f32")
    assert tile.rows * tile.vectors + tile.vectors + 1 <= target.registers
    assert all(1 <= side <= extent for side, extent in zip(tile.box, extents, strict=True))


@pytest.mark.parametrize("rows", [1, 3, 14])
@pytest.mark.parametrize("depth", [0, 1, 7, 50])
def test_microkernel_counts_every_step(rows: int, depth: int) -> None:
    """A run-time extent, an unrolled loop with a remainder and an inner loop, added to sums in memory."""
    inner, lanes = 3, isa().lanes("f32")
    rng = np.random.default_rng(depth)
    a = rng.integers(-4, 5, (depth + 1, inner, rows)).astype(np.float32)
    b = rng.integers(-4, 5, (depth + 1, inner, lanes)).astype(np.float32)
    sums = rng.integers(-4, 5, (rows, lanes)).astype(np.float32)
    want = sums + np.einsum("dir,dil->rl", a[:depth], b[:depth])

    def generate(module: Module) -> None:
        loops = [Loop(None, inner * rows, inner * lanes), Loop(inner, rows, lanes)]
        microkernel = trace_microkernel(module, "microkernel", "f32", range(rows), 1, loops, accumulate=True)
        with module.task("task") as (k, args, _, _thread):
            arguments = Arguments(k, args, 3)
            pointers = [arguments.pointer(i, "f32") for i in range(3)]
            k.call(microkernel, *pointers, arguments.extra(0))

    library = load("test-microkernel", rows, isa(), generate)
    kernel = CpuKernel(library, [("task", 1)], 3, threads=1, extras=[depth])
    kernel(None, [array.ctypes.data for array in (a, b, sums)], 1.0, 0.0, 0)
    np.testing.assert_array_equal(sums, want)
