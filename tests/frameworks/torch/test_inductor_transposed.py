"""Transposed convolutions in Inductor's graphs whose filter is as large as their stride."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from inductor_graphs import as_on_gpus, close, compiled, count, trained  # noqa: E402
from jitdnn.frameworks.torch import choice, inductor_transposed  # noqa: E402
from jitdnn.frameworks.torch.choice import Decision  # noqa: E402
from jitdnn.frameworks.torch.kernels import channels_last_strides  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
on_gpu = as_on_gpus(inductor_transposed)
LAYERS = (None, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
ORDER = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("taps", [(3,), (2, 3), (2, 1, 3)])
def test_a_training_step(taps: tuple[int, ...], has_bias: bool) -> None:
    """No transposed convolution is left; results and gradients are PyTorch's, and lie as PyTorch's."""
    torch.manual_seed(0)
    layer: Any = LAYERS[len(taps)]
    own = nn.Sequential(layer(5, 4, taps, taps, bias=has_bias), nn.SiLU())
    x = random(2, 5, *(3, 4, 2)[: len(taps)])
    if x.dim() in ORDER:
        own, x = own.to(memory_format=ORDER[x.dim()]), x.contiguous(memory_format=ORDER[x.dim()])
    run, graphs, _ = compiled(own)
    for one, other in zip(trained(own, run, x), trained(twin := copy.deepcopy(own), twin, x), strict=True):
        close(one, other)
    assert count(graphs[0], "settled_convolution") == 1
    assert count(graphs[1], "settled_convolution") == 2
    assert not any("aten.convolution" in target for graph in graphs for target in graph)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 1},
        {"stride": 2, "padding": 1},
        {"stride": 2, "output_padding": 1},
        {"stride": 2, "groups": 2},
    ],
)
def test_others_stay_transposed(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    own = nn.ConvTranspose2d(4, 4, 2, **options)
    x = random(2, 4, 3, 4)
    run, graphs, _ = compiled(own)
    for one, other in zip(trained(own, run, x), trained(twin := copy.deepcopy(own), twin, x), strict=True):
        close(one, other)
    assert count(graphs[0], "settled_convolution") == 0


def test_gradients_of_some_operands() -> None:
    """Of a bias alone there is no product; of a filter or of the images alone there is one."""
    x = random(2, 4, 3, 4)
    for name, products in (("bias", 0), ("weight", 1), ("x", 1)):
        torch.manual_seed(0)
        torch._dynamo.reset()
        own = nn.ConvTranspose2d(4, 3, 2, 2).requires_grad_(False)
        wanted = (x.clone() if name == "x" else getattr(own, name)).requires_grad_()
        given = wanted if name == "x" else x
        run, graphs, _ = compiled(own)
        got, theirs = (torch.autograd.grad(one(given).square().sum(), wanted)[0] for one in (run, own))
        close(got, theirs)
        assert count(graphs[1], "settled_convolution") == products, name


def test_channels_lie_as_the_graph_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A normalization before it has the graph say channels first of x, and the filter channels last of the result."""
    seen: list[tuple[Any, Any]] = []
    real = inductor_transposed.laid_out

    def watch(graph: Any, before: Any, operand: Any, strides: Any) -> Any:
        seen.append((tuple(operand.meta["val"].shape), strides))
        return real(graph, before, operand, strides)

    monkeypatch.setattr(inductor_transposed, "laid_out", watch)
    torch.manual_seed(0)
    own: Any = nn.Sequential(nn.InstanceNorm3d(5), nn.ConvTranspose3d(5, 4, 2, 2), nn.SiLU())
    own = own.to(memory_format=torch.channels_last_3d)
    x = random(2, 5, 3, 4, 2).contiguous(memory_format=torch.channels_last_3d)
    run, graphs, _ = compiled(own)
    for one, other in zip(trained(own, run, x), trained(twin := copy.deepcopy(own), twin, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert count(graphs[0], "settled_convolution") == 1
    assert seen[0] == ((2, 5, 3, 4, 2), channels_last_strides((2, 5, 3, 4, 2)))


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names under which times are kept; PyTorch's kernels are faster."""
    seen: list[str] = []

    def decide(what: str, *_: Any) -> Decision:
        seen.append(what)
        return Decision(False, "slower")

    monkeypatch.setattr(choice, "decide", decide)
    return seen


def test_gradients_that_are_not_the_same_ones_have_times_of_their_own(kinds: list[str]) -> None:
    """Of x alone, of the filter alone, and of both, each more than once."""
    names = []
    x = random(2, 4, 3, 4)
    for wanted in (("x",), ("weight",), ("x", "weight")) * 2:
        torch._dynamo.reset()
        kinds.clear()
        own = nn.ConvTranspose2d(4, 3, 2, 2).requires_grad_(False)
        given = x.clone().requires_grad_("x" in wanted)
        own.weight.requires_grad_("weight" in wanted)
        run, _, _ = compiled(own)
        torch.autograd.grad(run(given).sum(), [given if name == "x" else own.weight for name in wanted])
        names.append(tuple(kinds))
    assert names[:3] == names[3:]
    forward, gradients = zip(*names, strict=True)
    assert len(set(forward)) == 1
    assert len(set(gradients)) == 3


def test_a_bias_that_ours_alone_adds_has_times_of_its_own(kinds: list[str]) -> None:
    names = {}
    x = random(2, 8, 3, 4).bfloat16().contiguous(memory_format=torch.channels_last)
    for bias in (True, False):
        torch._dynamo.reset()
        kinds.clear()
        own = nn.ConvTranspose2d(8, 8, 2, 2, bias=bias).bfloat16().requires_grad_(False)
        compiled(own.to(memory_format=torch.channels_last))[0](x)
        names[bias] = tuple(kinds)
    (product, whole), (product_of_none, whole_of_none) = names[True], names[False]
    assert product == product_of_none
    assert whole != whole_of_none
