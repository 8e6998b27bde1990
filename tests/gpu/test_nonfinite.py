"""A NaN or an infinity reaches every result that reads it, and no other, but for algorithms that say so: on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cases
from cases import Buffer, takers
from convolution_cases import convolution
from harness import _Mirror
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import algorithm as warpgroup_gemm
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Convolution
from nonfinite import spread_of

PLAIN = """
conv_fwd n2 c5 h9 w7 k6 r3 s3 pad1 f32 nchw
conv_fwd n2 c6 h9 w7 k9 r3 s2 stride2x1 pad1 dil2x1 g3 f32 nhwc
conv_bwd_data n2 c5 h9 w7 k6 r3 s3 stride2 pad1 f32 nhwc
conv_bwd_filter n2 c5 h9 w7 k6 r3 s3 stride2 pad1 f32 nchw
""".strip().splitlines()

UNITS = """
conv_fwd n2 c20 h9 w7 k24 r3 s3 pad1 bf16 nhwc
conv_fwd n1 c16 h10 w20 k16 r5 s5 pad2 g16 bf16 nhwc
conv_fwd n1 c8 h9 w19 k8 r3 s3 pad1 stride2 g8 f32 nchw
conv_fwd n1 c32 h9 w7 k32 r3 s3 stride2 g8 f16 nchw
conv_fwd n1 c16 h9 w7 k16 r3 s3 pad1 g2 f32 nhwc
conv_fwd n1 c3 h17 w17 k8 r5 s5 pad2 bf16 nhwc
conv_fwd n2 c3 h8 w8 k8 r4 s4 stride4 bf16 nhwc
conv_bwd_data n2 c24 h9 w7 k16 r3 s3 pad1 stride2 bf16 nhwc
conv_bwd_data n1 c8 h9 w19 k8 r3 s3 pad1 stride2 g8 f32 nhwc
conv_bwd_data n1 c3 h17 w17 k8 r3 s3 pad1 bf16 nchw
conv_bwd_data n2 c3 h8 w8 k8 r4 s4 stride4 bf16 nhwc
conv_bwd_filter n2 c20 h9 w7 k12 r3 s3 stride2 f16 nhwc
conv_bwd_filter n2 c5 h9 w7 k6 r3 s3 pad1 f32 nchw
conv_bwd_filter n1 c16 h11 w21 k16 r3 s3 g16 f16 nhwc
conv_bwd_filter n1 c3 h9 w10 k8 r4 s4 stride4 bf16 nhwc
""".strip().splitlines()

# an algorithm that says that it spreads, and where it is seen to
SPREADING = {
    ("depthwise_banded", "fwd"): "n1 c16 h10 w20 k16 r5 s5 pad2 g16 bf16 nhwc",
    ("depthwise_banded", "bwd_data"): "n1 c16 h10 w20 k16 r5 s5 pad2 g16 bf16 nhwc",
    ("depthwise_banded", "bwd_filter"): "n1 c16 h11 w21 k16 r3 s3 g16 f16 nhwc",
    ("depthwise_sliding", "bwd_filter"): "n1 c16 h11 w21 k16 r3 s3 g16 f16 nhwc",
    ("fft", "fwd"): "n1 c2 h16 w16 k2 r9 s9 pad4 g2 f32 nchw",
    ("fft", "bwd_data"): "n1 c2 h16 w16 k2 r9 s9 pad4 g2 f32 nchw",
    ("fft", "bwd_filter"): "n1 c2 h16 w16 k2 r9 s9 pad4 g2 f32 nchw",
    ("fft_spectra", "fwd"): "n1 c2 h16 w16 k2 r12 s12 pad6 f32 nchw",
    ("fft_spectra", "bwd_data"): "n1 c2 h16 w16 k2 r12 s12 pad6 f32 nchw",
    ("fft_products", "fwd"): "n1 c2 h16 w16 k2 r12 s12 pad6 f32 nchw",
    ("fft_products", "bwd_data"): "n1 c2 h16 w16 k2 r12 s12 pad6 f32 nchw",
    ("fft_products", "bwd_filter"): "n1 c2 h16 w16 k2 r12 s12 pad6 f32 nchw",
    ("grouped", "fwd"): "n1 c32 h9 w7 k32 r3 s3 g8 bf16 nhwc",
    ("grouped", "bwd_data"): "n1 c32 h9 w7 k32 r3 s3 g8 bf16 nhwc",
    ("grouped", "bwd_filter"): "n2 c32 h9 w7 k32 r3 s3 pad1 g8 bf16 nhwc",
    ("grouped_3xtf32", "fwd"): "n1 c16 h9 w7 k16 r3 s3 g4 f32 nhwc",
    ("grouped_3xtf32", "bwd_data"): "n1 c16 h9 w7 k16 r3 s3 g4 f32 nhwc",
    ("grouped_tf32", "fwd"): "n1 c16 h9 w7 k16 r3 s3 g4 f32 nhwc",
    ("grouped_tf32", "bwd_data"): "n1 c16 h9 w7 k16 r3 s3 g4 f32 nhwc",
    ("implicit_gemm_wgmma", "bwd_filter"): "n2 c40 h9 w7 k16 r3 s3 bf16 nhwc",
    ("implicit_gemm_wgmma_in_lines", "bwd_filter"): "n1 c32 h5 w7 k32 r3 s3 bf16 nhwc",
    ("implicit_gemm_wgmma_in_boxes", "bwd_filter"): "n1 c32 h5 w7 k32 r3 s3 bf16 nhwc",
    ("stem", "bwd_data"): "n1 c3 h17 w17 k8 r3 s3 stride2 bf16 nhwc",
    ("stem", "bwd_filter"): "n2 c3 h17 w17 k8 r3 s3 bf16 nhwc",
    ("stem_3xtf32", "bwd_data"): "n1 c3 h17 w17 k8 r3 s3 stride2 f32 nhwc",
    ("stem_3xtf32", "bwd_filter"): "n2 c3 h17 w17 k8 r3 s3 f32 nhwc",
    ("stem_3xf16", "bwd_data"): "n1 c3 h17 w17 k8 r3 s3 stride2 f32 nhwc",
    ("stem_3xf16", "bwd_filter"): "n2 c3 h17 w17 k8 r3 s3 f32 nhwc",
    ("stem_tf32", "bwd_data"): "n1 c3 h17 w17 k8 r3 s3 stride2 f32 nhwc",
    ("stem_tf32", "bwd_filter"): "n2 c3 h17 w17 k8 r3 s3 f32 nhwc",
    ("winograd_4", "fwd"): "n1 c2 h7 w8 k2 r3 s3 f32 nhwc",
    ("winograd_4", "bwd_data"): "n1 c2 h7 w8 k2 r3 s3 f32 nhwc",
    ("winograd_filter_4", "bwd_filter"): "n1 c2 h7 w8 k2 r3 s3 f32 nhwc",
    ("winograd_filter_2", "bwd_filter"): "n1 c2 h7 w8 k2 r3 s3 f32 nhwc",
    ("winograd_4_3xf16", "fwd"): "n1 c2 h7 w8 k2 r3 s3 f32 nhwc",
    ("winograd_4_3xf16", "bwd_data"): "n1 c2 h7 w8 k2 r3 s3 f32 nhwc",
    ("winograd_filter_4_3xf16", "bwd_filter"): "n1 c2 h7 w8 k2 r3 s3 f32 nhwc",
    ("winograd_filter_2_3xf16", "bwd_filter"): "n1 c2 h7 w8 k2 r3 s3 f32 nhwc",
}


@pytest.fixture(autouse=True)
def exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of products by warpgroups change places wherever they can, on all devices."""
    monkeypatch.setattr(warpgroup_gemm, "_FASTER", 1e9)


def is_spread(algorithm: Algorithm, problem: Convolution, device: Any, count: int) -> bool:
    kernel, room = algorithm.build(problem, device), algorithm.workspace(problem, device)
    scratch = device.allocate(max(1, room))

    def run(inputs: list[Buffer], output: Buffer) -> None:
        device.write(scratch.pointer, np.full(max(1, room), 0xFF, np.uint8))
        mirrors = [_Mirror(device, buffer.memory, buffer.pointer) for buffer in (*inputs, output)]
        kernel(None, [mirror.pointer for mirror in mirrors], 1.0, 0.0, scratch.pointer if room else 0)
        device.synchronize()
        mirrors[-1].fetch()

    return spread_of(problem, run, count)


def check(problem: Convolution, device: Any, count: int = 6) -> None:
    for algorithm in takers(algorithms(problem, device.target), problem, device):
        said = algorithm.spreads(problem, device)
        if said is None:
            assert not is_spread(algorithm, problem, device, count), f"{algorithm.name} spreads, {problem}"


@pytest.mark.parametrize("text", PLAIN)
def test_it_reaches_what_reads_it(text: str, device: Any) -> None:
    check(convolution(text), device)


@pytest.mark.parametrize("text", UNITS)
def test_it_reaches_what_reads_it_in_cuda(text: str, cuda_device: Any) -> None:
    check(convolution(text), cuda_device)


@pytest.mark.parametrize(("name", "direction"), SPREADING)
def test_who_says_that_it_spreads_does(
    name: str, direction: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "wgmma" in name:
        monkeypatch.setattr(
            cases, "GUARD", 128
        )  # addresses that the copy engine takes, or another kernel runs
    problem = convolution(SPREADING[name, direction], direction)
    taking = {a.name: a for a in takers(algorithms(problem, "cuda"), problem, cuda_device)}
    assert taking[name].spreads(problem, cuda_device)
    assert is_spread(taking[name], problem, cuda_device, 40)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_all_that_spread_are_listed(direction: str, cuda_device: Any) -> None:
    problems = [convolution(text) for text in UNITS if f"_{direction} " in text]
    problems += [convolution(words, d) for (_, d), words in SPREADING.items() if d == direction]
    found = {
        algorithm.name
        for problem in problems
        for algorithm in takers(algorithms(problem, "cuda"), problem, cuda_device)
        if algorithm.spreads(problem, cuda_device)
    }
    # patches, merged groups, and what stands between copies run another algorithm, and spread as that does
    others = {
        name for name in found if name.startswith(("patch", "groups_merged")) or name.endswith("_copied")
    }
    assert found - others == {name for name, d in SPREADING if d == direction}


def test_methods_of_cudnn_that_transform() -> None:
    from jitdnn.kernels.cudnn.table import ALGORITHMS

    for (_, direction), listed in ALGORITHMS.items():
        problem = convolution("n1 c8 h8 w8 k8 r3 s3 pad1", direction)
        for algorithm in listed:
            transforms = any(word in algorithm.name for word in ("winograd", "fft"))
            assert (algorithm.spreads(problem, None) is not None) == transforms  # type: ignore[arg-type]
