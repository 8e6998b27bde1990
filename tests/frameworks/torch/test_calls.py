"""Calls that a converted module remembers: the short way gives what the long one does, and is left where it must be."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.autograd import forward_ad  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.devices.launch_list import LaunchList  # noqa: E402
from jitdnn.frameworks.torch import calls, choice, convolution, guards, kinds, layers, linear  # noqa: E402
from torch_kernels import Mode, agree, check, random, step, watched  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 7, 5)),
    "grouped, without a bias": (lambda: nn.Conv2d(4, 6, 2, groups=2, bias=False), (1, 4, 5, 5)),
    "of lines": (lambda: nn.Conv1d(3, 5, 3, dilation=2), (2, 3, 11)),
    "with reflected edges": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 5, 4)),
    "of volumes": (lambda: nn.Conv3d(2, 3, 2), (1, 2, 3, 4, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), (2, 3, 4, 5)),
    "linear": (lambda: nn.Linear(7, 5), (9, 7)),
    "linear without a bias": (lambda: nn.Linear(7, 5, bias=False), (3, 7)),
    "linear, of sequences": (lambda: nn.Linear(7, 5), (2, 3, 7)),
}


def pair(name: str = "convolution") -> tuple[Any, Any, tuple[int, ...]]:
    make, shape = LAYERS[name]
    stock = make()
    return jt.convert(copy.deepcopy(stock), measure="never"), stock, shape


def is_short(node: Any) -> bool:
    if type(node).__name__ == "ViewBackward0":  # of sequences, which are rows
        ((node, _),) = node.next_functions
    return type(node).__name__ == "_LayerBackward"


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that take the long way."""
    taken: list[Any] = []
    routed = layers.routed

    def counted(function: Any, *rest: Any) -> Any:
        taken.append(function)
        return routed(function, *rest)

    monkeypatch.setattr(layers, "routed", counted)
    return taken


@pytest.mark.parametrize("name", LAYERS)
def test_later_calls_are_short_and_right(name: str, long_ways: list[Any]) -> None:
    model, stock, shape = pair(name)
    dy = random(*stock(random(*shape)).shape, seed=3)
    for number in range(4):
        node = check(model, stock, random(*shape, seed=number), dy)
        assert is_short(node) is (number > 0)
    assert len(long_ways) == 1
    with torch.no_grad():
        for number in range(3):
            x = random(*shape, seed=number)
            agree(model(x), stock.double()(x.double()), torch.float32, "without gradients")
            stock.float()
    assert len(long_ways) == 2


def test_sequences_whose_axes_are_turned_are_rows_in_training(long_ways: list[Any]) -> None:
    model, stock, _ = pair("linear, of sequences")
    for number in range(4):
        x = random(2, 7, 3, seed=number).transpose(1, 2)
        assert is_short(check(model, stock, x, random(2, 3, 5, seed=9))) is (number > 0)
    assert len(long_ways) == 1
    with torch.no_grad():
        agree(model(x), stock.double()(x.double()), torch.float32, "without gradients")


@pytest.mark.parametrize("name", ["convolution", "linear"])
def test_a_call_and_its_gradients_are_a_list_of_launches_each(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, stock, shape = pair(name)
    x, runs, on_cpu = random(*shape), [], calls.on_cpu

    def counting(launches: LaunchList, *others: Any) -> Any:
        run = on_cpu(launches, *others)
        assert run is not None

        def counted(*operands: Any) -> Any:
            runs.append(len(launches))
            return run(*operands)

        return counted

    monkeypatch.setattr(calls, "on_cpu", counting)
    check(model, stock, x), check(model, stock, x), check(model, stock, x)
    monkeypatch.setattr(kinds, "run_together", lambda *_: pytest.fail("looked up"))
    runs.clear()
    check(model, stock, x)
    assert runs == [1, 3]


def test_whatever_stands_between_sees_the_call(long_ways: list[Any]) -> None:
    model, stock, shape = pair()
    x = random(*shape)
    check(model, stock, x), check(model, stock, x)
    with Mode() as mode:
        y = model(x)
    assert "jitdnn::convolution" in mode.seen
    agree(y, stock(x).double(), torch.float32, "under a mode")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    each = torch.func.vmap(model)(x[:, None])
    torch.testing.assert_close(each[:, 0], stock(x), rtol=1e-4, atol=1e-5)
    found = torch.func.grad(lambda one: model(one).square().sum())(x)
    torch.testing.assert_close(found, torch.func.grad(lambda one: stock(one).square().sum())(x))
    assert len(long_ways) == 5
    with watched() as seen:
        check(model, stock, x)
    assert [kind.name for kind in seen] == ["forward", "data", "filter", "bias"]


def test_what_changes_is_seen(long_ways: list[Any]) -> None:
    stock = nn.Conv2d(2, 2, (1, 2))
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(1, 2, 3, 4)
    changes: list[Callable[[Any], Any]] = [
        lambda m: m,
        lambda m: setattr(m, "stride", (1, 2)),
        lambda m: setattr(m, "padding", "valid"),
        lambda m: setattr(m, "padding", (0, 1)),
        lambda m: setattr(m, "padding_mode", "circular"),
        lambda m: setattr(m, "padding_mode", "zeros"),
        lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach()[..., :1].clone())),
        lambda m: m.weight.data.mul_(2),
        lambda m: m.requires_grad_(False).weight.requires_grad_(),
        lambda m: setattr(m, "bias", None),
    ]
    for change in changes:
        for one in (model, stock):
            change(one)
            one._reversed_padding_repeated_twice = [1, 1, 0, 0]
        for _ in range(2):
            y, z = model(x), stock(x)
            torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-5)
            found = (
                torch.autograd.grad(one.square().sum(), m.weight)[0] for one, m in ((y, model), (z, stock))
            )
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    others = [random(3, 2, 3, 4), random(3, 2, 4, 3), random(1, 2, 3, 8)[..., ::2]]
    others += [random(1, 2, 3, 4).to(memory_format=torch.channels_last), random(1, 2, 4, 3).transpose(2, 3)]
    for other in (x, *others, x, *others):
        torch.testing.assert_close(model(other), stock(other), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        assert model(x).is_inference()
    model.double(), stock.double()
    torch.testing.assert_close(model(x.double()), stock(x.double()))
    for wrong in (x, random(1, 3, 3, 4).double(), random(2, 3).double()):
        with pytest.raises(RuntimeError):
            model(wrong)
    count = len(long_ways)
    model(x.double()), model(x.double())
    assert len(long_ways) == count


@pytest.mark.parametrize("name", ["convolution", "linear"])
def test_other_batches_have_gradients_of_their_own(name: str) -> None:
    model, stock, shape = pair(name)
    for batch in (2, 3, 2, 3, 3):
        check(model, stock, random(batch, *shape[1:], seed=batch))
    assert [entry.check(random(2, *shape[1:]), model.weight, model.bias) for entry in model._jitdnn_calls.entries] == [
        False, False,
    ]  # an input that wants no gradient is another  # fmt: skip


def test_a_module_whose_calls_are_ever_others_stops_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MOST_LEARNT", 6)
    model, stock, _ = pair("linear")
    with torch.no_grad():
        for rows in range(1, 9):
            x = random(rows, 7)
            torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
    assert len(model._jitdnn_calls.entries) == guards.MOST
    assert model._jitdnn_calls.learnt == 6


def test_gradients_of_a_part_of_gradients_and_again() -> None:
    model, stock, shape = pair()
    exact = copy.deepcopy(stock).double()
    x = random(*shape)
    for _ in range(3):
        for module, one in ((model, x.clone()), (exact, x.double())):
            one.requires_grad_()
            y = module(one)
            (dx,) = torch.autograd.grad(y.square().sum(), [one], retain_graph=True, create_graph=True)
            found = (dx, *torch.autograd.grad(dx.square().sum(), [module.weight, one], retain_graph=True))
            found += torch.autograd.grad(y.sum(), [module.weight], retain_graph=True)
            found += torch.autograd.grad(y.sum(), [module.bias])  # an expanded gradient
            if module is model:
                mine = found
        for a, b in zip(mine, found, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_checkpoints_hooks_and_anomalies(long_ways: list[Any]) -> None:
    model, stock, shape = pair()
    x = random(*shape).requires_grad_()
    kept = []
    for _ in range(3):
        for module in (model, stock):
            with torch.autograd.graph.saved_tensors_hooks(
                lambda one: (kept.append(one), one)[1], lambda one: one
            ):
                y = checkpoint(module, x, use_reentrant=False)
                grads = torch.autograd.grad(y.square().sum(), [x, *module.parameters()])
            if module is model:
                mine = grads
        torch.testing.assert_close(mine, grads, rtol=1e-4, atol=1e-4)
    assert kept
    with torch.autograd.set_detect_anomaly(True):
        check(model, stock, x.detach())
    y = model(x)
    model.weight.data = model.weight.data.clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_copies_and_pickles_remember_nothing(long_ways: list[Any]) -> None:
    model, stock, shape = pair()
    x = random(*shape)
    check(model, stock, x), check(model, stock, x)
    names = set(stock.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other._jitdnn_calls.entries == ()
        assert set(other.state_dict()) == names
        check(other, stock, x), check(other, stock, x)
    jt.revert(model)
    assert guards.CALLS not in model.__dict__
    assert type(model) is nn.Conv2d
    nn.utils.parametrizations.weight_norm(jt.convert(model, measure="never"))
    torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("wins", "expected"), [(False, "ConvolutionBackward0"), (True, "_LayerBackward")])
def test_where_torchs_kernels_win_in_both_directions_its_function_runs(
    wins: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(what: str, handle: Any, device: Any, ours: Any, stock: Any, *how: Any) -> Any:
        return choice.Decision("filter" in what.split()[:2] and wins, "measured, as this test says", 1.0, 1.0)

    monkeypatch.setattr(choice, "measured", measured)
    monkeypatch.setattr(choice, "stored", lambda *_: None)
    stock = LAYERS["convolution"][0]()
    model = jt.convert(copy.deepcopy(stock))
    nodes = [type(check(model, stock, random(2, 4, 7, 5))).__name__ for _ in range(4)]
    if hasattr(
        torch._C._autograd, "_top_saved_tensors_default_hooks"
    ):  # else there may always be a checkpoint
        assert nodes[-1] == expected, nodes
    x = random(2, 4, 7, 5).requires_grad_()
    kinds.forget()
    for _ in range(
        3
    ):  # what a checkpoint saves is the same each time, also where the choice falls in between
        first, second = (checkpoint(model, x, use_reentrant=False) for _ in range(2))
        exact = stock(x)
        for mine in (second, first):
            found, wanted = (
                torch.autograd.grad(y.sum(), [x, *own.parameters()])
                for y, own in ((mine, model), (stock(x), stock))
            )
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(first, exact, rtol=1e-4, atol=1e-4)
    kinds.forget()
    check(model, stock, random(2, 4, 7, 5))  # decided anew
    assert len(model._jitdnn_calls.entries) == 1


@pytest.mark.parametrize("name", ["convolution", "transposed", "of volumes"])
def test_gradients_that_are_torchs_are_one_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(what: str, handle: Any, device: Any, ours: Any, stock: Any, *how: Any) -> Any:
        return choice.Decision("filter" in what.split()[:2], "measured, as this test says", 1.0, 1.0)

    masks: list[Any] = []
    real = convolution.stock

    def call(function: Any, *operands: Any) -> Any:
        if function is torch.ops.aten.convolution_backward.default:
            masks.append(operands[-1])
        return real(function, *operands)

    monkeypatch.setattr(choice, "measured", measured)
    monkeypatch.setattr(choice, "stored", lambda *_: None)
    monkeypatch.setattr(convolution, "stock", call)
    stock, shape = LAYERS[name][0](), LAYERS[name][1]
    model = jt.convert(copy.deepcopy(stock))
    check(model, stock, random(*shape))
    masks.clear()
    for _ in range(2):
        check(model, stock, random(*shape))
    assert masks[-1:] == [[True, False, True]]
    assert len(masks) <= 3  # one for each where the call is not remembered yet


@pytest.mark.parametrize("name", ["convolution", "linear", "transposed"])
def test_derivatives_taken_forward_are_torchs(name: str) -> None:
    model, stock, shape = pair(name)
    x, tangent = random(*shape), random(*shape, seed=2)
    for wants in (False, True):
        model.requires_grad_(wants)
        check(model, stock, x) if wants else model(x)
        for _ in range(3):  # none is remembered, though kernels were chosen for such calls
            with forward_ad.dual_level():
                found = forward_ad.unpack_dual(model(forward_ad.make_dual(x, tangent)))
                expected = forward_ad.unpack_dual(stock(forward_ad.make_dual(x, tangent)))
            torch.testing.assert_close(found.tangent, expected.tangent)
        check(model, stock, x) if wants else model(x)
    value, push = torch.func.jvp(model, (x,), (tangent,))
    torch.testing.assert_close(push, torch.func.jvp(stock, (x,), (tangent,))[1])
    torch.testing.assert_close(value, stock(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["convolution", "linear", "transposed", "grouped, without a bias"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_calls_under_autocast_are_short(name: str, dtype: Any, long_ways: list[Any]) -> None:
    model, stock, shape = pair(name)
    x = random(*shape)
    exact = step(copy.deepcopy(stock).double(), x.double())
    for number in range(4):
        with torch.autocast("cpu", dtype):
            found = step(model, x)
        assert [one.dtype for one in found] == [dtype, *[torch.float32] * (len(found) - 1)]
        for one, other in zip(found, exact, strict=True):
            agree(one.to(dtype), other, dtype, "result and gradients under autocast")
        assert is_short(found[0].grad_fn) is (number > 0)
        with torch.autocast("cpu", dtype), torch.no_grad():
            y = model(x)
        assert y.dtype == dtype
        torch.testing.assert_close(y, found[0], rtol=0, atol=0)
    assert len(long_ways) == 2
    with torch.autocast("cpu", torch.float16 if dtype is torch.bfloat16 else torch.bfloat16):
        assert model(x).dtype != dtype
    assert model(x).dtype == torch.float32
    assert len(long_ways) == 4
    with torch.autocast("cpu", dtype), torch.autocast("cpu", enabled=False):
        assert model(x).dtype == torch.float32
    assert len(long_ways) == 4


def second(model: Any, x: Any, dtype: Any, weights: Any = None) -> list[Any]:
    """Gradients, and gradients of the sum of their squares."""
    given = {"weight": model.weight} if weights is None else weights
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        y = (
            model(x)
            if weights is None
            else torch.func.functional_call(model, {"weight": weights["weight"] * 2}, x)
        )
    wanted = [x, *given.values()]
    dy = random(*y.shape, seed=9).to(y.dtype)
    first = torch.autograd.grad(y, wanted, dy, create_graph=True)
    return [*first, *torch.autograd.grad(sum(one.double().square().sum() for one in first), wanted)]


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["convolution", "linear", "transposed"])
def test_gradients_of_gradients_under_autocast(name: str, dtype: Any, is_given: bool) -> None:
    """Their way goes through the casts of both operands, also of a weight that is computed outside of the module."""
    model, stock, shape = pair(name)
    x = random(*shape).to(dtype).requires_grad_()
    weights = {"weight": model.weight.detach().requires_grad_()} if is_given else None
    own = {"weight": model.weight.detach().double().requires_grad_()} if is_given else None
    exact = second(stock.double(), x.detach().double().requires_grad_(), None, own)
    for _ in range(3):
        found = second(model, x, torch.bfloat16, weights)
        for one, other in zip(found, exact, strict=True):
            agree(one.bfloat16(), other, torch.bfloat16, "gradients of first and second order")


def test_without_pytorchs_guards_all_calls_are_long(
    monkeypatch: pytest.MonkeyPatch, long_ways: list[Any]
) -> None:
    monkeypatch.setattr(guards, "_Guards", None)
    model, stock, shape = pair()
    for _ in range(3):
        assert not is_short(check(model, stock, random(*shape)))
    assert len(long_ways) == 3


@pytest.mark.parametrize("name", LAYERS)
def test_calls_on_a_gpu_are_no_lists(
    name: str, monkeypatch: pytest.MonkeyPatch, long_ways: list[Any]
) -> None:
    """Each launch by itself, at the addresses in the order of its plan; here the processor's."""
    for module in (convolution, linear):
        real = module.launched

        def apart(*given: Any, real: Any = real) -> Any:
            made = real(*given)
            return None if made is None else replace(made, handle=None)

        monkeypatch.setattr(module, "launched", apart)
    monkeypatch.setattr(calls, "_listed", None)
    model, stock, shape = pair(name)
    for seed in range(4):
        check(model, stock, random(*shape, seed=seed))
        with torch.no_grad():
            agree(model(random(*shape)), stock(random(*shape)).double(), torch.float32, "without gradients")
    assert len(long_ways) == 2  # with gradients, and without
