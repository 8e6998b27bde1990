"""Sums of normalizations in Inductor's graphs as one operator: which of them, of what, and the same gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from inductor_graphs import compiled, count  # noqa: E402
from jitdnn.errors import InvalidArgument, InvalidShape  # noqa: E402
from jitdnn.frameworks.torch import channel_sums, choice, inductor_sums, inductor_values  # noqa: E402
from jitdnn.frameworks.torch.channel_sums import MOMENTS, SUM, Sums  # noqa: E402
from jitdnn.frameworks.torch.kernels import channels_last_strides  # noqa: E402
from torch_kernels import random  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
aten, CAST = torch.ops.aten, torch.ops.prims.convert_element_type.default
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small graphs of this processor taken for large ones of a GPU."""

    for one in (inductor_sums, inductor_values):
        monkeypatch.setattr(one, "is_on_gpu", lambda _: True)
        monkeypatch.setattr(one, "LEAST_BYTES", 0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(run: Any, own: Any, x: Any, is_low: bool) -> list[Any]:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
        y = run(x)
    return list(torch.autograd.grad(y.float().square().mean(), [x, *own.parameters()]))


def apart(found: list[Any], exact: list[Any]) -> float:
    """How far gradients are from others, relative to these."""
    wide = [(one.double(), other.double()) for one, other in zip(found, exact, strict=True)]
    distance = sum(float((one - other).square().sum()) for one, other in wide)
    return (distance / sum(float(other.square().sum()) for _, other in wide)) ** 0.5


def layers(norm: Any, act: Any, axes: int = 2) -> Any:
    torch.manual_seed(0)
    conv = {2: nn.Conv2d, 3: nn.Conv3d}[axes]
    made = nn.Sequential(conv(8, 12, 3, padding=1, bias=False), norm, act, conv(12, 8, 3))
    with torch.no_grad():
        for one in norm.parameters():
            one.add_(torch.rand_like(one))
    return made.to(memory_format=LAST[2 + axes])


@pytest.mark.parametrize("is_low", [False, True])
@pytest.mark.parametrize(
    ("norm", "act", "axes"),
    [
        (nn.BatchNorm2d(12), nn.ReLU(), 2),
        (nn.BatchNorm3d(12), nn.Hardswish(), 3),
        (nn.GroupNorm(3, 12), nn.SiLU(), 2),
        (nn.GroupNorm(1, 12), nn.GELU(), 2),
    ],
)
def test_layers(norm: Any, act: Any, axes: int, is_low: bool) -> None:
    """The statistics are one call, and the sums of the gradient; another one is for the bias of the last layer."""
    own = layers(copy.deepcopy(norm), act, axes)
    x = random(3, 8, 12, 11, *[5] * (axes - 2)).contiguous(memory_format=LAST[2 + axes])
    exact = gradients(own.double(), own, x.double(), False)
    own.float()
    stock = gradients(own, own, x, is_low)
    run, graphs, _ = compiled(own)
    found = gradients(run, own, x, is_low)
    assert [count(graph, "channel_sums") for graph in graphs] == [1, 2]
    assert [count(graph, "channel_values") for graph in graphs] == [0, 1]
    assert count(graphs[0], "var_mean") == 0
    assert apart(found, exact) <= 1.5 * apart(stock, exact) + 1e-6


def test_values_beside_other_passes_have_times_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many passes Inductor makes of the same values is a setting of its."""
    from torch._inductor import config

    kinds: list[str] = []
    real = choice.decide

    def decide(what: str, *given: Any) -> Any:
        kinds.append(what)
        return real(what, *given)

    monkeypatch.setattr(choice, "decide", decide)
    own = layers(nn.BatchNorm2d(12), nn.ReLU(), 2)
    x = random(3, 8, 12, 11).contiguous(memory_format=LAST[4])
    for threshold in (1, 100, 1):
        torch._dynamo.reset()
        run, _, _ = compiled(own)
        with config.patch(realize_acc_reads_threshold=threshold):
            gradients(run, own, x, False)
    names = [what for what in kinds if what.startswith("torch values")]
    assert len(names) == 3
    assert names[0] == names[2] != names[1]


class Residual(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x: Any) -> Any:
        return torch.relu(x + self.norm(self.first(x)))


def test_what_others_read_is_written_down() -> None:
    """The gradient behind a residual's rectifier goes to the block before as well: the sums read it from memory."""
    torch.manual_seed(0)
    own = nn.Sequential(nn.Conv2d(8, 16, 1), Residual(16), Residual(16), nn.Conv2d(16, 4, 1))
    own = own.to(memory_format=torch.channels_last)
    x = random(2, 8, 10, 9).contiguous(memory_format=torch.channels_last)
    seen: list[Sums] = []
    real = inductor_sums._is_faster

    def watch(sums: Sums, *others: Any) -> bool:
        seen.append(sums)
        return real(sums, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inductor_sums, "_is_faster", watch)
        run, graphs, _ = compiled(own)
        found = gradients(run, own, x, True)
    exact = gradients(own, own, x, False)
    assert apart(found, exact) <= 1.5 * apart(gradients(own, own, x, True), exact)
    both = [sums for sums in seen if len(sums.results) == 2]
    wide = [sum(shape == sums.shape for shape, _, _ in sums.forms) for sums in both]
    assert wide == [2, 2]
    assert [count(graph, "channel_sums") for graph in graphs] == [2, len(seen) - 2]


def sums_of(function: Any, *inputs: Any) -> list[Any]:
    """The operators of a graph of these inputs behind the rewriting, whose results are the same."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    wanted = graph(*inputs)
    inductor_sums.sum_channels(graph.graph, "measure=never")
    graph.graph.lint()
    graph.recompile()
    for one, other in zip(graph(*inputs), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-4)
        assert one.dtype is other.dtype
    return [node for node in graph.graph.nodes if node.op == "call_function"]


def is_rewritten(nodes: list[Any]) -> bool:
    return any(node.target is channel_sums.channel_sums.default for node in nodes)


def last(*shape: int, seed: int = 0) -> Any:
    return random(*shape, seed=seed).contiguous(memory_format=LAST[len(shape)])


def test_forms_of_sums() -> None:
    """Axes that are kept, from behind, of views, of a part of the channels, in either order of memory, and casts."""
    x, y, c = last(2, 6, 9, 8), last(2, 6, 9, 8, seed=1), random(6, seed=2)
    half = x.bfloat16()
    for is_there, function, given in [
        (True, lambda x: [aten.sum.dim_IntList(x, [0, -1, -2], True)], (x,)),
        (True, lambda x: [aten.sum.dim_IntList(x.view(1, 12, 9, 8), [0, 2, 3])], (x.contiguous(),)),
        (True, lambda x: [aten.sum.dim_IntList(CAST(x, torch.float32), [0, 2, 3])], (half,)),
        (True, lambda x: [aten.sum.dim_IntList(CAST(x, torch.float32) * 2.0, [2, 3])], (half,)),
        (True, lambda x: [aten.sum.dim_IntList(aten.slice.Tensor(x, 1, 0, 3), [0, 2, 3])], (x,)),
        (True, lambda x, y, c: [aten.sum.dim_IntList(x * y + c.reshape(6, 1, 1), [0, 2, 3])], (x, y, c)),
        (True, lambda x: [*aten.var_mean.correction(x, [0, 2, 3], correction=0)], (x,)),
        (True, lambda x: [one * 1.0 for one in aten.var_mean.correction(x, [0, 2, 3], correction=0)], (half,)),
        (False, lambda x: [*aten.var_mean.correction(x, [0, 2, 3], correction=1)], (x,)),
        (False, lambda x: [aten.sum.dim_IntList(x, [0, 1])], (x,)),
        (False, lambda x: [aten.sum.dim_IntList(x, [2])], (x,)),
        (False, lambda x: [aten.sum.dim_IntList(x, [0, 2, 3])], (x.transpose(2, 3),)),
        (False, lambda x: [aten.sum.dim_IntList(x.cumsum(2), [0, 2, 3])], (x,)),
        (False, lambda x: [aten.sum.dim_IntList(x[..., :1, :1], [0, 2, 3])], (x,)),
        (False, lambda x: [aten.sum.dim_IntList(x, [0, 2, 3])], (x.double(),)),
        (False, lambda x: [aten.sum.dim_IntList(x, [0, 2, 3], dtype=torch.float64)], (x,)),
    ]:  # fmt: skip
        assert is_rewritten(sums_of(function, *given)) is is_there


def test_sums_that_follow_from_each_other_stay_apart() -> None:
    x, y = last(2, 6, 9, 8), last(2, 6, 9, 8, seed=1)

    def function(x: Any, y: Any) -> Any:
        first = aten.sum.dim_IntList(x, [0, 2, 3])
        second = aten.sum.dim_IntList(x * aten.reshape.default(first, [6, 1, 1]), [0, 2, 3])
        return [first, second, aten.sum.dim_IntList(x * y, [0, 2, 3])]

    nodes = sums_of(function, x, y)
    made = [node for node in nodes if node.target is channel_sums.channel_sums.default]
    assert sorted(len(Sums.of(node.args[1]).results) for node in made) == [1, 2]


def test_a_number_that_is_known_when_the_graph_runs_is_an_operand() -> None:
    """As `torch.full((), y.item())` has one, where scalars are captured."""
    x, y, graph = last(2, 6, 9, 8), random(), torch.fx.Graph()
    symbols = ShapeEnv()
    mode = FakeTensorMode(shape_env=symbols)

    def noted(node: Any, make: Any) -> Any:
        with mode:
            node.meta["val"] = make()
        return node

    wide = noted(graph.placeholder("x"), lambda: mode.from_tensor(x, static_shapes=True))
    given = noted(graph.placeholder("y"), lambda: mode.from_tensor(y, static_shapes=True))
    item = noted(
        graph.call_function(aten._local_scalar_dense.default, (given,)), symbols.create_unbacked_symfloat
    )
    full = noted(
        graph.call_function(aten.full.default, ([], item), {"dtype": torch.float32}), lambda: torch.empty(())
    )
    product = noted(
        graph.call_function(aten.mul.Tensor, (wide, full)), lambda: wide.meta["val"] * full.meta["val"]
    )
    total = noted(
        graph.call_function(aten.sum.dim_IntList, (product, [0, 2, 3])),
        lambda: product.meta["val"].sum((0, 2, 3)),
    )
    graph.output((total,))
    assert inductor_sums.sum_channels(graph, "measure=never") == 1
    (found,) = torch.fx.GraphModule({}, graph)(x, y)
    torch.testing.assert_close(found, (x * y).sum((0, 2, 3)), rtol=2e-5, atol=2e-4)


def text(
    kind: str = SUM, steps: str = "[]", shape: tuple[int, ...] = (2, 6, 4, 3), name: str = "float32"
) -> str:
    return str(Sums(((shape, channels_last_strides(shape), name),), True, ((kind, steps),), "measure=never"))


@pytest.mark.parametrize("kind", [SUM, MOMENTS])
def test_operands_that_lie_otherwise_are_copied(kind: str) -> None:
    x = random(2, 6, 4, 3)
    found = torch.ops.jitdnn.channel_sums([x], text(kind))
    wide = x.double()
    wanted = [wide.sum((2, 3))] if kind == SUM else [wide.mean((2, 3)), wide.var((2, 3), correction=0)]
    torch.testing.assert_close(found.double(), torch.stack(wanted), rtol=1e-5, atol=1e-5)
    torch.library.opcheck(channel_sums.channel_sums.default, ([x], text(kind)))


@pytest.mark.parametrize(
    "what",
    [
        "",
        "()",
        "1",
        "((((2,), (1,), 'float32'),), True, (('sum', '[]'),), '')",
        text("product"),
        text(name="float64"),
        text(name="nn"),
        text(steps="{"),
    ],
)
def test_other_texts_are_refused(what: str) -> None:
    with pytest.raises(InvalidArgument):
        torch.ops.jitdnn.channel_sums([random(2, 6, 4, 3)], what)


def test_other_operands_are_refused() -> None:
    with pytest.raises(InvalidShape, match=r"\(2, 6, 3, 4\)"):
        torch.ops.jitdnn.channel_sums([random(2, 6, 3, 4)], text())
    with pytest.raises(InvalidShape, match="float64"):
        torch.ops.jitdnn.channel_sums([random(2, 6, 4, 3).double()], text())
    with pytest.raises(InvalidArgument, match="2 operands"):
        torch.ops.jitdnn.channel_sums([random(2, 6, 4, 3)] * 2, text())


def test_symbolic_shapes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    own = layers(nn.BatchNorm2d(12), nn.ReLU())
    run, graphs, _ = compiled(own, dynamic=True)
    gradients(run, own, last(3, 8, 9, 8), False)
    assert [count(graph, "channel_sums") for graph in graphs] == [0, 0]


def test_inductors_code_calls_the_launches() -> None:
    """In memory that Inductor gives, of an instance normalization: a batch normalization of views in the graph."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    own = layers(nn.InstanceNorm2d(12, affine=True), nn.LeakyReLU(0.1))
    x = last(3, 8, 12, 11)
    run = torch.compile(own, options={"post_grad_custom_pre_pass": jt.InductorPass(measure="never")})
    with config.patch(fx_graph_cache=False):
        found, codes = run_and_get_code(lambda: gradients(run, own, x, True))
    exact = gradients(own, own, x, False)
    assert apart(found, exact) <= 1.5 * apart(gradients(own, own, x, True), exact)
    calls = [
        [code.count(f"extern_kernels.jitdnn_channel_{what}(") for what in ("sums", "values")]
        for code in codes
    ]
    assert calls == [[1, 0], [2, 1]]


@pytest.mark.parametrize("axes", [2, 3])
def test_results_of_one_channel_lie_as_the_graph_has_them(axes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter of one channel lies alike in both orders of channels; its strides say that results have them last."""
    seen: list[Sums] = []
    monkeypatch.setattr(inductor_sums, "_is_faster", lambda sums, *_: seen.append(sums) or True)
    norm, conv = (nn.BatchNorm2d, nn.Conv2d) if axes == 2 else (nn.BatchNorm3d, nn.Conv3d)
    own = nn.Sequential(conv(1, 12, 3, bias=False), norm(12), nn.SiLU(), conv(12, 8, 1)).to(
        memory_format=LAST[2 + axes]
    )
    x = random(3, 1, 12, 11, *[6] * (axes - 2))
    wide_one = copy.deepcopy(own).double()
    exact = gradients(wide_one, wide_one, x.double(), False)
    run, graphs, _ = compiled(own)
    assert apart(gradients(run, own, x, False), exact) < 1e-5
    assert [count(graph, "channel_sums") for graph in graphs] == [1, 2]
    wide = [(shape, strides) for sums in seen for shape, strides, _ in sums.forms if shape == sums.shape]
    wide = [one for one in wide if one[0][1] == 12]  # others are those of the result that was given
    assert len(wide) == 4
    assert all(strides == channels_last_strides(shape) for shape, strides in wide)


def test_small_tensors_are_left_where_the_host_makes_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x = last(2, 6, 9, 8)
    monkeypatch.setattr(inductor_sums, "LEAST_BYTES", 4 * x.numel())

    def function(x: Any) -> Any:
        return [aten.sum.dim_IntList(x, [0, 2, 3])]

    for is_captured in (True, False):
        graph = make_fx(function, tracing_mode="fake")(x)
        assert inductor_sums.sum_channels(graph.graph, "measure=never", is_captured) == is_captured
