"""Limits on memory by a model's graph: of eager models that are no Sequential, and of compiled training graphs."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import jitdnn.torch  # noqa: E402
from jitdnn.errors import InvalidArgument, NotSupported  # noqa: E402
from jitdnn.frameworks.torch import inductor_memory  # noqa: E402
from jitdnn.frameworks.torch.memory_graph import Pieces  # noqa: E402
from jitdnn.frameworks.torch.memory_meter import MemoryMeter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Block(nn.Module):
    def __init__(self, channels: int, has_statistics: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels, track_running_stats=has_statistics)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.conv2(F.gelu(self.norm(self.conv1(x)))))


class Network(nn.Module):
    """Blocks by attributes, views, operators in place, dropout as a function, a scale that every piece may want."""

    def __init__(self, has_statistics: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one = Block(8, has_statistics)
        self.two = Block(8, has_statistics)
        self.three = Block(8, has_statistics)
        self.four = Block(8, has_statistics)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.register_buffer("offset", torch.full((8, 1, 1), 0.1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, mask: Tensor | None = None, times: int = 1) -> Tensor:
        x = self.stem(x).relu_()
        x = self.two(self.one(x)) * self.scale
        if mask is not None:
            x = x * mask
        for _ in range(times):
            x = self.four(self.three(x)) + self.offset
        if mask is not None:
            x = x + mask
        x = F.dropout(x, 0.2, self.training)
        return self.head(x.mean((2, 3)).flatten(1))


X = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
MASK = torch.rand(4, 1, 16, 16, generator=torch.Generator().manual_seed(2))


def loss(y: Tensor) -> Tensor:
    return y.square().sum()


def step(model: Any, *inputs: Any, **named: Any) -> tuple[int, list[Tensor]]:
    """The peak of a step, its result, gradients and buffers."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        parameter.grad = None
    with MemoryMeter() as meter:
        y = model(*inputs, **named)
        loss(y).backward()
    return meter.peak, [
        y.detach(),
        *(p.grad for p in model.parameters()),
        *(b.clone() for b in model.buffers()),
    ]


@pytest.mark.parametrize("inputs", [(X,), (X, MASK), (X, None, 2)])
def test_a_model_that_is_no_sequential_stays_within_its_limit(inputs: tuple[Any, ...]) -> None:
    model, twin = Network(), Network()
    free = jitdnn.torch.limit_memory(model, *inputs, memory_limit=None, loss=loss)
    least = jitdnn.torch.limit_memory(model, *inputs, memory_limit="least", loss=loss)
    assert least.peak < free.peak
    assert least.seconds_lost > 0
    for limit in (least.peak, (least.peak + free.peak) // 2, free.peak):
        plan = jitdnn.torch.limit_memory(model, *inputs, memory_limit=limit, loss=loss)
        (peak, found), (_, expected) = step(model, *inputs), step(twin, *inputs)
        assert peak <= plan.peak <= limit
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    with pytest.raises(InvalidArgument, match=str(least.peak)):
        jitdnn.torch.limit_memory(model, *inputs, memory_limit=least.peak // 2, loss=loss)


def test_it_saves_memory() -> None:
    model = Network()
    before, _ = step(model, X)
    jitdnn.torch.limit_memory(model, X, memory_limit="least", loss=loss)
    after, _ = step(model, X)
    assert after < 0.8 * before
    jitdnn.torch.unlimit_memory(model)
    assert "forward" not in model.__dict__
    assert step(model, X)[0] == before


def test_pieces_are_cut_where_one_value_passes() -> None:
    model = Network().eval()
    for inputs in ((X,), (X, MASK), (X, MASK, 2)):
        pieces = Pieces.of(model, inputs)
        value, *others = pieces.given(model, inputs, {})
        for function in pieces.functions():
            value = function(model, value, *others)
            assert isinstance(value, Tensor)
        assert torch.equal(value, model(*inputs))
        assert len(pieces.graphs) >= 10
        inside = [
            sorted({str(n.target) for n in graph.nodes if n.op == "call_module"}) for graph in pieces.graphs
        ]
        assert ["one.conv1", "one.conv2", "one.norm"] in inside  # a residual block is one piece


def test_other_modes_copies_and_pickles() -> None:
    model, twin = Network(), Network()
    jitdnn.torch.limit_memory(model, X, memory_limit="least", loss=loss)
    least, expected = step(model, X)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    fresh = Network()
    fresh.load_state_dict(twin.state_dict())
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert other.forward is not model.forward
        other.load_state_dict(twin.state_dict())
        peak, found = step(other, X)
        assert peak == least
        assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
        for parameter in other.parameters():
            assert parameter.grad is not None  # its own, not the model's
    assert list(model.state_dict()) == list(twin.state_dict())
    model.load_state_dict(twin.state_dict())
    model.eval(), twin.eval()
    assert torch.equal(model(X), twin(X))
    model.train()
    with torch.no_grad():
        torch.manual_seed(3)
        y = model(X)
    assert torch.equal(y, expected[0])
    model.double(), twin.double().train()
    (_, found), (_, wanted) = step(model, X.double()), step(twin, X.double())
    assert all(torch.equal(one, other) for one, other in zip(found[:1], wanted[:1], strict=True))


def test_arguments_by_name_and_those_that_are_fixed() -> None:
    model, twin = Network(), Network()
    jitdnn.torch.limit_memory(model, X, MASK, memory_limit="least", loss=loss)
    for inputs, named in (((X, MASK), {}), ((X,), {"mask": MASK}), ((), {"mask": MASK, "x": X, "times": 1})):
        (_, found), (_, expected) = step(model, *inputs, **named), step(twin, *inputs, **named)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    with pytest.raises(InvalidArgument, match=r"times is 2.*planned for 1"):
        model(X, MASK, 2)
    jitdnn.torch.limit_memory(model, X, memory_limit="least", loss=loss)
    with pytest.raises(InvalidArgument, match="mask is"):
        model(X, MASK)


class Fickle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else x


class Loose(Fickle):
    def forward(self, *x: Tensor) -> Tensor:
        return self.layer(x[0])


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"Fickle.*cannot trace.*chain="):
        jitdnn.torch.limit_memory(Fickle(), torch.ones(2, 4), memory_limit="1 MiB")
    with pytest.raises(InvalidArgument, match="must have names"):
        jitdnn.torch.limit_memory(Loose(), torch.ones(2, 4), memory_limit="1 MiB")
    with pytest.raises(InvalidArgument, match="do not fit"):
        jitdnn.torch.limit_memory(Network(), memory_limit="1 MiB")
    with pytest.raises(InvalidArgument, match="none of the inputs is a tensor"):
        jitdnn.torch.limit_memory(Network(), 3, memory_limit="1 MiB")
    model = Network()
    jitdnn.torch.limit_memory(model, X, memory_limit="least", loss=loss)
    other = copy.deepcopy(model)
    other.__class__ = type("Changed", (Network,), {"forward": lambda self, x: self.head(x.mean((2, 3)))})
    with pytest.raises(InvalidArgument, match="has changed since limit_memory"):
        other(torch.randn(2, 8, 3, 3))


def test_convert_takes_the_limit_and_plans_at_the_first_step() -> None:
    twin = jitdnn.torch.convert(Network(), measure="never")
    least = jitdnn.torch.limit_memory(copy.deepcopy(twin), X, memory_limit="least", loss=loss)
    model = jitdnn.torch.convert(Network(), measure="never", memory_limit=least.peak, loss=loss)
    free, _ = step(twin, X)
    for _ in range(2):
        twin.load_state_dict(model.state_dict())
        (peak, found), (_, expected) = step(model, X), step(twin, X)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert peak <= least.peak < free
    jitdnn.torch.revert(model)
    assert "forward" not in model.__dict__
    assert type(model.stem) is nn.Conv2d


# ---- compiled ----


def partitioned(limit: Any) -> tuple[inductor_memory.MemoryPlan, int, list[Tensor], list[Tensor]]:
    """A plan; the peak of a step that runs node by node; its gradients, and those of eager."""
    from functorch.compile import aot_module

    def compiled(graph: Any, inputs: Any) -> Any:
        def run(arguments: list[Any]) -> Any:
            return torch.fx.Interpreter(graph).boxed_run(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    own = inductor_memory.MemoryPartitioner(limit)
    model = Network(has_statistics=False).eval()
    run = aot_module(copy.deepcopy(model), fw_compiler=compiled, bw_compiler=compiled, partition_fn=own)
    run(X)
    peak, found = step(run, X)
    (plan,) = own.plans
    return plan, peak, found, step(model, X)[1]


def test_a_training_graph_is_divided_within_its_limit() -> None:
    free, _, _, _ = partitioned("1 GiB")
    least, _, _, _ = partitioned("least")
    assert (free.rerun, free.budget, free.peak) == (0, 1.0, free.unlimited)
    assert least.peak < 0.8 * free.peak
    for limit in (least.peak, (least.peak + free.peak) // 2, free.peak):
        plan, peak, found, expected = partitioned(limit)
        assert plan.peak <= limit
        assert plan.unlimited == free.peak
        assert 0.95 * plan.peak < peak <= plan.peak + 4096  # the loss is outside of the graph
        assert (plan.rerun > 0) is (limit < free.peak)
        assert plan.seconds_lost is not None
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidArgument, match=f"at least {least.peak} bytes"):
        partitioned(least.peak - 1)


@pytest.mark.parametrize("has_compiler", [False, True])
def test_torch_compile_takes_the_limit(has_compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    from jitdnn.frameworks.torch import backend

    if not has_compiler:
        monkeypatch.setattr(backend, "has_compiler", lambda: False)
    elif not backend.has_compiler():
        pytest.skip("no C++ compiler")
    elif not hasattr(torch._inductor.config, inductor_memory.SETTING):
        pytest.skip("Inductor takes no partitioner")
    backend.register()
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Block(4), Block(4)).eval()
    limit = inductor_memory.MemoryPartitioner("least")
    compiled = torch.compile(
        copy.deepcopy(model), backend="jitdnn", options={"memory_limit": limit, "measure": "never"}
    )
    # graphs that Inductor has kept are not divided again
    with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        found, expected = plain(compiled), plain(model)
    (plan,) = limit.plans
    assert plan.peak < plan.unlimited
    assert plan.rerun > 0
    assert "operators run twice" in str(plan)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm()
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X), rtol=1e-3, atol=1e-4)


def plain(model: Any) -> list[Tensor]:
    """A step under nobody's eyes: Dynamo compiles nothing under a mode."""
    y = model(X)
    return [y.detach(), *torch.autograd.grad(loss(y), list(model.parameters()))]


@pytest.mark.parametrize("limit", [None, -1, "much", 1.5, object()])
def test_limits_that_are_none_are_refused(limit: Any) -> None:
    from jitdnn.errors import JitdnnError

    with pytest.raises(JitdnnError):
        inductor_memory.MemoryPartitioner(limit)


def test_without_the_hook_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitdnn.frameworks.torch.inductor import patches

    monkeypatch.setattr(inductor_memory, "SETTING", "no such setting")
    with pytest.raises(NotSupported, match=r"has no torch._inductor.config.no such setting.*convert"):
        patches({"memory_limit": "1 MiB"}, None)
