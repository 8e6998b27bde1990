"""The gradient of a bias on GPUs: channels first and last, few and many."""

from __future__ import annotations

from typing import Any

import pytest

from cases import ARRANGEMENTS, arranged
from harness import check
from jitdnn.problems import parse

PROBLEMS = [
    "n1 k1",
    "n7 k3",
    "n3 k5 q70",
    "n2 k19 p7 q9",
    "n2 k24 p7 q9 nhwc bf16",
    "n3 k2 p90 q80",
    "n5 k40 p31 q20 nhwc",
    "n2 k3 o4 p5 q6 f64",
    "n0 k4 p3 q3",
]


@pytest.mark.parametrize("words", PROBLEMS)
def test_awkward_shapes(words: str, device: Any) -> None:
    assert "rows" in check(parse(f"conv_bwd_bias {words}"), device)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, device: Any) -> None:
    assert "rows" in check(arranged(parse("conv_bwd_bias n3 k18 p7 q5"), arrangement), device)
