"""Rows of a table and the sums that come back, on GPUs, with indices that are none passed over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cases
from cases import ARRANGEMENTS, arranged
from harness import check
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.sampling.embedding import EmbeddingRows
from jitdnn.problems import parse
from jitdnn.rtcg.expression import trace

KINDS = ["embedding_fwd", "embedding_bwd", "embedding_bwd padding0"]
SHAPES = [
    "rows10 columns7 shape5",
    "rows1 columns64 shape50 indices32",  # all sums in one row
    "rows300 columns3 shape2x3x4",  # most rows get nothing
    "rows30 columns33 shape0x4",
    "rows40 columns130 shape30x40 indices32",
    "rows2000 columns40 shape900",  # several rows to a range
]


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("number", range(len(SHAPES)))
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_shapes(
    device: Any, kind: str, number: int, aligned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if aligned:
        monkeypatch.setattr(cases, "GUARD", 1024)
    dtype = ("f32", "bf16", "f64", "f16")[number % 4]
    assert check(parse(f"{kind} {SHAPES[number]} {dtype}"), device) == {"rows"}


@pytest.mark.parametrize("words", ["rows30 columns150 f32", "rows700 columns8 bf16", "rows3 columns9 f64"])
def test_crowded_rows(device: Any, words: str) -> None:
    """Most indices name the same few rows."""
    problem = parse(f"embedding_bwd {words} shape6000")
    rng = np.random.default_rng(0)
    values = rng.standard_normal(problem.inputs[0].descriptor.shape)
    indices = np.where(rng.random(6000) < 0.7, 1, rng.integers(0, problem.rows, 6000))
    check(problem, device, inputs=[values, indices])


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(device: Any, kind: str, arrangement: str) -> None:
    check(arranged(parse(f"{kind} rows12 columns19 shape3x5"), arrangement), device)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_indices_that_are_no_rows(device: Any, kind: str) -> None:
    problem = parse(f"{kind} rows9 columns8 shape40")
    rng = np.random.default_rng(0)
    values = rng.standard_normal(problem.inputs[0].descriptor.shape)
    indices = rng.integers(-5, 15, 40)
    indices[:2] = (2**62, -(2**62))
    check(problem, device, inputs=[values, indices])


def test_refusals(device: Any) -> None:
    problem = parse("embedding_fwd rows9 columns8 shape40")
    assert "no epilogue" in str(EmbeddingRows().refuse(problem, device, Epilogue(trace(lambda a: a))))


def test_compiles_for_every_architecture(architecture: Any) -> None:
    for kind in KINDS[:2]:
        for dtype in ("f32", "bf16", "f64"):
            EmbeddingRows().build(parse(f"{kind} rows50000 columns1024 shape64x512 {dtype}"), architecture)
