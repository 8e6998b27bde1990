"""Transposed convolutions in Inductor's graphs whose windows touch, as calls of ours, in place, and their gradients."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from inductor_graphs import compiled  # noqa: E402
from jitdnn.frameworks.torch import (  # noqa: E402
    choice,
    inductor_concatenation,
    inductor_pooling,
    inductor_transposed,
)
from jitdnn.frameworks.torch.choice import Decision  # noqa: E402
from jitdnn.frameworks.torch.inductor_graph import Rewriter  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
CONV = {2: nn.Conv2d, 3: nn.Conv3d}
UP = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORM = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
ORDER = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for one in (inductor_concatenation, inductor_pooling, inductor_transposed):
        monkeypatch.setattr(one, "is_on_gpu", lambda _: True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Level(nn.Module):
    """A level of a U-Net, whose skip connection comes second."""

    def __init__(self, axes: int, has_bias: bool) -> None:
        super().__init__()
        self.down = nn.Sequential(CONV[axes](1, 8, 3, padding=1), NORM[axes](8), nn.LeakyReLU(0.1))
        self.below = nn.Sequential(
            POOL[axes](2), CONV[axes](8, 16, 3, padding=1), NORM[axes](16), nn.LeakyReLU(0.1)
        )
        self.up, self.join = UP[axes](16, 8, 2, 2, bias=has_bias), CONV[axes](16, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        y = self.down(x)
        return self.join(torch.cat((self.up(self.below(y)), y), 1))


def gradients(run: Any, own: Any, x: Any, is_low: bool = True) -> list[Any]:
    with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
        y = run(x)
    return [y, *torch.autograd.grad(y.float().square().mean(), list(own.parameters()))]


def apart(found: list[Any], exact: list[Any]) -> float:
    pairs = [(one.double(), other.double()) for one, other in zip(found, exact, strict=True)]
    distance = sum(float((one - other).square().sum()) for one, other in pairs)
    return (distance / sum(float(other.square().sum()) for _, other in pairs)) ** 0.5


@pytest.mark.parametrize(("axes", "has_bias"), [(2, True), (3, False)])
def test_a_training_step(axes: int, has_bias: bool) -> None:
    """The result is written beside the skip connection, and its gradient is read there: no pass lays anything out."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    own = Level(axes, has_bias).to(memory_format=ORDER[axes])
    x = random(2, 1, *(8, 6, 4)[:axes]).contiguous(memory_format=ORDER[axes])
    run = torch.compile(own, options={"post_grad_custom_pre_pass": jt.InductorPass(measure="never")})
    with config.patch(fx_graph_cache=False):
        found, (forward, backward) = run_and_get_code(lambda: gradients(run, own, x))
    exact = gradients(own, own, x, False)
    assert apart(found, exact) <= 1.5 * apart(gradients(twin := copy.deepcopy(own), twin, x), exact)
    kinds = re.findall(r"\"\('(transposed|forward|data|filter)', ", forward)
    assert kinds.count("transposed") == 1
    places = re.findall(r"= reinterpret_tensor\((buf\d+), \(2, 8, .*\), (\d+)\)  # alias", forward)
    assert sorted(int(offset) for _, offset in places) == [0, 8]
    assert len({whole for whole, _ in places}) == 1
    assert re.findall(r"\"\('(forward)', ", backward) == ["forward"]


def test_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's kernel, the product, or the call, as they were measured."""
    torch.manual_seed(0)
    own = Level(2, True).to(memory_format=torch.channels_last)
    x = random(2, 1, 8, 6).contiguous(memory_format=torch.channels_last)
    for product, whole, wanted in [
        (False, False, "aten.convolution.default"),
        (True, False, "aten.permute.default"),
        (True, True, "jitdnn.settled_convolution.default"),
    ]:
        asked: list[str] = []

        def decide(
            name: str, *_: Any, asked: list[str] = asked, product: bool = product, whole: bool = whole
        ) -> Any:
            asked.append(name)
            return Decision(product if "as product" in name else whole, "said")

        torch._dynamo.reset()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choice, "decide", decide)
            patch.setattr(Rewriter, "run", lambda self: None)
            run, graphs, _ = compiled(own)
            found = gradients(run, own, x)
        # x is saved here as the graph has it, with channels first, and its gradient is no call
        assert ["as product" in name for name in asked] == [True, False, True]
        assert wanted in graphs[0]
        assert all(bool(one.isfinite().all()) for one in found)
