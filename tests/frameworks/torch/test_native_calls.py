"""Calls that modules have made before, found again and run by generated code, and what that leaves to Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.overrides import TorchFunctionMode  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import kinds, native_calls, operator_calls  # noqa: E402
from jitdnn.frameworks.torch.guards import CALLS, guard  # noqa: E402
from torch_kernels import random  # noqa: E402

nn = torch.nn


class Counting:
    """The guards of a call, whether its module is asked, and what was run."""

    def __init__(self, module: Any, x: Any) -> None:
        own = module._parameters
        self.weight, self.bias = own.get("weight"), own.get("bias")
        tensors = [one for one in (x, self.weight, self.bias) if one is not None]
        state = operator_calls._now(module, module.__dict__, self.weight, self.bias, "")
        self.ran: list[Any] = []
        self.slow: list[Any] = []
        self.call = native_calls.recalled(
            lambda *given: self.slow.append(given), lambda *given: self.ran.append(given),
            3, guard(*tensors), state, operator_calls._has_function_modes, type(module)._jitdnn_told,
        )  # fmt: skip


def layer_norm(**named: Any) -> Any:
    return jt.convert(nn.LayerNorm(8, **named), measure="never")


@pytest.mark.parametrize("named", [{}, {"bias": False}, {"elementwise_affine": False}])
def test_calls_like_the_one_of_before_run(named: dict[str, Any]) -> None:
    module, x = layer_norm(**named), random(4, 8).requires_grad_()
    counting = Counting(module, x)
    every = [one for one in (module, x, module.weight, module.bias) if one is not None]
    before = [sys.getrefcount(one) for one in every]
    for _ in range(5):
        counting.call(module, x)
    assert counting.ran == [(x, module.weight, module.bias)] * 5
    counting.ran.clear()
    counting.call(module, torch.zeros(4, 8, requires_grad=True))
    assert len(counting.ran) == 1
    counting.ran.clear()
    assert not counting.slow
    assert [sys.getrefcount(one) for one in every] == before


class Other(torch.Tensor):
    pass


class Mode(TorchFunctionMode):
    pass


@contextmanager
def set_to(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def other_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def parameter(*shape: int, **named: Any) -> Any:
    return nn.Parameter(torch.ones(*shape), **named)


#: what is otherwise than when the call was made, for a module
CHANGES: dict[str, Any] = {
    "gradients": lambda _: torch.no_grad(),
    "threads": lambda _: other_threads(),
    "epoch": lambda _: set_to(kinds, "epoch", kinds.epoch + 1),
    "mode": lambda _: Mode(),
    "level": lambda _: torch.autograd.forward_ad.dual_level(),
    "options": lambda module: set_to(module, "_jitdnn_options", "workspace_limit=0"),
    "epsilon": lambda module: set_to(module, "eps", 0.5),
    "another weight": lambda module: set_to(module, "weight", parameter(8, requires_grad=False)),
    "no weight": lambda module: set_to(module, "weight", None),
    "no bias": lambda module: set_to(module, "bias", None),
    "no options": lambda module: without(module, "_jitdnn_options"),
}


@contextmanager
def without(module: Any, name: str) -> Iterator[None]:
    value = module.__dict__.pop(name)
    try:
        yield
    finally:
        module.__dict__[name] = value


@contextmanager
def observed() -> Iterator[None]:
    kinds.observers.append(lambda *_: None)
    try:
        yield
    finally:
        kinds.observers.pop()


CHANGES |= {"observers": lambda _: observed(), "a thread's own observers": lambda _: kinds.apart()}


@pytest.mark.parametrize("what", CHANGES)
def test_other_calls_are_looked_for_in_python(what: str) -> None:
    module, x = layer_norm(), random(4, 8).requires_grad_()
    counting = Counting(module, x)
    with CHANGES[what](module):
        every = [one for one in (module, x, module.weight, module.bias) if one is not None]
        before = [sys.getrefcount(one) for one in every]
        counting.call(module, x)
        assert len(counting.slow) == 1
        counting.slow.clear()
        assert not counting.ran
        assert [sys.getrefcount(one) for one in every] == before
    counting.call(module, x)
    assert counting.ran


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(5, 8, requires_grad=True),
        torch.ones(4, 8),
        torch.ones(4, 8, dtype=torch.float64, requires_grad=True),
        torch.ones(8, 4).t().requires_grad_(),
        torch.ones(4, 8).requires_grad_().as_subclass(Other),
        torch.nested.nested_tensor([torch.ones(8)], layout=torch.jagged, requires_grad=True),
        None,
        3,
    ],
    ids=["shape", "no gradient", "type", "strides", "class", "nested", "None", "number"],
)
def test_other_inputs_are_looked_for_in_python(x: Any) -> None:
    module = layer_norm()
    counting = Counting(module, random(4, 8).requires_grad_())
    counting.call(module, x)
    assert len(counting.slow) == 1
    assert not counting.ran


def test_other_forms_of_calls_are_handed_on() -> None:
    module, x = layer_norm(), random(4, 8).requires_grad_()
    counting = Counting(module, x)
    counting.call(module, x, 3)
    counting.call(module)
    assert counting.slow == [(module, x, 3), (module,)]


@pytest.mark.parametrize("what", ["told", "check", "apply"])
def test_what_is_raised_goes_on(what: str) -> None:
    module, x = layer_norm(), random(4, 8).requires_grad_()

    def fails(*_: Any) -> Any:
        raise ZeroDivisionError(what)

    state = operator_calls._now(module, module.__dict__, module.weight, module.bias, "")
    given = {
        "told": type(module)._jitdnn_told,
        "check": lambda *_: True,
        "apply": lambda *_: None,
        what: fails,
    }
    call = native_calls.recalled(
        fails, given["apply"], 3, given["check"], state, operator_calls._has_function_modes, given["told"]
    )
    weight = module.weight
    before = sys.getrefcount(weight)
    with pytest.raises(ZeroDivisionError, match=what):
        call(module, x)
    after = sys.getrefcount(weight)
    assert after <= before + (what != "told")  # the last traceback


def node() -> Any:
    return SimpleNamespace()


@pytest.mark.parametrize("is_tuple", [False, True])
def test_the_forward_pass_of_a_node(is_tuple: bool) -> None:
    x, w, y, z = (torch.zeros(2) for _ in range(4))
    result, given = (y, z) if is_tuple else y, []

    def keep(ctx: Any, x: Any, result: Any, arguments: Any, w: Any) -> None:
        ctx.save_for_backward(w, x, *(result[::-1] if is_tuple else (result,)))
        ctx.form = torch.channels_last

    def kernel(*operands: Any) -> Any:
        given.append(operands)
        return result

    saves = native_calls.saves_of(keep, (x, w), result, ("a", 3))
    assert saves is not None
    forward = native_calls.forward(pytest.fail, kernel, 2, ("a", 3), saves)
    every = (x, w, y, z)
    before = [sys.getrefcount(one) for one in every]
    ctx = node()
    assert forward(ctx, x, w) is y
    assert given == [(x, w, "a", 3)]
    assert [id(one) for one in ctx.to_save] == [id(one) for one in (w, x, *([z, y] if is_tuple else [y]))]
    assert ctx.form is torch.channels_last
    del ctx
    given.clear()
    assert [sys.getrefcount(one) for one in every] == before


def test_other_forms_of_nodes_calls_are_handed_on() -> None:
    saves = native_calls.Saves((), (), False)
    forward = native_calls.forward(lambda *given: given, pytest.fail, 1, (), saves)
    assert forward(1, 2, 3) == (1, 2, 3)


def test_what_a_kernel_or_a_node_raises_goes_on() -> None:
    x = torch.zeros(2)
    before = sys.getrefcount(x)

    def fails(*_: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        native_calls.forward(pytest.fail, fails, 1, (), native_calls.Saves((0,), (), False))(node(), x)
    with pytest.raises(AttributeError):  # a number has no attributes
        native_calls.forward(pytest.fail, lambda x: x, 1, (), native_calls.Saves((0,), (), False))(3, x)
    with pytest.raises(IndexError):
        native_calls.forward(pytest.fail, lambda x: (x,), 1, (), native_calls.Saves((-2,), (), True))(
            node(), x
        )
    assert sys.getrefcount(x) <= before + 1  # the last traceback


@pytest.mark.parametrize("fails_at", [None, "result", "version"])
def test_changes_of_a_result_are_watched(fails_at: str | None) -> None:
    class Node(SimpleNamespace):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == fails_at:
                raise ZeroDivisionError(name)
            super().__setattr__(name, value)

    x, y = torch.zeros(2), torch.ones(2)
    saves = native_calls.Saves((0,), (), False, is_watched=True)
    forward = native_calls.forward(lambda *given: given, lambda _: y, 1, (), saves)
    ctx, every = Node(), (x, y)
    before = [sys.getrefcount(one) for one in every]
    if fails_at is None:
        assert forward(ctx, x) is y
        assert ctx.version == ctx.result._version == y._version
        y.add_(1)
        assert ctx.version < ctx.result._version
        assert ctx.result.data_ptr() == y.data_ptr()
        with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one):
            assert forward(ctx, x) == (ctx, x)  # in Python
    else:
        with pytest.raises(ZeroDivisionError, match=fails_at):
            forward(ctx, x)
    del ctx
    after = [sys.getrefcount(one) for one in every]
    assert after[1] == before[1]


def test_what_a_node_keeps_besides_is_left_to_python() -> None:
    x = torch.zeros(2)

    def of_another(ctx: Any, x: Any, *_: Any) -> None:
        ctx.save_for_backward(x.detach())

    def with_a_number(ctx: Any, x: Any, *_: Any) -> None:
        ctx.version = x._version

    def asking(ctx: Any, *_: Any) -> None:
        ctx.mark_non_differentiable()

    for keep in (of_another, with_a_number, asking):
        assert native_calls.saves_of(keep, (x,), torch.zeros(2), ()) is None


MODULES = {
    "SiLU": (nn.SiLU, (4, 8)),
    "Softmax": (lambda: nn.Softmax(-1), (4, 8)),
    "LayerNorm": (lambda: nn.LayerNorm(8), (4, 8)),
    "RMSNorm": (lambda: nn.RMSNorm(8), (4, 8)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), (2, 8, 4, 4)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (1, 4, 4, 4)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (1, 4, 4, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_take_it(name: str) -> None:
    """The same results and gradients by generated code in all places, and by PyTorch."""
    make, shape = MODULES[name]
    stock = make()
    module = jt.convert(make(), measure="never")
    x = random(*shape).requires_grad_()
    for _ in range(6):
        y = module(x)
    (entry,) = module.__dict__[CALLS].entries
    assert type(module.__dict__[CALLS].quick) is type(len)
    assert type(entry.apply.__self__.forward) is type(len)
    dy = random(*y.shape)
    for _ in range(6):
        found = torch.autograd.grad(module(x), [x, *module.parameters()], dy)
    wanted = torch.autograd.grad(stock(x), [x, *stock.parameters()], dy)
    torch.testing.assert_close(module(x), stock(x))
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        torch.testing.assert_close(module(x), stock(x))
    (again,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    (theirs,) = torch.autograd.grad(stock(x).square().sum(), x, create_graph=True)
    torch.testing.assert_close(
        torch.autograd.grad(again.sin().sum(), x), torch.autograd.grad(theirs.sin().sum(), x)
    )


def test_hooks_of_what_is_saved_see_it() -> None:
    module, x = jt.convert(nn.SiLU(), measure="never"), random(4, 8).requires_grad_()
    for _ in range(6):
        module(x)
    packed: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: packed.append(one) or len(packed), lambda _: x * 2
    ):
        y = module(x)
    assert [one.data_ptr() for one in packed] == [x.data_ptr()]
    doubled = (x.detach() * 2).requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(y.sum(), x), torch.autograd.grad(nn.functional.silu(doubled).sum(), doubled)
    )
