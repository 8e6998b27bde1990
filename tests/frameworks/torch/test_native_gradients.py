"""Backward passes of nodes as generated code: what it runs, and what it leaves to Python."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import kinds, native_gradients  # noqa: E402
from torch_kernels import random  # noqa: E402

nn = torch.nn
DY, X, W = (torch.zeros(3) for _ in range(3))


class Noted:
    """A method of nodes, and what it has called."""

    def __init__(self, **changes: Any) -> None:
        self.ran: list[Any] = []
        self.slow: list[Any] = []
        self.is_alike = True
        given: dict[str, Any] = {
            "kept": 2,
            "threads": torch.get_num_threads(),
            "needs": (True, False),
            **changes,
        }
        own = native_gradients.gradients(self._slow, self._run, self._check, **given)
        self.node = type("Node", (SimpleNamespace,), {"apply": own})(
            saved_tensors=(X, W), needs_input_grad=(True, False)
        )

    def _run(self, *operands: Any) -> str:
        self.ran.append(operands)
        return "gradients"

    def _slow(self, *operands: Any) -> str:
        self.slow.append(operands)
        return "slow"

    def _check(self, *operands: Any) -> bool:
        return self.is_alike


def test_launches_get_the_gradient_and_what_was_saved() -> None:
    noted = Noted()
    before = [sys.getrefcount(one) for one in (DY, X, W)]
    assert noted.node.apply(DY) == "gradients"
    ((dy, x, w),) = noted.ran
    assert dy is DY
    assert x is X
    assert w is W
    assert not noted.slow
    noted.ran.clear()
    del dy, x, w
    assert [sys.getrefcount(one) for one in (DY, X, W)] == before


def test_it_lives_as_long_as_its_class() -> None:
    noted = Noted()
    gc.collect()
    assert [noted.node.apply(DY) for _ in range(3)] == ["gradients"] * 3


def another_number_of_threads(noted: Noted) -> Any:
    return Noted(threads=torch.get_num_threads() + 1)


def other_needs(noted: Noted) -> Any:
    noted.node.needs_input_grad = (True, True)


def other_operands(noted: Noted) -> Any:
    noted.is_alike = False


def more_that_is_saved(noted: Noted) -> Any:
    noted.node.saved_tensors = (X, W, X)


@pytest.mark.parametrize(
    ("change", "has_looked"),
    [
        (another_number_of_threads, False),
        (other_needs, False),
        (other_operands, True),
        (more_that_is_saved, True),
    ],
)
def test_what_goes_to_python(change: Any, has_looked: bool) -> None:
    """With what was saved, where that was looked at: checkpoints hand it out once."""
    noted = Noted()
    noted = change(noted) or noted
    assert noted.node.apply(DY) == "slow"
    assert not noted.ran
    ((node, dy, *kept),) = noted.slow
    assert node is noted.node
    assert dy is DY
    assert kept == ([noted.node.saved_tensors] if has_looked else [])


def test_recorded_and_watched_gradients_go_to_python() -> None:
    noted = Noted()
    with torch.enable_grad():
        assert noted.node.apply(DY) == "slow"
    with torch.no_grad(), kinds.apart(lambda *_: None):
        assert noted.node.apply(DY) == "slow"
    with torch.no_grad():
        assert noted.node.apply(DY) == "gradients"


@pytest.fixture(autouse=True)
def unrecorded() -> Any:
    with torch.no_grad():
        yield


def test_any_threads_and_needs() -> None:
    noted = Noted(threads=None, needs=None)
    noted.node.needs_input_grad = ()
    assert noted.node.apply(DY) == "gradients"


@pytest.mark.parametrize("what", ["saved_tensors", "needs_input_grad"])
def test_errors_are_raised(what: str) -> None:
    noted = Noted()
    delattr(noted.node, what)
    with pytest.raises(AttributeError, match=what):
        noted.node.apply(DY)
    with pytest.raises(TypeError, match="no launch"):
        failing(TypeError("no launch")).node.apply(DY)


def failing(error: Exception) -> Noted:
    noted = Noted()

    def run(*_: Any) -> None:
        raise error

    own = native_gradients.gradients(noted._slow, run, noted._check, 2, None, None)
    type(noted.node).apply = own
    return noted


@pytest.mark.parametrize("name", ["SiLU", "LayerNorm", "Conv2d"])
def test_layers_come_to_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And their gradients stay what they were, also where the next call is another one."""
    made: list[Any] = []
    gradients = native_gradients.gradients

    def noting(*given: Any) -> Any:
        made.append(given)
        return gradients(*given)

    monkeypatch.setattr(native_gradients, "gradients", noting)
    stock, shape = {
        "SiLU": (nn.SiLU(), (4, 6)),
        "LayerNorm": (nn.LayerNorm(6), (4, 6)),
        "Conv2d": (nn.Conv2d(3, 4, 3), (2, 3, 5, 5)),
    }[name]
    model = jt.convert(
        type(stock)(*{"SiLU": (), "LayerNorm": (6,), "Conv2d": (3, 4, 3)}[name]), measure="never"
    )
    model.load_state_dict(stock.state_dict())
    for number in range(8):
        x = random(*shape, seed=number)
        with torch.enable_grad():
            one, other = (x.clone().requires_grad_() for _ in range(2))
            y, wanted = model(one), stock(other)
            dy = random(*y.shape, seed=50 + number)
            dy = dy if number != 6 else dy[:1].expand(y.shape)  # of other strides
            found = torch.autograd.grad(y, [one, *model.parameters()], dy)
            expected = torch.autograd.grad(wanted, [other, *stock.parameters()], dy)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert made


@pytest.mark.parametrize("is_retained", [True, False])
def test_a_result_that_the_node_has_besides(monkeypatch: pytest.MonkeyPatch, is_retained: bool) -> None:
    """It is an operand while its version is the noted one, and goes with the graph."""
    monkeypatch.setattr(native_gradients, "is_graph_kept", lambda: is_retained)
    noted, y = Noted(has_result=True), torch.zeros(3)
    node = noted.node
    before = sys.getrefcount(y)
    node.result, node.version = y, y._version
    assert node.apply(DY) == "gradients"
    assert [one is other for one, other in zip(noted.ran.pop(), (DY, X, W, y), strict=True)] == [True] * 4
    assert (node.result is y) is is_retained
    node.result = None
    assert node.apply(DY) == "slow"  # which computes it again
    assert sys.getrefcount(y) == before
    node.result = y.add_(1)
    assert node.apply(DY) == "slow"
    noted.is_alike, node.version = False, y._version
    assert node.apply(DY) == "slow"
    assert node.result is y
    assert all(kept is node.saved_tensors for _, _, kept in noted.slow)
    node.result = None
    assert sys.getrefcount(y) == before


@pytest.mark.parametrize("is_retained", [True, False])
def test_a_pool_gives_its_result_back_with_the_graph(is_retained: bool) -> None:
    model, x = jt.convert(nn.MaxPool2d(2), measure="never"), random(2, 3, 4, 4).requires_grad_()
    with torch.enable_grad():
        for _ in range(6):
            y = model(x)
            torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=is_retained)
    assert (y.grad_fn.result is not None) is is_retained
