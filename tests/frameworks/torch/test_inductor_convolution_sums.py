"""Convolutions whose results are summed as they leave, in Inductor's graphs: which, and the same gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.fx import Graph  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from inductor_graphs import compiled, count  # noqa: E402
from jitdnn.errors import InvalidArgument, InvalidShape  # noqa: E402
from jitdnn.frameworks.torch import (  # noqa: E402
    choice,
    inductor_convolution_sums,
    inductor_sums,
    inductor_values,
)
from jitdnn.frameworks.torch.channel_sums import MOMENTS, SUM, Sums, channel_sums  # noqa: E402
from jitdnn.frameworks.torch.choice import Decision  # noqa: E402
from jitdnn.frameworks.torch.convolution_sums import Summed  # noqa: E402
from jitdnn.frameworks.torch.settled import settled_convolution, text_of  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small graphs of this processor taken for large ones of a GPU, which has one kernel for both."""
    for one in (inductor_sums, inductor_values):
        monkeypatch.setattr(one, "is_on_gpu", lambda _: True)
        monkeypatch.setattr(one, "LEAST_BYTES", 0)
    monkeypatch.setattr(inductor_convolution_sums, "_is_free", lambda *_: True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(run: Any, own: Any, x: Any, is_low: bool) -> list[Any]:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
        y = run(x)
    return [y, *torch.autograd.grad(y.float().square().mean(), [x, *own.parameters()])]


def apart(found: list[Any], exact: list[Any]) -> float:
    """How far tensors are from others, relative to these."""
    wide = [(one.double(), other.double()) for one, other in zip(found, exact, strict=True)]
    distance = sum(float((one - other).square().sum()) for one, other in wide)
    return (distance / sum(float(other.square().sum()) for _, other in wide)) ** 0.5


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm3d(12), nn.InstanceNorm3d(12, affine=True), nn.InstanceNorm3d(12), nn.GroupNorm(3, 12)],
    ids=lambda one: type(one).__name__,
)
def test_layers(norm: Any) -> None:
    """The statistics come with the convolution, of the batch, of images and of groups of channels, and the sums of
    the gradient with that of the next convolution's data."""
    torch.manual_seed(0)
    own = nn.Sequential(
        nn.Conv3d(8, 12, 3, padding=1, bias=False), norm, nn.LeakyReLU(0.01), nn.Conv3d(12, 8, 3)
    )
    own = own.to(memory_format=torch.channels_last_3d)
    x = random(3, 8, 9, 7, 6).contiguous(memory_format=torch.channels_last_3d)
    exact = gradients(own.double(), own, x.double(), False)
    own.float()
    stock = gradients(own, own, x, True)
    run, graphs, _ = compiled(own)
    found = gradients(run, own, x, True)
    # what this partition saves of an instance normalization has its channels first
    is_turned = isinstance(norm, nn.InstanceNorm3d)
    assert [count(graph, "convolution_sums") for graph in graphs] == [1, 0 if is_turned else 1]
    assert count(graphs[0], "channel_sums") == count(graphs[0], "var_mean") == 0
    assert apart(found, exact) <= 1.5 * apart(stock, exact) + 1e-6


@pytest.mark.parametrize("is_faster", [False, True])
def test_statistics_that_inductor_computes_as_fast(is_faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pass of ours is no faster than Inductor's, a kernel for both may be, or all stays Inductor's."""
    monkeypatch.setattr(inductor_sums, "_is_faster", lambda *_: False)
    monkeypatch.setattr(inductor_convolution_sums, "_is_faster", lambda *_: is_faster)
    torch.manual_seed(0)
    layers = nn.Conv3d(8, 12, 3, padding=1, bias=False), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv3d(12, 8, 3)
    own = nn.Sequential(*layers).to(memory_format=torch.channels_last_3d)
    x = random(3, 8, 9, 7, 6).contiguous(memory_format=torch.channels_last_3d)
    exact = gradients(own.double(), own, x.double(), False)
    own.float()
    stock = gradients(own, own, x, True)
    run, graphs, _ = compiled(own)
    found = gradients(run, own, x, True)
    assert count(graphs[0], "convolution_sums") == int(is_faster)
    assert count(graphs[0], "channel_sums") == 0
    assert count(graphs[0], "var_mean") == int(not is_faster)
    assert apart(found, exact) <= 1.5 * apart(stock, exact) + 1e-6


class Beside(nn.Module):
    """A layer with a bias, whose result is put together with something else, or is not, and one behind it."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.first, self.parts = nn.Conv3d(8, 8, 1), parts
        self.last = nn.Conv3d(8 * parts, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        x = x.to(y.dtype)
        return self.last({1: y, 2: torch.cat((y, x), 1), 3: torch.cat((x, y, x), 1)}[self.parts])


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_gradients_of_a_bias(parts: int) -> None:
    """They are sums of what the gradient of the next layer's data gives, or of some of its channels."""
    torch.manual_seed(0)
    own = Beside(parts).to(memory_format=torch.channels_last_3d)
    x = random(3, 8, 9, 7, 6).contiguous(memory_format=torch.channels_last_3d)
    exact = gradients(own.double(), own, x.double(), False)
    own.float()
    stock = gradients(own, own, x, True)
    run, graphs, _ = compiled(own)
    found = gradients(run, own, x, True)
    assert count(graphs[1], "convolution_sums") == 1
    for one, other, wanted in zip(found, stock, exact, strict=True):
        assert apart([one], [wanted]) <= 1.5 * apart([other], [wanted]) + 1e-3


def test_layers_that_run_again_for_their_gradients() -> None:
    """Sums of a gradient read a result whose own sums come with it in the same graph."""
    torch.manual_seed(0)
    layers = nn.Conv3d(8, 12, 3, padding=1, bias=False), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv3d(12, 8, 3)
    own = nn.Sequential(*layers).to(memory_format=torch.channels_last_3d)
    x = random(3, 8, 9, 7, 6).contiguous(memory_format=torch.channels_last_3d)
    exact = gradients(own.double(), own, x.double(), False)
    own.float()
    stock = gradients(own, own, x, True)
    run, graphs, _ = compiled(lambda x: checkpoint(own, x, use_reentrant=False), saves_least=True)
    found = gradients(run, own, x, True)
    assert count(graphs[1], "convolution_sums") == 2
    assert apart(found, exact) <= 1.5 * apart(stock, exact) + 1e-6


def test_channels_that_are_told_when_a_graph_runs() -> None:
    graph = Graph()
    x, first = graph.placeholder("x"), graph.placeholder("first")
    part = graph.call_function(torch.ops.aten.slice.Tensor, (x, 1, first, 8))
    part.meta["val"] = torch.empty(2, 4, 3, 3)
    text = str(Sums((form(part.meta["val"]),), False, ((SUM, IDENTITY),), ""))
    graph.output(graph.call_function(channel_sums.default, ([part], text)))
    assert inductor_convolution_sums.sum_results(graph, "") == 0


def test_sums_of_other_channels_have_times_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one result: they are measured beside passes over these channels."""
    kinds: list[str] = []

    def decide(what: str, *_: Any) -> Decision:
        kinds.append(what)
        return Decision(False, "slower")

    monkeypatch.setattr(choice, "decide", decide)
    dy, w = (
        one.bfloat16().contiguous(memory_format=torch.channels_last)
        for one in (random(2, 8, 5, 4), random(8, 24, 3, 3))
    )
    x = torch.empty(2, 24, 5, 4, dtype=dy.dtype).contiguous(memory_format=torch.channels_last)
    graph = Graph()
    given = [graph.placeholder(name) for name in "ab"]
    y = graph.call_function(
        settled_convolution.default,
        (*given, None, text_of("data", x, w, dy, False, ([1, 1], [1, 1], [1, 1], False, [0, 0], 1), "")),
    )
    for node, value in zip((*given, y), (dy, w, x), strict=True):
        node.meta["val"] = value
    made = []
    for first, last in ((0, 8), (8, 16), (8, 24), (0, 24), (8, 16)):
        part = graph.call_function(torch.ops.aten.slice.Tensor, (y, 1, first, last))
        part.meta["val"] = x[:, first:last]
        text = str(Sums((form(part.meta["val"]),), False, ((SUM, IDENTITY),), ""))
        made.append(graph.call_function(channel_sums.default, ([part], text)))
    graph.output(tuple(made))
    assert inductor_convolution_sums.sum_results(graph, "") == 0
    assert len(kinds) == 5
    assert len(set(kinds)) == 4


@pytest.mark.parametrize(
    ("layer", "is_low"),
    [
        (nn.Conv3d(8, 12, 3, bias=False), False),  # of f32, whose variances are to be as exact
        (nn.Conv3d(8, 136, 3, bias=False), True),  # whose sums would not stay in registers
        (nn.Conv3d(8, 12, 3), True),  # a bias comes between
    ],
)
def test_what_stays(layer: Any, is_low: bool) -> None:
    own = nn.Sequential(layer, nn.InstanceNorm3d(layer.out_channels)).to(memory_format=torch.channels_last_3d)
    run, graphs, _ = compiled(own)
    gradients(run, own, random(2, 8, 9, 9, 9).contiguous(memory_format=torch.channels_last_3d), is_low)
    assert count(graphs[0], "convolution_sums") == 0


IDENTITY = '[["cast",["%0","torch.float32"],{}]]'
GATED = '[["aten.gt.Scalar",["%0",0],{}],["aten.where.self",["%3","%1","%2"],{}]]'
PRODUCT = GATED[:-1] + ',["aten.mul.Tensor",["%4","%0"],{}]]'


def form(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch.")


@pytest.mark.parametrize("by_image", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("direction", ["forward", "data"])
def test_operator(direction: str, dtype: Any, by_image: bool) -> None:
    """The result and its sums, or two of formulas with others; operands in another order of memory are laid out."""
    torch.manual_seed(0)
    x, w, dy = random(3, 4, 9, 8).to(dtype), random(5, 4, 3, 3).to(dtype), random(3, 5, 9, 8).to(dtype)
    x, dy = (one.contiguous(memory_format=torch.channels_last) for one in (x, dy))
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    own = text_of(direction, x, w, dy, False, geometry, "")
    number = random(3 if by_image else 1, 4, 1, 1)
    if direction == "forward":
        sums, place, a, operands = Sums((form(dy),), by_image, ((MOMENTS, IDENTITY),), ""), 0, x, []
        expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
        made = expected, expected.square()
    else:
        forms = (form(x), form(x), form(number))
        sums, place, a, operands = (
            Sums(forms, by_image, ((SUM, GATED), (SUM, PRODUCT)), ""),
            1,
            dy,
            [x, number],
        )
        expected = torch.nn.functional.conv_transpose2d(dy.double(), w.double(), padding=1)
        gated = torch.where(x > 0, expected, number.double())
        made = gated, gated * x
    axes = (2, 3) if by_image else (0, 2, 3)
    text = str(Summed(own, sums, place))
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
    for memory_format in (torch.channels_last, torch.contiguous_format):
        given = [one.contiguous(memory_format=memory_format) for one in operands]
        y, found = torch.ops.jitdnn.convolution_sums(
            a.contiguous(memory_format=memory_format), w, given, text
        )
        assert y.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
        totals = torch.stack([one.sum(axes) for one in made]).view(found.shape)
        assert tuple(found.shape) == (2, 3 if by_image else 1, expected.shape[1])
        assert found.dtype is torch.float32
        assert float((found.double() - totals).norm() / totals.norm()) < tolerance
    torch.library.opcheck(
        torch.ops.jitdnn.convolution_sums.default,
        (a, w, operands, text),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_text_that_says_nothing() -> None:
    x, w = random(1, 2, 4), random(2, 2, 1)
    own = text_of("forward", x, w, None, False, ([1], [0], [1], False, [0], 1), "")
    sums = Sums((form(x),), True, ((MOMENTS, IDENTITY),), "")
    good = Summed(own, sums, 0)
    torch.ops.jitdnn.convolution_sums(x, w, [], str(good))
    with pytest.raises(InvalidShape):
        torch.ops.jitdnn.convolution_sums(random(1, 2, 5), w, [], str(good))
    with pytest.raises(InvalidArgument, match="1 operands beside"):
        torch.ops.jitdnn.convolution_sums(x, w, [x], str(good))
    others = (
        replace(good, own=own.replace("forward", "filter")),
        replace(good, place=1),
        replace(good, sums=replace(sums, results=((SUM, IDENTITY),))),
        replace(good, sums=replace(sums, forms=(form(random(1, 2, 5)),))),
    )
    for text in ("", own, *map(str, others)):
        with pytest.raises(InvalidArgument, match="convolution_sums"):
            torch.ops.jitdnn.convolution_sums(x, w, [], text)
