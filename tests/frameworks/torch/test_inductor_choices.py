"""What the pass over Inductor's graphs measures: torch's kernels as Inductor's own code calls them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from inductor_graphs import close, compiled, count, trained  # noqa: E402
from jitdnn.frameworks.torch import choice  # noqa: E402
from jitdnn.frameworks.torch.choice import Decision  # noqa: E402
from jitdnn.frameworks.torch.convolution import Geometry, problem_of  # noqa: E402
from jitdnn.frameworks.torch.settled import text_of  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("no_graphs"),
]


class Pointwise(nn.Module):
    """Sequences whose channels lie innermost, a convolution with a bias, and what reads it."""

    def __init__(self, is_read_by_others: bool) -> None:
        super().__init__()
        self.conv, self.reads = nn.Conv1d(6, 5, 3), is_read_by_others

    def forward(self, x: Any) -> Any:
        y = self.conv(x.transpose(1, 2).sin())
        return y if self.reads else y.exp().sum(2)


@pytest.mark.parametrize("is_on_gpu", [False, True])
@pytest.mark.parametrize("is_read_by_others", [False, True])
def test_torchs_kernel_is_called_as_inductor_calls_it(
    is_read_by_others: bool, is_on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences lie with their channels first for it; on a GPU a bias is added by what reads the result."""
    from jitdnn.frameworks.torch import inductor_graph, inductor_nodes

    seen: list[tuple[str, float]] = []

    def decide(what: str, handle: Any, device: Any, how: str, ours: Any, stock: Any, *_: Any) -> Decision:
        if "torch forward" in what:
            seen.append((what, (ours() - stock()).abs().max().item()))
        return Decision(False, "stored: slower", 2e-3, 1e-3, hosts=(1e-5, 1e-5))

    for module in (inductor_graph, inductor_nodes):
        monkeypatch.setattr(module, "is_on_gpu", lambda node: is_on_gpu)
    monkeypatch.setattr(inductor_graph, "compile_ahead", lambda *_: None)
    monkeypatch.setattr("jitdnn.frameworks.torch.kinds.decide", decide)
    fast, _, _ = compiled(model := Pointwise(is_read_by_others), measure="first")
    x = random(2, 9, 6)
    close(fast(x), model(x))
    what, differs = seen[0]
    form = Geometry.of(1, [1], [0], [1], False, [0], 1)
    assert str(problem_of("forward", x.mT.contiguous(), model.conv.weight, random(2, 5, 7), form)) in what
    assert (differs < 1e-4) is (is_read_by_others or not is_on_gpu)


def test_gradients_of_volumes_lie_with_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a normalization gives has channels first in the graph: ours have it written otherwise, torch's copy it."""
    texts: list[Any] = []

    def noted(direction: str, x: Any, w: Any, dy: Any, *others: Any) -> str:
        texts.append((direction, x.stride()[1], None if dy is None else dy.stride()[1]))
        return text_of(direction, x, w, dy, *others)

    monkeypatch.setattr("jitdnn.frameworks.torch.inductor_graph.text_of", noted)
    layers = (nn.Conv3d(2, 4, 3), nn.InstanceNorm3d(4), nn.SiLU(), nn.Conv3d(4, 3, 3), nn.InstanceNorm3d(3))
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last_3d)
    x = random(2, 2, 7, 8, 7).contiguous(memory_format=torch.channels_last_3d).requires_grad_()
    fast, graphs, _ = compiled(model)
    close(trained(model, fast, x), trained(model, model, x))
    assert count(graphs[1], "jitdnn.settled_convolution") == 4
    assert {dy for direction, _, dy in texts if direction != "forward"} == {1}


@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize("is_part", [False, True])
def test_sequences_keep_their_channels_innermost(
    is_part: bool, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU in training, where they lie so in the graph, of a longer row or not: also results and gradients."""
    texts: list[Any] = []

    def noted(direction: str, x: Any, w: Any, y: Any, *others: Any) -> str:
        texts.append((direction, x.stride()[1], y.stride()[1]))
        return text_of(direction, x, w, y, *others)

    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.conv = nn.Linear(5, 12 if is_part else 6), nn.Conv1d(6, 6, 3, groups=groups)

        def forward(self, x: Any) -> Any:
            y = self.wide(x)
            y = y.chunk(2, -1)[0] if is_part else y.sin()
            return torch.sigmoid(self.conv(y.transpose(1, 2))[..., :4]).transpose(1, 2)

    monkeypatch.setattr("jitdnn.frameworks.torch.inductor_graph.text_of", noted)
    monkeypatch.setattr("jitdnn.frameworks.torch.inductor_nodes.is_on_gpu", lambda _: True)
    model = Between()
    fast, graphs, _ = compiled(model)
    x = random(2, 9, 5)
    close(trained(model, fast, x), trained(model, model, x))
    assert count(graphs[0], "jitdnn.settled_convolution") == 1
    assert count(graphs[1], "jitdnn.settled_convolution") == 2
    assert {text[0] for text in texts} == {"forward", "data", "filter"}
    assert {strides for _, *strides_of in texts for strides in strides_of} == {1}


@pytest.mark.parametrize(("visible", "kept"), [([0], "laid"), ([0, 1], "z"), (None, "z")])
def test_what_is_saved_lies_as_a_convolution_has_it(visible: Any, kept: str) -> None:
    """Not what the program itself is given, nor where it is not known which that is."""
    from jitdnn.frameworks.torch.inductor_rewriting import save_as_laid

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    z, laid = (
        graph.call_function(torch.relu, (x,), name="z"),
        graph.call_function(torch.neg, (x,), name="laid"),
    )
    end = graph.output((x, z))
    if visible is not None:
        end.meta["user_visible_output_idxs"] = visible
    save_as_laid(graph, z, laid)
    save_as_laid(graph, x, laid)
    assert [one.name for one in end.args[0]] == ["x", kept]


@pytest.mark.parametrize(("bases", "may"), [(0, True), (1, False), (None, False)])
def test_nothing_that_results_are_views_of_lies_otherwise(
    bases: Any, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where it is not known whether there is any."""
    from jitdnn.frameworks.torch.inductor_rewriting import may_save_otherwise

    known = None if bases is None else SimpleNamespace(num_intermediate_bases=bases)
    context = SimpleNamespace(fw_metadata=known)
    monkeypatch.setattr(torch._guards.TracingContext, "try_get", staticmethod(lambda: context))
    assert may_save_otherwise() is may


@pytest.mark.parametrize("is_together", [False, True])
def test_gradients_of_operands_that_do_not_lie_alike_are_compared_with_torchs_one_call(
    is_together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def decide(what: str, handle: Any, device: Any, how: str, ours: Any, stock: Any, *_: Any) -> Decision:
        if "torch gradients" in what:
            compared.append(what)
            (dx,), (wanted, *_) = ours()[:1], stock()
            close(dx, wanted)
            return Decision(not is_together, "measured: slower", 2e-3, 1e-3)
        return Decision("torch data" in what or "torch filter" in what, "measured: faster", 1e-3, 2e-3)

    monkeypatch.setattr("jitdnn.frameworks.torch.kinds.decide", decide)
    monkeypatch.setattr(choice, "decide", decide)
    model = nn.Sequential(nn.Conv3d(2, 4, 3, bias=False), nn.Conv3d(4, 2, 3, bias=False))
    x = random(2, 2, 6, 6, 7).contiguous(memory_format=torch.channels_last_3d).requires_grad_()
    fast, graphs, own = compiled(model, measure="first")
    close(trained(model, fast, x), trained(model, model, x))
    assert len(compared) >= 1
    reasons = {row.reason for row in own.explanation.rows if row.direction in ("data", "filter")}
    assert any("torch's one call" in reason for reason in reasons) is is_together
    assert count(graphs[1], "jitdnn.settled_convolution") == (0 if is_together else 2 * len(compared))
