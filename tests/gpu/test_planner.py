"""What the planner picks on a GPU: the matrix units where the request allows their arithmetic, and only there."""

from __future__ import annotations

import re

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
        ("f32", "fp32", "strict", "implicit_gemm_fma"),
        ("f32", "tf32", "standard", "implicit_gemm_wgmma"),
        ("f32", "tf32", "strict", "implicit_gemm_wgmma"),
        ("bf16", "fp32", "standard", "implicit_gemm_wgmma"),
        ("f64", "tf32", "standard", "winograd_4"),
    ],
)
def test_arithmetic_follows_the_request(dtype: str, math: str, accuracy: str, algorithm: str) -> None:
    request = Request(math=math, accuracy=accuracy)
    plan = get(parse(LAYER.format(dtype)), cuda.offline("sm_90a"), request, store=Store(None))
    assert re.sub("_divided|_in_place|_in_lines", "", plan.algorithm) == algorithm


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(
    ("words", "is_shared"),
    [
        ("n1 c32 h112 w112 window112", True),  # four threads would read 12,544 vectors one by one
        ("n1 c672 h14 w14 window14", True),
        ("n32 c96 h56 w56 window56", True),
        ("n32 c64 h112 w112 window3 stride2 pad1", False),
    ],
)
def test_large_windows_are_shared_by_threads(words: str, is_shared: bool, dtype: str, layout: str) -> None:
    for mode in ("avg", "max"):
        problem = parse(f"pool_fwd {mode} {words} {dtype} {layout}")
        plan = get(problem, cuda.offline("sm_90a"), Request(), store=Store(None))
        assert (plan.algorithm == "groups") is is_shared, problem
