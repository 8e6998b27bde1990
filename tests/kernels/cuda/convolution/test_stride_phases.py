"""What cost models say of data gradients whose stride phases have unlike numbers of products."""

from __future__ import annotations

import pytest

from jitdnn.devices import cuda
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import ImplicitGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.problems import parse


@pytest.mark.parametrize("algorithm", [ImplicitGemm(), WarpgroupGemm()], ids=lambda one: one.name)
def test_phases_without_products_make_the_others_no_faster(algorithm: ImplicitGemm | WarpgroupGemm) -> None:
    """A 1x1 filter of stride 2: one of four phases has all of the products."""
    device = cuda.offline("sm_90a")
    strided = parse("conv_bwd_data n8 c1024 h14 w14 k2048 r1 s1 stride2 bf16 nhwc")
    alone = parse("conv_bwd_data n8 c1024 h7 w7 k2048 r1 s1 bf16 nhwc")
    assert algorithm.estimate(strided, device) > algorithm.estimate(alone, device)
