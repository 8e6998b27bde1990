"""Calls of normalizations, activations and pools that are remembered: they give what the long way does, and leave it
where they must be seen."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import choice, guards, instance_norm_modules, kinds, modules, whole  # noqa: E402
from jitdnn.frameworks.torch.calls import CALLS  # noqa: E402
from torch_kernels import Mode, agree, check, random, watched  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
LAST = torch.channels_last
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...], Any]] = {
    "LayerNorm": (lambda: nn.LayerNorm(7), (2, 3, 7), None),
    "LayerNorm of two axes": (lambda: nn.LayerNorm((3, 7)), (2, 3, 7), None),
    "LayerNorm without parameters": (lambda: nn.LayerNorm(7, elementwise_affine=False), (2, 3, 7), None),
    "RMSNorm": (lambda: nn.RMSNorm(7), (2, 3, 7), None),
    "RMSNorm without parameters": (lambda: nn.RMSNorm((3, 7), elementwise_affine=False), (2, 3, 7), None),
    "GroupNorm": (lambda: nn.GroupNorm(3, 6), (2, 6, 5, 4), None),
    "GroupNorm, channels last": (lambda: nn.GroupNorm(3, 6), (2, 6, 5, 4), LAST),
    "GroupNorm without parameters": (lambda: nn.GroupNorm(2, 6, affine=False), (2, 6, 7), None),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3), (2, 3, 7), None),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), (2, 3, 5, 4), LAST),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(3, affine=True), (2, 3, 2, 3, 4), None),
    "Softmax": (lambda: nn.Softmax(1), (2, 5, 3, 4), LAST),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), (3, 7), None),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(3), (2, 3, 6), None),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((2, 1)), (2, 3, 6, 7), LAST),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(1), (1, 2, 4, 4, 5), None),
    "GELU": (nn.GELU, (3, 5), None),
    "GELU, channels last": (lambda: nn.GELU("tanh"), (2, 3, 5, 4), LAST),
    "SiLU": (nn.SiLU, (2, 3, 5, 4), LAST),
    "Mish": (nn.Mish, (13,), None),
    "Hardswish": (nn.Hardswish, (3, 5), None),
    "ELU": (nn.ELU, (3, 5), None),
    "Tanh": (nn.Tanh, (3, 5), None),
    "Sigmoid": (nn.Sigmoid, (3, 5), None),
    "MaxPool1d": (lambda: nn.MaxPool1d(3, 2, 1), (2, 3, 7), None),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), (2, 3, 6, 7), LAST),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), (1, 2, 4, 4, 5), None),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), (2, 3, 7), None),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 6, 7), LAST),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), (1, 2, 4, 4, 5), None),
}
SHORT = "_LayerBackward"


def pair(name: str = "LayerNorm") -> tuple[Any, Any, Callable[[int], Any]]:
    """A converted layer, torch's, and what makes inputs."""
    make, shape, order = LAYERS[name]
    stock = make()

    def made(seed: int = 0) -> Any:
        x = random(*shape, seed=seed)
        return x if order is None else x.contiguous(memory_format=order)

    return jt.convert(copy.deepcopy(stock), measure="never"), stock, made


def name_of(node: Any) -> str:
    return type(node).__name__


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that take the long way."""
    taken: list[Any] = []
    routed = modules.routed

    def counted(function: Any, *rest: Any) -> Any:
        taken.append(function)
        return routed(function, *rest)

    for place in (modules, instance_norm_modules):
        monkeypatch.setattr(place, "routed", counted)
    return taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_later_calls_are_short_and_right(name: str, dtype: Any, long_ways: list[Any]) -> None:
    if dtype is torch.bfloat16 and name.startswith(("LayerNorm", "RMSNorm")):
        pytest.skip("statistics of half precision are left to torch")
    model, stock, made = pair(name)
    dy = random(*stock(made()).shape, seed=3).to(dtype)
    if made().stride() != random(*made().shape).stride():
        dy = dy.contiguous(memory_format=LAST)
    found: set[tuple[int, ...]] = set()
    for number in range(4):
        x = made(number).to(dtype)
        node = check(model, stock, x, dy)
        assert (name_of(node) == SHORT) is (number > 0)
        found.add(model(x).stride())
    assert len(found) == 1  # it lies as in the long way
    (call,) = model._jitdnn_calls.entries[1:]
    assert len(call.backwards) == 1
    before = len(long_ways)
    assert before == 2  # with an input that wants a gradient, and without
    with torch.no_grad():
        for number in range(3):
            x = made(number).to(dtype)
            agree(model(x), copy.deepcopy(stock).double()(x.double()), dtype, "without gradients")
    assert len(long_ways) == before + 1


@pytest.mark.parametrize("name", ["LayerNorm", "GELU", "MaxPool2d", "GroupNorm", "Softmax"])
def test_whatever_stands_between_sees_the_call(name: str, long_ways: list[Any]) -> None:
    model, stock, made = pair(name)
    x = made()
    check(model, stock, x), check(model, stock, x)
    with torch.no_grad():
        model(x), model(x)
    count = len(long_ways)
    with Mode() as mode:
        y = model(x)
    if name not in ("GroupNorm", "Softmax"):  # which are torch's under a mode
        assert any(one.startswith("jitdnn::") for one in mode.seen)
    assert mode.seen
    agree(y, stock(x).double(), torch.float32, "under a mode")

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen: list[Any] = []
    with torch.no_grad(), Functions():
        model(x)
    assert seen
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found, expected = (forward_ad.unpack_dual(one(dual)).tangent for one in (model, stock))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.func.vmap(model)(x[None]), torch.func.vmap(stock)(x[None]), rtol=1e-4, atol=1e-5
    )
    found = torch.func.grad(lambda one: model(one).square().sum())(x)
    torch.testing.assert_close(
        found, torch.func.grad(lambda one: stock(one).square().sum())(x), rtol=1e-4, atol=1e-5
    )
    assert len(long_ways) == count + 5
    with watched() as kinds:
        check(model, stock, x)
    expected = ["whole"] if name in ("GroupNorm", "Softmax") else ["forward", "data"]
    assert [kind.name for kind in kinds] == (["forward", "gradients"] if name == "LayerNorm" else expected)


CHANGES: dict[str, list[Callable[[Any], Any]]] = {
    "LayerNorm": [
        lambda m: setattr(m, "eps", 0.5),
        lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach() * 2)),
        lambda m: m.weight.data.add_(1),
        lambda m: setattr(m, "bias", None),
        lambda m: setattr(m, "bias", nn.Parameter(torch.ones(7))),
        lambda m: m.requires_grad_(False).weight.requires_grad_(),
        lambda m: nn.utils.parametrizations.weight_norm(m, dim=None),
    ],
    "RMSNorm": [lambda m: setattr(m, "eps", 0.5), lambda m: setattr(m, "weight", None)],
    "GroupNorm": [
        lambda m: setattr(m, "num_groups", 2),
        lambda m: setattr(m, "eps", 0.5),
        lambda m: m.requires_grad_(False),
    ],
    "InstanceNorm2d": [
        lambda m: setattr(m, "eps", 0.5),
        lambda m: m.eval(),
        lambda m: setattr(m, "bias", None),
        lambda m: setattr(m, "weight", None),
    ],
    "Softmax": [lambda m: setattr(m, "dim", 2), lambda m: setattr(m, "dim", -1)],
    "AdaptiveAvgPool2d": [
        lambda m: setattr(m, "output_size", (3, None)),
        lambda m: setattr(m, "output_size", 4),
    ],
    "GELU": [lambda m: setattr(m, "approximate", "tanh"), lambda m: setattr(m, "approximate", "none")],
    "SiLU": [lambda m: setattr(m, "inplace", True), lambda m: setattr(m, "inplace", False)],
    "ELU": [lambda m: setattr(m, "alpha", 0.5), lambda m: setattr(m, "inplace", True)],
    "MaxPool2d": [
        lambda m: setattr(m, "stride", 1),
        lambda m: setattr(m, "padding", 0),
        lambda m: setattr(m, "dilation", 2),
        lambda m: setattr(m, "kernel_size", (2, 1)),
        lambda m: setattr(m, "ceil_mode", False),
        lambda m: setattr(m, "return_indices", True),
    ],
    "AvgPool2d": [
        lambda m: setattr(m, "stride", [1, 2]),
        lambda m: setattr(m, "count_include_pad", True),
        lambda m: setattr(m, "padding", 0),
        lambda m: setattr(m, "divisor_override", 3),
    ],
}


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last_3d])
def test_instances_of_half_precision_under_autocast(
    order: Any, parameters: Any, long_ways: list[Any]
) -> None:
    stock = nn.InstanceNorm3d(4, affine=True)
    with torch.no_grad():
        stock.weight.copy_(random(4, seed=8))
        stock.bias.copy_(random(4, seed=9))
    stock.to(parameters)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    for number in range(3):
        x, dy = (
            random(2, 4, 3, 5, 7, seed=number + seed).bfloat16().contiguous(memory_format=order)
            for seed in (0, 5)
        )
        with torch.autocast("cpu", torch.bfloat16):
            node = check(model, stock, x, torch.cat([dy, dy], 1)[:, 4:])
            assert (name_of(node) == SHORT) is (number > 0)
            y = model(x)
        assert y.stride() == x.stride()
        assert y.dtype is torch.bfloat16
    assert len(long_ways) == 2  # with gradients and without


def test_groups_that_autocast_casts_stay_torchs() -> None:
    x, model = random(2, 6, 5).bfloat16(), jt.convert(nn.GroupNorm(3, 6), measure="never")
    model(x), model(x)
    with watched() as seen, torch.autocast("cpu", torch.bfloat16):
        found = model(x)
        torch.testing.assert_close(found, nn.GroupNorm(3, 6)(x))
    assert not any(kind.decision.is_ours for kind in seen)


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_is_seen(name: str) -> None:
    model, stock, made = pair(name)
    for change in (lambda m: m, *CHANGES[name]):
        for one in (model, stock):
            change(one)
        for _ in range(3):
            found = []
            for one in (model, stock):
                x = made().requires_grad_()
                y = one(x * 1)
                y = y[0] if isinstance(y, tuple) else y
                wanted = [x, *(p for p in one.parameters() if p.requires_grad)]
                found.append((y, *torch.autograd.grad(y.square().sum(), wanted)))
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
            with torch.no_grad():
                torch.testing.assert_close(model(made()), stock(made()), rtol=1e-4, atol=1e-5)


def test_other_inputs_are_others(long_ways: list[Any]) -> None:
    model, stock, made = pair("AvgPool2d")
    x = made()
    others = [
        x.contiguous(), random(3, 3, 6, 7), random(2, 3, 6, 14)[..., ::2], random(2, 3, 7, 6).transpose(2, 3),
        random(3, 6, 7),
    ]  # fmt: skip
    for one in (x, *others, x, *others):
        torch.testing.assert_close(model(one), stock(one), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(x.double()), stock(x.double()))
    with torch.inference_mode():
        assert model(x).is_inference()
    for wrong in (random(6), random(1, 2)):
        with pytest.raises((RuntimeError, IndexError)):
            model(wrong)
    with pytest.raises(TypeError):
        model([1.0])
    count = len(long_ways)
    model(x.double()), model(x.double())
    assert len(long_ways) == count


def test_a_module_whose_calls_are_ever_others_stops_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MOST_LEARNT", 6)
    model, stock, _ = pair()
    for rows in range(1, 9):
        x = random(rows, 7)
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
    assert len(model._jitdnn_calls.entries) == guards.MOST
    assert model._jitdnn_calls.learnt == 6


@pytest.mark.parametrize(
    "name",
    [
        "LayerNorm",
        "LayerNorm without parameters",
        "GELU",
        "SiLU",
        "Tanh",
        "MaxPool2d",
        "AvgPool2d",
        "RMSNorm",
        "GroupNorm",
        "GroupNorm without parameters",
        "InstanceNorm2d",
        "Softmax",
        "AdaptiveAvgPool2d",
    ],
)
def test_gradients_of_gradients_and_again(name: str) -> None:
    model, stock, made = pair(name)
    exact = copy.deepcopy(stock).double()
    for _ in range(3):
        for module, one in ((model, made()), (exact, made().double())):
            x = (one * 1).requires_grad_()
            y = module(x)
            wanted = [x, *module.parameters()]
            (dx,) = torch.autograd.grad(y.square().sum(), [x], retain_graph=True, create_graph=True)
            found = (
                dx,
                *torch.autograd.grad(dx.square().sum(), wanted, retain_graph=True, allow_unused=True),
            )
            found += torch.autograd.grad(y.square().sum(), wanted, retain_graph=True)
            found += torch.autograd.grad(y.sum(), wanted)  # an expanded gradient
            if module is model:
                mine = found
        for a, b in zip(mine, found, strict=True):
            if b is not None:
                torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "name", ["LayerNorm", "Sigmoid", "MaxPool2d", "AvgPool2d", "GroupNorm", "RMSNorm", "Softmax"]
)
def test_checkpoints_hooks_and_anomalies(name: str) -> None:
    model, stock, made = pair(name)
    x = made().requires_grad_()
    kept = []
    for number in range(4):
        found = []
        for module in (model, stock):
            with torch.autograd.graph.saved_tensors_hooks(
                lambda one: (kept.append(one), one)[1],
                lambda one: one.clone(memory_format=torch.contiguous_format),
            ):
                y = checkpoint(module, x, use_reentrant=number == 3)
                grads = torch.autograd.grad(y.square().sum(), [x, *module.parameters()]) if number < 3 else ()
            found.append(grads)
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert kept
    with torch.autograd.set_detect_anomaly(True):
        check(model, stock, x.detach())


def test_what_is_kept_may_not_change() -> None:
    model, _, made = pair()
    for _ in range(2):
        y = model(made().requires_grad_())
        with torch.no_grad():
            model.weight.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_the_result_of_a_pool_may_be_changed() -> None:
    model, stock, made = pair("MaxPool2d")
    for _ in range(4):
        found = []
        for module in (model, stock):
            x = made().requires_grad_()
            y = module(x)
            y.relu_()
            found.append(torch.autograd.grad(y.square().sum(), [x])[0])
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_copies_and_pickles_remember_nothing() -> None:
    model, stock, made = pair()
    check(model, stock, made()), check(model, stock, made())
    names = set(stock.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other._jitdnn_calls.entries == ()
        assert set(other.state_dict()) == names
        check(other, stock, made()), check(other, stock, made())
    jt.revert(model)
    assert CALLS not in model.__dict__
    assert type(model) is nn.LayerNorm


def test_autocast_is_another_call(long_ways: list[Any]) -> None:
    """Layer normalization is torch's under autocast; activations and pools take operands as they are."""
    for name in ("LayerNorm", "GELU"):
        model, stock, made = pair(name)
        with torch.no_grad():
            for x in (made(), made().to(torch.bfloat16)) if name == "GELU" else (made(),):
                model(x), model(x)
                del long_ways[:]
                for number in range(3):
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        y, z = model(x), stock(x)
                    assert y.dtype == z.dtype
                    torch.testing.assert_close(y, z, rtol=1e-2, atol=1e-2)
                    assert len(long_ways) == (number + 1 if name == "LayerNorm" else 1)


def test_without_pytorchs_guards_all_calls_are_long(
    monkeypatch: pytest.MonkeyPatch, long_ways: list[Any]
) -> None:
    monkeypatch.setattr(guards, "_Guards", None)
    model, stock, made = pair()
    for _ in range(3):
        check(model, stock, made())
    assert len(long_ways) == 3


@pytest.mark.parametrize("is_faster", [True, False])
def test_what_is_measured_are_calls_as_they_are_remembered(
    is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where torch's function is faster, nothing is remembered but that."""
    nodes = []

    def measured(what: str, handle: Any, device: Any, ours: Any, stock: Any, *how: Any) -> Any:
        if "whole" in what:
            nodes.append(what)
            with monkeypatch.context() as patch:
                patch.setattr(
                    torch.autograd, "grad", lambda ys, *_, **__: nodes.append(name_of(ys[0].grad_fn))
                )
                ours()
        return choice.Decision("whole" not in what or is_faster, "measured, as this test says", 1.0, 1.0)

    monkeypatch.setattr(choice, "measured", measured)
    monkeypatch.setattr(choice, "stored", lambda *_: None)
    stock = nn.GELU(approximate="tanh")
    model = jt.convert(copy.deepcopy(stock))
    found = [name_of(check(model, stock, random(3, 5))) for _ in range(4)]
    assert nodes[1:] == [SHORT]
    assert found[1:] == [SHORT if is_faster else "GeluBackward0"] * 3
    assert (CALLS in model.__dict__) is is_faster
    assert whole.SHORT[nn.functional.gelu]((random(3).long(),), {}, "measure=never") is None


def test_a_short_way_of_another_epoch_is_forgotten() -> None:
    """Of an instance normalization that has an activation behind it since then, whose calls have no such way."""
    block = jt.convert(nn.Sequential(nn.InstanceNorm2d(3, affine=True), nn.ReLU()), measure="never")
    x = random(2, 3, 5, 4)
    for _ in range(3):
        block[0](x)
    calls = block[0].__dict__[CALLS]
    assert calls.quick is not None
    kinds.forget()
    for _ in range(3):
        block(x)
    assert [one.quick for one in calls.entries] == [None]
    assert calls.quick is None
