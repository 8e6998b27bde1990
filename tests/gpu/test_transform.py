"""Copies between layouts and types, borders, folding and joining on GPUs."""

from __future__ import annotations

from typing import Any

import pytest

import cases
from harness import check
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.formulas.transform import CopyTransform
from jitdnn.kernels.gpu.elementwise.generator import ElementwiseLoops
from jitdnn.problems import parse
from jitdnn.rtcg.expression import trace

PROBLEMS = (
    "transform shape3x5x7 pad1:2x0x3 value1.5 f32",
    "transform shape3x5x7 pad0 f32 to_i8",
    "transform shape2x35x7x3 pad0 f16 to_f32 y=nhwc",
    "transform shape2x5x7x33 pad0x1x0x2 bf16 x=nhwc",
    "transform shape70x5 pad1 fill_-inf f64",
    "transform shape2x3x4x5x6 pad0x0x1:0x2x0:1 i32",
    "transform shape2x64x8x16 pad0 bf16 y=nhwc",
    "transform shape2x72x9x8 pad0 f32 x=nhwc",
    "transform shape2x3x20x30 pad0 u8 to_f32 x=nhwc",
    "fold shape2x5x6x9 by2x3 f32",
    "fold shape2x5x6x9 by2x3 dcr bf16 y=nhwc",
    "unfold shape2x12x3x5 by2x3 dcr f32",
    "fold shape1x2x4x6x4 by2x3x1 u8",
    "concat shape4x9x5 axis1 parts2x3x4 f32",
    "concat shape4x9x5 axis0 parts1x0x3 i64",
    "concat shape4x9x5x3 axis1 parts2x7 f16 nhwc part0=nchw",
)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("text", PROBLEMS)
def test_conformance(device: Any, text: str, aligned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if aligned:
        monkeypatch.setattr(cases, "GUARD", 1024)
    assert check(parse(text), device) == {"elementwise"}


def test_refusals(device: Any) -> None:
    reason = CopyTransform(ElementwiseLoops()).refuse(
        parse(PROBLEMS[0]), device, Epilogue(trace(lambda a: a))
    )
    assert "no epilogue" in str(reason)


def test_compiles_for_every_architecture(architecture: Any) -> None:
    for dtype in ("f32", "bf16"):
        for way in ("y=nhwc", "x=nhwc"):
            CopyTransform(ElementwiseLoops()).build(
                parse(f"transform shape64x256x56x56 pad0 {dtype} {way}"), architecture
            )
