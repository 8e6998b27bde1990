"""Convolutions and matrix products of 8-bit reals by every algorithm of the CPU that takes them."""

from __future__ import annotations

import pytest

from conformance import check
from jitdnn.problems import parse


@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n2 c6 h9 w7 k10 r3 s3 pad1 f8e5m2 by_f8e4m3 to_f8e4m3",
        "conv_fwd n2 c16 h9 w7 k16 r3 s3 pad1 g2 f8e4m3 by_f8e5m2 to_bf16 nhwc",
        "conv_bwd_data n2 c6 h9 w7 k10 r3 s3 pad1 stride2 f8e5m2 by_f8e4m3 to_f16",
        "conv_bwd_filter n2 c16 h9 w7 k16 r3 s3 pad1 g2 f8e4m3 by_f8e5m2 to_bf16 nhwc",
        "conv_fwd n2 c8 h9 w17 k8 r3 s3 pad1 g8 f8e4m3 to_f8e5m2",
        "conv_bwd_filter n2 c8 h9 w17 k8 r3 s3 pad1 g8 f8e4m3",
        "matmul m5 k7 n9 f8e4m3 by_f8e5m2 to_f8e5m2",
        "matmul batch3 m5 k37 n9 f8e4m3 b=columns",
        "matmul m5 k70 n9 i8 to_i8",
        "matmul m33 k2000 n9 i8 to_i32 a=columns",
    ],
)
def test_products_of_bytes(words: str) -> None:
    problem = parse(words)
    assert parse(str(problem)) == problem
    assert check(problem) > {"reference"}
