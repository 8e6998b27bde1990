"""Convolutions with a prologue on x and sums by channel of y on every GPU target: kernels one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from harness import check
from jitdnn.problems import parse


@pytest.mark.parametrize(
    "words",
    [
        "fwd n2 c5 h7 w6 k9 r3 s3 pad1 stride2 prologue=relu sums",
        "fwd n2 c8 w9 k12 s3 dil2 pad2 g2 f16 nhwc sums",
        "bwd_filter n2 c5 h7 w6 k9 r3 s3 pad1 nhwc prologue=sigmoid",
    ],
)
def test_separate_kernels(words: str, device: Any) -> None:
    assert "separate_kernels" in check(parse(f"fused_conv_{words}"), device)
