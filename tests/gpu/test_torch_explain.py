"""What `jitdnn.torch.explain` tells of layers on a GPU: the algorithms of that GPU, not those of the processor."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.kernels.cpu import table as cpu  # noqa: E402
from jitdnn.kernels.cuda.table import ALGORITHMS  # noqa: E402
from jitdnn.problems.convolution import Convolution  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU here", allow_module_level=True)


def test_rows_name_algorithms_of_the_gpu() -> None:
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False).cuda()
    model = jt.convert(layer, measure="never")
    rows = jt.explain(model, torch.randn(8, 64, 56, 56, device="cuda")).rows
    here = ALGORITHMS[Convolution, "fwd"]
    on_processors = {one.name for one in cpu.ALGORITHMS[Convolution, "fwd"]}
    for name in ("forward", "filter"):
        (row,) = (row for row in rows if row.direction == name)
        assert row.algorithm in {one.name for one in here} - on_processors
