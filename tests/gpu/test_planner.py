"""What the planner picks on a GPU: the matrix units where the request allows their arithmetic, and only there."""

from __future__ import annotations

import pytest

from jitdnn.devices import cuda
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.problems import parse

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
LAYER = "conv_fwd n64 c64 h28 w28 k64 r3 s3 stride1 pad1 {} nhwc"


@pytest.mark.parametrize(
    ("dtype", "math", "accuracy", "algorithm"),
    [
        ("f32", "fp32", "standard", "implicit_gemm_3xf16"),
        ("f32", "fp32", "strict", "direct"),
        ("f32", "tf32", "standard", "implicit_gemm_wgmma"),
        ("f32", "tf32", "strict", "implicit_gemm_wgmma"),
        ("bf16", "fp32", "standard", "implicit_gemm_wgmma"),
        ("f64", "tf32", "standard", "direct"),
    ],
)
def test_arithmetic_follows_the_request(dtype: str, math: str, accuracy: str, algorithm: str) -> None:
    request = Request(math=math, accuracy=accuracy)
    plan = get(parse(LAYER.format(dtype)), cuda.offline("sm_90a"), request, store=Store(None))
    assert plan.algorithm.removesuffix("_in_place") == algorithm
