"""What `jitdnn.torch.explain` tells of layers on a GPU: the algorithms of that GPU, not those of the processor."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.kernels.cuda.table import ALGORITHMS  # noqa: E402
from jitdnn.problems.convolution import Convolution  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU here", allow_module_level=True)


def test_rows_name_algorithms_of_the_gpu() -> None:
    layer = torch.nn.Conv2d(16, 32, 3, padding=1, bias=False).cuda()
    model = jt.convert(layer.to(memory_format=torch.channels_last), measure="never")
    x = torch.randn(2, 16, 9, 9, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16):
        rows = jt.explain(model, x).rows
    for direction, name in (("fwd", "forward"), ("bwd_filter", "filter")):
        (row,) = (row for row in rows if row.direction == name)
        assert row.algorithm in {one.name for one in ALGORITHMS[Convolution, direction]} - {"direct"}
