"""The versions of algorithms, which say which measurements are still theirs."""

from __future__ import annotations

from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.table import ALGORITHMS


def test_a_version_goes_up_with_those_of_its_bases() -> None:
    """Products by warpgroups have the same kernels, whatever they are of."""
    found = {type(one) for ones in ALGORITHMS.values() for one in ones if isinstance(one, WarpgroupGemm)}
    assert len(found) > 10
    for one in found:
        assert one.version >= max(getattr(base, "version", 0) for base in one.__mro__), one.__name__
