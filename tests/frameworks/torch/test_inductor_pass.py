"""The pass over Inductor's graphs, which run here without its compiler: results, gradients, what is replaced."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from inductor_graphs import close, compiled, count, trained  # noqa: E402
from jitdnn.errors import InvalidArgument, InvalidType, NotSupported  # noqa: E402
from jitdnn.frameworks.torch import choice, inductor  # noqa: E402
from jitdnn.frameworks.torch.choice import Decision  # noqa: E402
from torch_kernels import form_holds, random, watched  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("no_graphs"),
]
F = nn.functional


class Chain(nn.Module):
    """A convolution, normalization by given statistics, an activation, a residual, a depthwise convolution."""

    def __init__(self, activation: Any, space: int = 2, has_bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[space - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[space - 1]
        self.one = kind(4, 4, 3, padding=1, bias=has_bias)
        self.norm, self.activation = norm(4), activation
        self.two = kind(4, 4, 3, stride=2, groups=4)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2.0)
            self.norm.weight.normal_()

    def forward(self, x: Any) -> Any:
        return self.two(self.activation(self.norm(self.one(x))) + x).flatten(1)


ACTIVATIONS = {
    "relu": F.relu, "silu": F.silu, "gelu": F.gelu, "tanh": torch.tanh, "hardswish": F.hardswish, "elu": F.elu,
    "leaky": lambda x: F.leaky_relu(x, 0.1), "relu6": F.relu6, "sigmoid": torch.sigmoid, "mish": F.mish,
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_inference_takes_what_follows_along(name: str) -> None:
    model = Chain(ACTIVATIONS[name]).eval()
    fast, graphs, own = compiled(model)
    x = random(2, 4, 7, 9)
    with torch.no_grad(), watched() as seen:
        y = fast(x)
        close(y, model(x))
    assert [kind.decision.is_ours for kind in seen] == [True, True]
    (graph,) = graphs
    assert count(graph, "jitdnn.convolution_pointwise") >= 1
    assert not count(graph, "aten.convolution")
    # what is left is made of the statistics, and the flattening
    assert not count(graph, "sigmoid")
    assert not count(graph, "erf")
    assert not count(graph, "relu")
    assert [row.layer for row in own.explanation.rows] == ["one", "two"]
    assert "jitdnn" in str(own.explanation)


@pytest.mark.parametrize(
    "function",
    [lambda y: y * (y > 0), lambda y: y + (y > 0).float(), lambda y: torch.where(y > 0, y, 0.1 * y)],
    ids=["multiplied", "cast", "chosen"],
)
def test_conditions_behind_a_convolution(function: Any) -> None:
    model = Chain(function).eval()
    fast, graphs, _ = compiled(model)
    x = random(2, 4, 7, 9)
    with torch.no_grad():
        close(fast(x), model(x))
    assert count(graphs[0], "jitdnn.") == 2


@pytest.mark.parametrize("space", [1, 2, 3])
@pytest.mark.parametrize("has_bias", [False, True])
def test_axes_of_space(space: int, has_bias: bool) -> None:
    model = Chain(F.relu, space, has_bias).eval()
    fast, graphs, _ = compiled(model)
    x = random(2, 4, *(5, 7, 6)[:space])
    with torch.no_grad():
        close(fast(x), model(x))
    assert count(graphs[0], "jitdnn.") == 2


def test_half_precision_between_casts() -> None:
    model = Chain(F.silu).eval()
    fast, graphs, _ = compiled(model)
    x = random(2, 4, 7, 9)
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            y, theirs = fast(x), model(x)
    assert y.dtype == theirs.dtype == torch.bfloat16
    # rounded to bfloat16 less often than torch's
    bound = 1.5 * float((theirs.float() - exact).norm()) + 1e-3
    assert float((y.float() - exact).norm()) <= bound
    assert count(graphs[0], "jitdnn.convolution_pointwise") >= 1


def test_training_with_any_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2, 2), nn.Tanh(),
        nn.Conv2d(6, 6, 3, groups=3, bias=False), nn.Flatten(),
    )  # fmt: skip
    twin = copy.deepcopy(model)
    fast, graphs, _ = compiled(model, dynamic=True)
    for batch in (2, 3, 5):
        x = random(batch, 3, 8, 8)
        with watched() as seen:
            found = trained(model, fast, x)
        close(found, trained(twin, twin, x))
        assert seen
        assert all(kind.decision.is_ours for kind in seen)
    close(list(model.buffers()), list(twin.buffers()))
    forward, backward = graphs
    assert count(forward, "jitdnn.") == 3
    assert not count(forward, "aten.convolution")
    assert count(backward, "jitdnn.convolution_backward") == 3
    assert not count(backward, "aten.convolution")
    assert count(backward, "sum.dim_IntList") >= 2  # the gradients of biases are left to be fused


def test_the_loser_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each direction by itself: only the gradient of the data is ours here."""

    def decide(what: str, *_: Any) -> Decision:
        return Decision("torch data" in what, "as told")

    monkeypatch.setattr("jitdnn.frameworks.torch.kinds.decide", decide)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    twin = copy.deepcopy(model)
    fast, graphs, own = compiled(model)
    x = random(2, 3, 6, 6)
    close(trained(model, fast, x), trained(twin, twin, x))
    forward, backward = graphs
    assert not count(forward, "jitdnn.")
    assert count(forward, "aten.convolution") == 1
    assert count(backward, "jitdnn.settled_convolution") == count(backward, "aten.convolution_backward") == 1
    assert [(row.direction, row.runs) for row in own.explanation.rows] == [
        ("forward", "torch"), ("data", "jitdnn"), ("filter", "torch"),
    ]  # fmt: skip


def test_a_tail_that_saves_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def decide(what: str, handle: Any, device: Any, how: str, ours: Any, stock: Any, *_: Any) -> Decision:
        ours(), stock()
        names.append(what)
        return Decision("of a convolution" not in what, "as told")

    monkeypatch.setattr("jitdnn.frameworks.torch.kinds.decide", decide)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1)
    )
    fast, graphs, _ = compiled(model.eval())
    x = random(2, 3, 6, 6)
    with torch.no_grad():
        close(fast(x), model(x))
    assert count(graphs[0], "jitdnn.settled_convolution") == 2
    assert count(graphs[0], "aten.relu") == count(graphs[0], "aten.sigmoid") == 1
    # the mean reads what the sigmoid gives without a pass of its own, another convolution does not
    first, second = (name for name in names if "of a convolution" in name)
    assert " and a pass" in first
    assert " and a pass" not in second


def test_measured_and_stored() -> None:
    x = random(1, 4, 9, 9)
    for reason in ("measured", "stored"):
        torch._dynamo.reset()
        model = Chain(F.relu).eval()
        fast, _, own = compiled(model, measure="first")
        with torch.no_grad():
            close(fast(x), model(x))
        assert [row.reason.partition(":")[0] for row in own.explanation.rows] == [reason] * 2
        assert all(row.seconds and row.stock_seconds for row in own.explanation.rows)


def test_what_is_left_alone() -> None:
    class Model(nn.Module):
        def forward(self, x: Any, w: Any, n: Any, v: Any) -> Any:
            return F.conv2d(x, w), F.conv2d(n, v), F.conv2d(x[:0], w)

    fast, graphs, own = compiled(Model())
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    n, v = torch.ones(1, 1, 3, 3, dtype=torch.int64), torch.ones(1, 1, 2, 2, dtype=torch.int64)
    close(fast(x, w, n, v), Model()(x, w, n, v))
    assert count(graphs[0], "jitdnn.") == 1
    assert len(own.explanation.rows) == 1


def test_no_memory_for_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("jitdnn.frameworks.torch.inductor_graph.real", full)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    fast, graphs, _ = compiled(model)
    x = random(2, 3, 6, 6)
    close(trained(model, fast, x), trained(model, model, x))
    assert not any(count(graph, "jitdnn.") for graph in graphs)


def test_only_one_gradient_is_ours_where_the_host_can_afford_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitdnn.frameworks.torch import inductor_graph

    ours, free = [10e-6], set[bool]()

    def decide(what: str, *_: Any) -> Decision:
        free.add(choice._is_host_free.get())
        faster = "torch data" in what
        return choice.Decision(faster, "stored", 1e-5 if faster else 3e-5, 2e-5, hosts=(ours[0], 30e-6))

    monkeypatch.setattr(inductor_graph, "is_on_gpu", lambda node: True)
    monkeypatch.setattr("jitdnn.frameworks.torch.kinds.decide", decide)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    twin, x = copy.deepcopy(model), random(2, 3, 8, 8)
    for left, runs in ((True, "torch"), (False, "jitdnn")):
        ours[0] = 10e-6 if left else 0.0
        torch._dynamo.reset()
        fast, graphs, own = compiled(model, measure="first")
        close(trained(model, fast, x), trained(twin, twin, x))
        assert count(graphs[1], "jitdnn.") == (not left)
        rows = {row.direction: row for row in own.explanation.rows}
        assert [rows[name].runs for name in ("forward", "data", "filter")] == ["torch", runs, "torch"]
        assert ("the host" in rows["data"].reason) is left
    assert free == {True}  # by the GPU alone


def test_what_all_convolutions_of_a_gpu_need_is_compiled_before_the_first_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jitdnn.frameworks.torch import inductor_graph
    from jitdnn.handle import Handle

    made: list[str] = []

    def compile_ahead(handle: Handle, calls: Any) -> None:
        assert not decided
        with handle:
            for call in calls:
                plan = call()
                made.append(f"{plan.problem} {plan.epilogue}")

    decided: list[str] = []

    def decide(what: str, *_: Any) -> choice.Decision:
        decided.append(what)
        return choice.Decision(False, "stored: slower", 2e-3, 1e-3, hosts=(1e-5, 1e-5))

    monkeypatch.setattr(inductor_graph, "is_on_gpu", lambda node: True)
    monkeypatch.setattr(inductor_graph, "compile_ahead", compile_ahead)
    monkeypatch.setattr("jitdnn.frameworks.torch.kinds.decide", decide)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3, bias=False))
    compiled(model, measure="first")[0](random(2, 3, 8, 8))
    # the first one alone, the same with its bias and activation; the second one, which nothing follows
    assert len(made) == 3
    assert all(text.startswith("conv_fwd n2") for text in made)
    assert len({text.partition(" f32")[0] for text in made}) == 2
    assert sum("max" in text for text in made) == 1
    assert decided


def test_the_operator() -> None:
    x, w = random(2, 4, 5, 6), random(6, 2, 3, 3)
    tail = '[["aten.add.Tensor",["%0","%1"],{}],["aten.mul.Tensor",["%3","%2"],{}],["aten.relu.default",["%4"],{}]]'
    operands = [random(6), random(2, 6, 5, 6, seed=1)]
    arguments = (x, w, operands, [1, 1], [1, 1], [1, 1], 2, tail)
    expected = F.relu(F.conv2d(x, w, operands[0], padding=1, groups=2) * operands[1])
    operator = torch.ops.jitdnn.convolution_pointwise.default
    for is_constant in (False, True, True):
        close(operator(*arguments, is_constant, "measure=never"), expected)
    last = x.contiguous(memory_format=torch.channels_last)
    y = operator(last, *arguments[1:], False, "measure=never")
    assert y.is_contiguous(memory_format=torch.channels_last)
    close(y, expected)
    torch.library.opcheck(operator, (*arguments, False, "measure=never"))
    form_holds(operator, last, w, [], [1, 1], [0, 0], [1, 1], 2, "[]", False, "measure=never")


def test_a_filter_that_is_kept_goes_with_its_tensor() -> None:
    from jitdnn.frameworks.torch import convolution_pointwise as module

    x, operator = random(1, 8, 9, 9), torch.ops.jitdnn.convolution_pointwise.default
    before = len(module._kept)
    for seed in range(3):  # memory that is given back is taken again
        w = random(8, 8, 3, 3, seed=seed)
        close(
            operator(x, w, [], [1, 1], [1, 1], [1, 1], 1, "[]", True, "measure=never"),
            F.conv2d(x, w, padding=1),
        )
        assert len(module._kept) == before + 1
        del w
    assert len(module._kept) == before


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    on = jt.InductorPass().uuid()
    monkeypatch.setenv("JITDNN_DISABLE", "1")
    model = nn.Conv2d(2, 3, 3)
    fast, graphs, own = compiled(model)
    x = random(1, 2, 5, 5)
    close(fast(x), model(x))
    assert not count(graphs[0], "jitdnn.")
    assert not own.explanation.rows
    assert own.uuid() != on
    assert inductor.HOOK not in inductor.patches({}, None)


def test_settings_for_inductor() -> None:
    assert inductor.patches(None, "default").keys() == {inductor.HOOK}
    found = inductor.patches({"measure": "never", "max_autotune": True, "triton.cudagraphs": True}, None)
    assert found["max_autotune"]
    assert found["triton.cudagraphs"]
    assert inductor.patches(None, "reduce-overhead")["triton.cudagraphs"]
    found = inductor.patches({"mode": "max-autotune", "measure": "never"}, None)  # torch takes one of the two
    assert found["max_autotune"]
    assert found[inductor.HOOK].uuid() == jt.InductorPass(measure="never").uuid()
    with pytest.raises(InvalidArgument, match="there is no option 'speed'"):
        inductor.patches({"speed": 1}, None)
    with pytest.raises(InvalidArgument, match="mode is 'fast'"):
        inductor.patches(None, "fast")
    with pytest.raises(InvalidArgument):
        jt.InductorPass(measure="often")
    with pytest.raises(InvalidType, match="before is 3"):
        jt.InductorPass(before=3)


def test_the_name_of_the_pass_in_caches() -> None:
    assert jt.InductorPass().uuid() == jt.InductorPass().uuid() != jt.InductorPass(math="fp64").uuid()
    assert copy.deepcopy(one := jt.InductorPass()) is one
    called: list[Any] = []

    class Known(jt.InductorPass):
        def __call__(self, graph: Any) -> None:
            called.append(graph)

        def uuid(self) -> Any:
            return "known"

    with_known = jt.InductorPass(before=Known())
    assert with_known.uuid() not in (None, jt.InductorPass().uuid())
    graph = torch.fx.Graph()
    graph.output(())
    with_known(graph)
    assert called == [graph]
    assert jt.InductorPass(before=called.append).uuid() is None  # who knows what it does: nothing is cached
    several = inductor._together([Known(), Known()])
    several(graph)
    assert len(called) == 3
    assert several.uuid() is not None


def test_a_pass_that_was_there_runs_first() -> None:
    from torch._inductor import config

    def first(graph: Any) -> None: ...

    with config.patch({inductor.HOOK: first}):
        assert inductor.patches(None, None)[inductor.HOOK]._before is first


def test_a_torch_without_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "HOOK", "post_grad_pass_of_another_time")
    with pytest.raises(
        NotSupported, match=r"has no torch\._inductor\.config\.post_grad_pass_of_another_time"
    ):
        jt.InductorPass()
    monkeypatch.setattr(inductor, "CustomGraphPass", object)
    with pytest.raises(NotSupported, match="CustomGraphPass"):
        inductor.patches(None, None)


def test_gradients_lie_as_the_images_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a mean over space is said to have channels first, also where all images have them last."""
    from jitdnn.frameworks.torch import settled

    otherwise: list[Any] = []
    real = settled._laid

    def laid(tensor: torch.Tensor, form: Any) -> torch.Tensor:
        otherwise.append((tensor.stride(), form))
        return real(tensor, form)

    monkeypatch.setattr(settled, "_laid", laid)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    fast, graphs, _ = compiled(model)
    x = random(2, 3, 9, 8).contiguous(memory_format=torch.channels_last)
    close(trained(model, fast, x), trained(twin, twin, x))
    assert count(graphs[1], "jitdnn.settled_convolution") >= 2
    assert not otherwise
