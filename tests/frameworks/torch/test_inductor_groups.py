"""Casts and counters of a graph put together: which of them, into how many nodes, with the same results."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from inductor_graphs import compiled, count  # noqa: E402
from jitdnn.frameworks.torch import inductor_groups, inductor_lowering  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
aten, CAST = torch.ops.aten, torch.ops.prims.convert_element_type.default
GEOMETRY = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs of this processor taken for a GPU's."""
    assert jt.InductorPass().uuid()  # makes the lowering known
    assert inductor_lowering.can_group
    monkeypatch.setattr(inductor_groups, "is_on_gpu", lambda _: True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model() -> Any:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def step(run: Any, own: Any) -> list[Any]:
    x = random(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        y = run(x)
    return [y, *torch.autograd.grad(y.float().square().mean(), list(own.parameters())), *own.buffers()]


def test_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The casts of two filters, of a bias, a matrix and the images are one node, and so are those of their gradients
    and both counters of batches; the bias of a product stays where it can be fused."""
    own = model()
    twin = copy.deepcopy(own)
    run, graphs, _ = compiled(own)
    found = step(run, own)
    monkeypatch.setattr(inductor_groups, "MOST", 1)
    apart, others, _ = compiled(twin)
    for one, other in zip(found, step(apart, twin), strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    assert [count(graph, "cast_each") for graph in graphs] == [1, 1]
    assert [count(graph, "_foreach_add") for graph in graphs] == [1, 0]
    casts = [[count(graph, "convert_element_type") for graph in two] for two in (graphs, others)]
    assert [alone - together for together, alone in zip(*casts, strict=True)] == [5, 3]
    assert [own[at].num_batches_tracked.item() for at in (1, 4)] == [1, 1]


def traced(function: Any, *inputs: Any) -> Any:
    return make_fx(function, tracing_mode="fake")(*inputs)


def targets(graph: Any) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def test_parts_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(*weights: Any) -> Any:
        return tuple(aten.mm.default(w, w) for w in (CAST(one, torch.bfloat16) for one in weights))

    weights = [random(n, n) for n in range(1, 6)]
    module = traced(function, *weights)
    monkeypatch.setattr(inductor_groups, "MOST", 2)
    inductor_groups.put_together(module.graph, False)
    module.graph.lint()
    module.recompile()
    found = targets(module.graph)
    assert (found.count(inductor_groups.cast_each.default), found.count(CAST)) == (2, 1)
    for one, other in zip(module(*weights), function(*weights), strict=True):
        assert torch.equal(one, other)


def test_what_could_be_fused_stays() -> None:
    """Casts that something pointwise reads, of what is computed, and each to a type of its own."""

    def function(x: Any, y: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        low = [CAST(one, torch.bfloat16) for one in (a, b, CAST(c, torch.float64).sin())]
        return (
            low[0] + 1, aten.mm.default(low[1], low[1]), low[2], aten.addmm.default(CAST(d, torch.float64), x, y),
            aten.mm.default(x, CAST(a, torch.float64)), aten.add.Tensor(a, 1),
        )  # fmt: skip

    inputs = [random(3, 3) for _ in range(6)]
    module = traced(function, *(one.double() for one in inputs[:2]), *inputs[2:])
    before = targets(module.graph)
    inductor_groups.put_together(module.graph, True)
    assert targets(module.graph) == before


@pytest.mark.parametrize("wants_last", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_what_inductor_lays_out_anew_stays(wants_last: bool, is_last: bool) -> None:
    form = torch.channels_last if is_last else torch.contiguous_format
    x, *weights = (
        one.contiguous(memory_format=form)
        for one in (random(2, 4, 5, 5), random(4, 4, 3, 3), random(6, 4, 1, 1), random(5, 4, 3, 3))
    )

    def function(x: Any, *weights: Any) -> Any:
        return tuple(
            aten.convolution.default(x, CAST(one, torch.bfloat16), None, *GEOMETRY) for one in weights
        )

    module = traced(function, x.bfloat16(), *weights)
    inductor_groups.put_together(module.graph, wants_last)
    together = [
        len(node.args[0]) for node in module.graph.nodes if node.target is inductor_groups.cast_each.default
    ]
    assert together == ([3] if is_last or not wants_last else [])


def test_inductor_lowers_it() -> None:
    from torch._inductor.compile_fx import compile_fx_inner

    def function(*weights: Any) -> Any:
        low = torch.ops.jitdnn.cast_each(list(weights), torch.bfloat16)
        return (aten.mm.default(*low[:2]), *low)

    inputs = [random(3, 3), random(3, 3).T, random(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)]
    module = traced(function, *inputs)
    found = compile_fx_inner(module, inputs)(list(inputs))
    for one, other in zip(found, function(*inputs), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_the_operator() -> None:
    torch.library.opcheck(
        inductor_groups.cast_each.default, ([random(2, 3), random(4).double()], torch.float16)
    )
