"""Blockings of CUDA's kernels derive from the facts of a GPU: they fit it, and differ where its facts do.

What a kernel launches is compared with the shared memory, registers and threads that the GPU states.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from convolution_cases import convolution
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.cuda.convolution.depthwise import sliding_plan
from jitdnn.kernels.cuda.convolution.depthwise.algorithm import DepthwiseBanded, DepthwiseSliding
from jitdnn.kernels.cuda.convolution.depthwise.sliding_plan import (
    EXTRA_REGISTERS,
    EXTRA_WGRAD_REGISTERS,
    Sliding,
)
from jitdnn.kernels.cuda.convolution.few_channels.algorithm import (
    FewChannels,
    FewChannelsF32,
    FewChannelsTf32,
)
from jitdnn.kernels.cuda.convolution.grouped.algorithm import Grouped
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import (
    ImplicitGemm,
    ImplicitGemmInPlace,
    ImplicitGemmWgrad,
    ImplicitGemmWgradInPlace,
)
from jitdnn.kernels.cuda.gemm.cost import resident_blocks
from jitdnn.kernels.cuda.matmul import TensorCoreMatmul
from jitdnn.problems import Convolution, parse
from jitdnn.problems.problem import Problem
from paper_gpus import FACTS, PaperGpu

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
GEMM: dict[str, tuple[Any, ...]] = {
    "fwd": (ImplicitGemm(), ImplicitGemmInPlace()),
    "bwd_data": (ImplicitGemm(), ImplicitGemmInPlace()),
    "bwd_filter": (ImplicitGemmWgrad(), ImplicitGemmWgradInPlace()),
}
OTHERS: tuple[Any, ...] = (
    DepthwiseSliding(), DepthwiseBanded(), FewChannels(), FewChannelsF32(), FewChannelsTf32(), Grouped(),
)  # fmt: skip
RESIDENT = (
    "RESIDENT",
    "MIN_BLOCKS",
)  # the macros that say how many thread blocks a multiprocessor shall hold


def drawn(kind: str, seed: int) -> Convolution:
    """A random layer that algorithms of this kind take."""
    dice = random.Random(f"{kind} {seed}")
    pick = dice.choice
    r = pick((1, 1, 2, 3, 3, 5, 7))
    extent = max(r, pick((7, 8, 13, 14, 28, 31, 56, 64)))
    stride, dtype, layout = pick((1, 1, 2)), pick(("bf16", "f16")), pick(("nhwc", "nhwc", "nchw"))
    n, groups = pick((1, 2, 8, 32, 64)), 1
    if kind == "dense":
        c, k = pick((16, 48, 64, 96, 192, 256, 512, 1024)), pick((12, 32, 64, 128, 256, 1000))
        dtype = pick(("bf16", "f16", "f32"))
    elif kind == "few channels":
        c, k = pick((1, 2, 3, 4, 8)), pick((8, 16, 32, 64, 96, 192))
        extent, dtype = pick((28, 64, 127, 224)), pick((dtype, "f32"))
    elif kind == "grouped":
        groups, each = pick((2, 8, 32)), pick((2, 4, 8, 16, 32, 64))
        c = k = groups * each
    else:
        groups = c = k = pick((8, 32, 96, 192, 384))
        r = pick((3, 5, 7, 13, 31))
        extent = max(extent, pick((7, r)))
    words = (
        f"n{n} c{c} h{extent} w{extent} k{k} r{r} s{r} stride{stride} pad{r // 2} g{groups} {dtype} {layout}"
    )
    return convolution(words, DIRECTIONS[seed % 3])


def check_launches(facts: GpuFacts, made: list[Any]) -> None:
    """Every launch fits: a thread block by itself, and as many of them as the text says that are resident."""
    for source, launches in made:
        defines = dict(source.defines)
        for launch in launches:
            assert launch.shared <= facts.shared_bytes, (source.name, launch)
            assert launch.threads <= facts.resident_threads
            assert launch.threads <= facts.registers // 32
        resident = max((int(defines.get(name, 1)) for name in RESIDENT), default=1)
        largest = max(launches, key=lambda launch: launch.shared)
        if source.name.startswith(("implicit", "matmul", "gemm")):
            continue  # their tiles state what the registers allow; shared memory may allow fewer: `resident_blocks`
        assert resident <= facts.resident_blocks
        assert resident * largest.threads <= facts.resident_threads
        reserved = facts.reserved_shared_bytes
        assert resident * (largest.shared + reserved) <= facts.shared_bytes + reserved or resident == 1


def taking(algorithms: tuple[Any, ...], problem: Problem, gpu: PaperGpu) -> list[Any]:
    return [each for each in algorithms if each.refuse(problem, gpu) is None]


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("name", FACTS)
def test_tiles_of_products_fit(name: str, seed: int) -> None:
    gpu, facts = PaperGpu(FACTS[name]), FACTS[name]
    problem = drawn("dense", seed)
    for algorithm in taking(GEMM[problem.direction], problem, gpu):
        algorithm.build(problem, gpu)
        check_tile(algorithm.sizes(problem, gpu).blocking.tile, gpu)
    check_launches(facts, gpu.made)
    assert gpu.made


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", FACTS)
def test_tiles_of_matrix_products_fit(name: str, seed: int) -> None:
    dice = random.Random(seed)
    m, n, k = (dice.choice((1, 63, 128, 1000, 4096)) for _ in "mnk")
    problem, gpu = parse(f"matmul m{m} n{n} k{k} bf16"), PaperGpu(FACTS[name])
    TensorCoreMatmul().build(problem, gpu)
    check_tile(TensorCoreMatmul().sizes(problem, gpu)[1].blocking.tile, gpu)
    check_launches(FACTS[name], gpu.made)


def check_tile(tile: Any, gpu: PaperGpu) -> None:
    facts = gpu.facts
    resident = resident_blocks(tile, gpu)  # type: ignore[arg-type]
    assert tile.shared <= facts.shared_bytes
    assert resident == 1 or resident * (tile.shared + facts.reserved_shared_bytes) <= facts.shared_bytes
    assert resident * tile.threads <= facts.resident_threads
    # a thread has its share of the sums in registers
    assert tile.m * tile.n // tile.threads <= 255
    assert tile.m * tile.n + 40 * tile.threads <= facts.registers


@pytest.mark.parametrize("seed", range(18))
@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("kind", ["few channels", "grouped", "depthwise"])
def test_blockings_fit(kind: str, name: str, seed: int) -> None:
    gpu, facts = PaperGpu(FACTS[name]), FACTS[name]
    problem = drawn(kind, seed)
    for algorithm in taking(OTHERS, problem, gpu):
        algorithm.build(problem, gpu)
        plan: Any = algorithm.sizes(problem, gpu)
        if isinstance(algorithm, DepthwiseBanded):
            assert plan.fits
            assert plan.shared + plan.line_bytes <= facts.shared_bytes
            check_registers(plan.registers, plan.resident, plan.threads, facts)
        elif isinstance(algorithm, DepthwiseSliding):
            # the compiler may do with less of what it adds
            extra = EXTRA_REGISTERS if isinstance(plan, Sliding) else min(20, EXTRA_WGRAD_REGISTERS)
            check_registers(plan.registers + extra, plan.resident, plan.tile.threads, facts)
        elif isinstance(algorithm, Grouped) and plan.shared and problem.direction != "bwd_filter":
            check_grouped(dict(plan.defines), math.prod(problem.filter_spatial), facts)
    check_launches(facts, gpu.made)


def check_grouped(defines: dict[str, Any], taps: int, facts: GpuFacts) -> None:
    """Sums and fragments of the filter are in registers, and some forty are for addresses and loops."""
    sums = 4 * defines["TILE_N"] * defines["TILE_ROWS"] * defines["UNIT_H"] * defines["UNIT_W"]
    registers = sums + 2 * taps * defines["CHANNEL_STEPS"] * defines["TILE_N"] + 40
    assert registers <= 255
    assert defines["RESIDENT"] * defines["BLOCK_THREADS"] * registers <= facts.registers


def check_registers(registers: int, resident: int, threads: int, facts: GpuFacts) -> None:
    """Each quarter of a multiprocessor has registers for the warps that it gets."""
    assert registers <= 255
    warps = math.ceil(threads / 32) * resident
    assert math.ceil(warps / 4) * 32 * registers <= facts.registers // 4
    assert resident * threads <= facts.resident_threads
    assert resident <= facts.resident_blocks


# ---- facts matter


def plans(algorithm: Any, problem: Problem) -> dict[str, Any]:
    return {name: algorithm.sizes(problem, PaperGpu(facts)) for name, facts in FACTS.items()}


def tiles_of(words: str) -> dict[str, Any]:
    return {
        name: plan.blocking.tile for name, plan in plans(ImplicitGemm(), convolution(words, "fwd")).items()
    }


def test_less_shared_memory_takes_smaller_tiles_of_products() -> None:
    tiles = tiles_of("n64 c64 h224 w224 k64 r3 s3 pad1 bf16 nhwc")
    assert tiles["H100"].shared > FACTS["RTX 4090"].shared_bytes
    assert (tiles["H100"].m, tiles["RTX 4090"].m) == (256, 64)
    tiles = tiles_of("n64 c256 h56 w56 k256 r3 s3 pad1 bf16 nhwc")
    assert tiles["A100"].shared > FACTS["RTX 4090"].shared_bytes
    assert (tiles["A100"].m, tiles["RTX 4090"].m) == (256, 128)


def test_less_shared_memory_holds_fewer_thread_blocks() -> None:
    """Two blocks of this tile share a multiprocessor of an H100, and one has that of an RTX 4090."""
    tile = tiles_of("n64 c256 h56 w56 k256 r3 s3 pad1 bf16 nhwc")["H100"]
    found = {name: resident_blocks(tile, PaperGpu(facts)) for name, facts in FACTS.items()}  # type: ignore[arg-type]
    assert (found["H100"], found["RTX 4090"]) == (2, 1)


def test_parts_of_k_fill_the_multiprocessors_that_there_are() -> None:
    problem = convolution("n1 c2048 h7 w7 k512 r1 s1 bf16 nhwc", "fwd")
    few, many = (
        ImplicitGemm().sizes(problem, PaperGpu(replace(FACTS["H100"], multiprocessors=count)))  # type: ignore[arg-type]
        for count in (4, 132)
    )
    blocks = [plan.blocking.blocks(plan.geometry.gemms) for plan in (few, many)]
    assert blocks[0] < blocks[1]


def test_less_shared_memory_takes_fewer_or_smaller_stages_of_grouped_convolutions() -> None:
    problem = convolution("n64 c256 h56 w56 k256 r3 s3 pad1 g32 bf16 nhwc", "fwd")
    found = plans(Grouped(), problem)
    assert found["H100"].shared > 0
    assert found["RTX 4090"].defines != found["H100"].defines
    shared = {name: plan.shared * dict(plan.defines)["RESIDENT"] for name, plan in found.items()}
    assert shared["RTX 4090"] < shared["H100"]


def test_less_shared_memory_takes_other_strips_of_few_channels() -> None:
    problem = convolution("n64 c3 h224 w224 k64 r7 s7 stride2 pad3 bf16 nhwc", "fwd")
    found = plans(FewChannels(), problem)
    assert found["RTX 4090"].shared * dict(found["RTX 4090"].defines)["RESIDENT"] <= 100 << 10
    assert found["RTX 4090"].defines != found["H100"].defines


def test_long_filters_do_not_fit_the_shared_memory_of_older_gpus() -> None:
    problem = convolution("n32 c128 h56 w56 k128 r31 s31 pad15 g128 bf16 nhwc", "fwd")
    refusals = {name: DepthwiseBanded().refuse(problem, PaperGpu(facts)) for name, facts in FACTS.items()}
    assert refusals["H100"] is None
    assert "do not fit into the shared memory" in (refusals["A100"] or "")
    assert "do not fit into the shared memory" in (refusals["RTX 4090"] or "")


def test_resident_blocks_are_bounded_by_registers_and_by_threads() -> None:
    full = {name: sliding_plan.resident_blocks(FACTS[name], 24, 128) for name in ("A100", "RTX 4090")}
    assert full == {"A100": 16, "RTX 4090": 12}
    assert sliding_plan.resident_blocks(FACTS["A100"], 128, 128) == 4
    assert sliding_plan.resident_blocks(replace(FACTS["A100"], registers=32768), 128, 128) == 2
    assert sliding_plan.resident_blocks(replace(FACTS["A100"], resident_blocks=3), 24, 128) == 3
    tile = tiles_of("n64 c64 h224 w224 k64 r3 s3 pad1 bf16 nhwc")["RTX 4090"]
    crowded = PaperGpu(replace(FACTS["H100"], resident_threads=2 * tile.threads))
    assert resident_blocks(replace(tile, resident=4), crowded) == 2  # type: ignore[arg-type]


def test_fewer_threads_and_registers_leave_fewer_resident_blocks() -> None:
    problem = convolution("n64 c192 h28 w28 k192 r3 s3 pad1 g192 bf16 nhwc", "fwd")
    plan = DepthwiseSliding().sizes(problem, PaperGpu(FACTS["H100"]))
    smaller = [replace(FACTS["H100"], **one) for one in ({"registers": 32768}, {"resident_threads": 1024})]
    few = [replace(plan, facts=facts).resident for facts in smaller]
    assert few[0] <= plan.resident // 2 + 1
    assert few[1] * plan.tile.threads <= 1024


@pytest.mark.parametrize("seed", range(6))
def test_estimates_follow_the_clock_and_the_memory(seed: int) -> None:
    """Twice the clock and the bandwidth take no longer, and half take longer."""
    problem = drawn("dense", seed)
    (algorithm, _), facts = GEMM[problem.direction], FACTS["A100"]
    seconds = [
        algorithm.estimate(
            problem,
            PaperGpu(replace(facts, clock=by * facts.clock, bytes_per_second=by * facts.bytes_per_second)),
        )
        for by in (0.5, 1.0, 2.0)
    ]
    assert seconds[0] > seconds[1] > seconds[2]
