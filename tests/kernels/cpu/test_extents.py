"""Kernels whose code serves several batches or row counts: all of them right, and not compiled anew.

`check` runs every algorithm that takes a problem against the float64 reference, in memory that shows misuse.
"""

from __future__ import annotations

import logging

import pytest

from conformance import INSTRUCTION_SETS, accepting, check
from convolution_cases import sum_of_sizes
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu import extents
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import parse
from jitdnn.rtcg.extents import Extent

# problems with a number open, and numbers for it
BATCHES = {
    "conv_fwd n{} c16 h9 w11 k20 r3 s3 stride1 pad1 f32 nhwc": (6, 5, 1),
    "conv_fwd n{} c16 h9 w11 k20 r3 s3 stride1 pad1 f32 nchw": (6, 5, 1),
    "conv_fwd n{} c5 h12 w13 k7 r3 s3 stride2 pad1 f32 nchw": (4, 3, 9),
    "conv_fwd n{} c24 h7 w5 k18 r1 s1 stride1 pad0 f32 nhwc": (6, 5, 11),
    "conv_fwd n{} c24 h7 w5 k18 r1 s1 stride1 pad0 f32 nchw": (6, 5, 11),
    "conv_bwd_data n{} c8 h9 w10 k12 r3 s3 stride2 pad1 f32 nhwc": (4, 3),
    "conv_bwd_filter n{} c8 h9 w10 k12 r3 s3 stride1 pad1 f32 nchw": (4, 3, 5),
    "conv_bwd_filter n{} c20 h9 w10 k20 r3 s3 stride1 pad1 g20 f32 nhwc": (4, 3, 5),
    "conv_fwd n{} c20 h9 w10 k20 r3 s3 stride1 pad1 g20 f32 nchw": (4, 3, 5),
    "conv_fwd n{} c32 h6 w7 k32 r3 s3 stride1 pad1 g4 f32 nhwc": (4, 3, 5),
}
WIDTHS = {
    "conv_fwd n2 c20 h5 w{} k20 r3 s3 stride1 pad1 g20 f32 nhwc": (34, 54, 35, 3),
    "conv_fwd n1 c40 h6 w{} k40 r5 s5 stride2 pad2 g40 f32 nhwc": (41, 61, 40, 2),
    "conv_fwd n1 c64 h1 w{} k24 r1 s3 stride1 pad0x1 f32 nhwc": (41, 61, 40, 2),
    "conv_fwd n2 c30 h5 w{} k24 r3 s3 stride1 pad1 f32 nhwc": (27, 41, 13),
}
ROWS = {
    "matmul m{} k20 n45": (71, 85, 130),
    "matmul batch3 m{} k17 n40": (70, 77),
    "matmul batch{} m9 k17 n40": (4, 3, 7),
    "matmul m{} k300 n33 f64": (90, 131),
}
OPEN = {**BATCHES, **WIDTHS, **ROWS}


@pytest.mark.parametrize("words", OPEN)
def test_every_extent_is_computed_right(words):
    for extent in OPEN[words]:
        check(parse(words.format(extent)), threads=(2,))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
def test_every_instruction_set_takes_extents_as_arguments(cpu):
    for words in ("conv_fwd n{} c9 h6 w7 k10 r3 s3 stride1 pad1 f32 nhwc", "matmul m{} k20 n45"):
        for extent in (66, 67):
            check(parse(words.format(extent)), cpu=cpu, threads=(1,), scales=((1.0, 0.0),))


# one result of each stride phase along an axis, which lie 16 elements apart or further
NEIGHBOURING_PHASES = [
    "conv_bwd_data n2 c32 w2 k5 s3 stride2 pad1 f32 nhwc",
    "conv_bwd_data n2 c20 h2 w2 k20 r3 s3 stride2 pad1 f32 nhwc",
    "conv_bwd_data n2 c20 h2 w2 k20 r3 s3 stride2 pad1 g5 f32 nhwc",
    "conv_bwd_data n1 c16 d2 h3 w2 k6 t3 r3 s3 stride2x3x2 pad1 f32 nhwc",
    "conv_bwd_data n1 c4 h4 w2 k8 r3 s1 stride2 pad1x0 f32 nchw x=s1,16,4,64",
    # as a piece of a larger one: no filter reaches a column
    "conv_bwd_data n2 c8 h5 w2 k8 r3 s1 stride2x3 pad2x1:0 dil1x2 g2 flip f64 nchw x=s3,36,6,-288",
]
# one stride phase along each axis, with a part of the taps or none
LONE_PHASES = [
    "conv_bwd_data n2 c5 w1 k4 s4 stride3 pad2 f32 nchw",
    "conv_bwd_data n2 c12 h1 w1 k8 r3 s3 stride2 pad1 f32 nhwc",
    "conv_bwd_data n2 c12 h1 w1 k8 r3 s3 stride2 pad1 g4 f32 nhwc",
    "conv_bwd_data n1 c3 d1 h1 w6 k5 t3 r4 s3 stride2x3x1 pad1x2x1 f32 nchw",
    "conv_bwd_data n1 c2 h1 w4 k3 r4 s3 stride2x1 pad10:0x3:0 dil3x2 flip f32 nchw x=s16,8,4,1 y=nhwc",
    "conv_bwd_data n0 c2 h1 w1 k2 r4 s2 stride2x1 pad10:0x2 dil3 f32 nchw",
]


@pytest.mark.parametrize("words", NEIGHBOURING_PHASES + LONE_PHASES)
def test_strided_gradients_of_small_images(words: str) -> None:
    """Each result is written, and by its own taps."""
    check(parse(words), threads=(2,))


@pytest.mark.parametrize(
    "words",
    [
        "n2 c20 h4 w2 k3 r3 s2 stride1x2 pad1x0",
        "n2 c20 h9 w2 k20 r3 s3 stride1x2 pad1 g20",
        "n1 c16 w4 k1 s3 stride4 pad1",
    ],
)
def test_operands_of_neighbouring_phases(words: str) -> None:
    """Stride phases that are neighbours in the result have an operand's pixels far apart."""
    problem = parse(f"conv_bwd_data {words} f32 nchw")
    assert {"direct", "implicit_gemm"} <= check(problem, sum_of_sizes(problem, "nhwc"), threads=(2,))


@pytest.mark.parametrize(
    ("words", "extents", "name"),
    [
        ("conv_fwd n{} c64 h28 w28 k64 r3 s3 stride1 pad1 f32 nhwc", (8, 7, 9, 12), "implicit_gemm"),
        ("conv_fwd n{} c64 h28 w28 k64 r3 s3 stride1 pad1 f32 nchw", (8, 7, 9, 12), "winograd_4"),
        ("conv_fwd n{} c96 h14 w14 k96 r3 s3 stride1 pad1 g96 f32 nhwc", (8, 7, 5), "depthwise"),
        ("conv_fwd n1 c96 h14 w{} k96 r3 s3 stride1 pad1 g96 f32 nhwc", (80, 60, 90), "depthwise"),
        ("conv_fwd n{} c64 h14 w14 k64 r3 s3 stride1 pad1 g8 f32 nchw", (8, 7, 5, 2), "direct"),
        ("matmul m{} k256 n512", (1003, 1022, 1036, 1400), "packed_gemm"),
    ],
)
def test_one_module_serves(words, extents, name):
    """Of what is chosen for these, code is shared; that it must be is no promise for all sizes."""
    keys = set()
    device = host(threads=1)
    for extent in extents:
        problem = parse(words.format(extent))
        (algorithm,) = (one for one in accepting(problem, device) if one.name == name)
        keys.add(algorithm.build(problem, device).record()["library"])
    assert len(keys) == 1


def test_what_cannot_be_traced_for_all_batches_is_compiled_for_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And says so; in tests it is an error."""
    monkeypatch.setattr(Extent, "__mul__", None)
    monkeypatch.setattr(Extent, "__rmul__", None)
    problem = parse("conv_fwd n3 c7 h9 w8 k5 r1 s1 f32")
    device = host(1)
    (algorithm,) = (one for one in algorithms(problem, "cpu") if one.name == "implicit_gemm")
    with pytest.raises(TypeError):
        algorithm.build(problem, device)
    monkeypatch.setattr(extents, "is_strict", False)
    with caplog.at_level(logging.WARNING, logger="jitdnn"):
        algorithm.build(problem, device)
    assert "is compiled for each shape" in caplog.text
