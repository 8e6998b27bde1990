"""Weights that are cast, and batches that are counted, for all layers of a model at once: tensors of the processor
stand for those of a GPU."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import together  # noqa: E402
from jitdnn.frameworks.torch.together import TOGETHER  # noqa: E402
from torch_kernels import random  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "costs_a_launch", lambda tensor: True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """How many tensors each call of PyTorch's foreach functions took."""
    found: dict[str, list[int]] = {"_foreach_copy_": [], "_foreach_add_": []}
    for name, counts in found.items():
        real = getattr(torch, name)

        def counted(first: Any, *rest: Any, real: Any = real, counts: list[int] = counts) -> Any:
            counts.append(len(first))
            return real(first, *rest)

        monkeypatch.setattr(torch, name, counted)
    return found


def network() -> Any:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(block, nn.Flatten(), nn.Linear(36, 2))


X = random(5, 3, 5, 5)


def step(model: Any, optimizer: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = model(X)
    optimizer.zero_grad()
    y.float().square().mean().backward()
    optimizer.step()
    return y.detach()


class Recording(nn.Module):
    """Records gradients whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Any) -> Any:
        with torch.enable_grad():
            return self.inner(x)


@pytest.mark.parametrize("case", ["other processes", "hooks", "recording inside"])
def test_weights_that_are_not_cast_together_have_their_gradients(
    case: str, calls: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that somebody waits for, and where gradients are recorded in a part of the model alone."""
    own = Recording() if case == "recording inside" else network()
    stock, seen = copy.deepcopy(own), list[Any]()
    if case == "other processes":
        monkeypatch.setattr(together, "_is_distributed", lambda: True)
    model = jt.convert(own, measure="never")
    if case == "hooks":
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(seen.append)
    for _ in range(4):
        for one in (model, stock):
            one.zero_grad()
            with torch.set_grad_enabled(case != "recording inside"), torch.autocast("cpu", torch.bfloat16):
                y = one(X)
            y.float().square().mean().backward()
        for one, other in zip(model.parameters(), stock.parameters(), strict=True):
            assert one.grad is not None
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-2, atol=1e-3)
    assert len(seen) == (4 * len(list(model.parameters())) if case == "hooks" else 0)
    if case != "recording inside":
        assert calls["_foreach_copy_"] == []  # nothing is cast that nobody takes


def test_steps_are_those_of_each_by_itself(calls: dict[str, list[int]]) -> None:
    stock = network()
    model = jt.convert(copy.deepcopy(stock), measure="never")
    apart = copy.deepcopy(model)
    together.forget(apart)
    ways = [(one, torch.optim.SGD(one.parameters(), 0.1)) for one in (model, apart)]
    for number in range(5):
        found, wanted = (step(*way) for way in ways)
        assert torch.equal(found, wanted)
        for one, other in zip(model.state_dict().values(), apart.state_dict().values(), strict=True):
            torch.testing.assert_close(one, other)
        assert int(model[0][1].num_batches_tracked) == number + 1
    assert calls["_foreach_add_"] == [1] * 5
    assert calls["_foreach_copy_"][-1] == 4  # two weights and two biases
    copies = [one.copy for one in model.__dict__[TOGETHER]._casts.values()]
    assert copies == [None] * 4  # of which nothing is kept between the calls


def test_a_layer_that_is_called_twice_counts_twice(calls: dict[str, list[int]]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)

        def forward(self, x: Any) -> Any:
            return self.norm(self.conv(self.norm(x)))

    model = jt.convert(Twice(), measure="never")
    for _ in range(3):
        model(X)
    assert int(model.norm.num_batches_tracked) == 6
    model.norm(X)  # outside of the model
    assert int(model.norm.num_batches_tracked) == 7
    assert calls["_foreach_add_"] == [1] * 3


def test_weights_that_change_or_go(calls: dict[str, list[int]]) -> None:
    model = jt.convert(network().eval(), measure="never")
    stock = jt.revert(copy.deepcopy(model))

    def check() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(X), stock(X), rtol=2e-2, atol=2e-2)

    for _ in range(4):
        check()

    def change(module: Any, args: Any) -> None:  # in the middle of a call
        with torch.no_grad():
            model[2].weight.mul_(3.0)
            stock[2].weight.copy_(model[2].weight)

    hook = model[1].register_forward_pre_hook(change)
    check()
    hook.remove()
    check()
    for one in (model, stock):
        torch.manual_seed(3)
        one[2] = jt.convert(nn.Linear(36, 2), measure="never") if one is model else nn.Linear(36, 2)
    for _ in range(3):
        check()
    assert calls["_foreach_copy_"][-1] == 2  # those of the layer that is gone are gone


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_weights_made_in_inference_mode_are_cast_one_by_one(mode: Any, calls: dict[str, list[int]]) -> None:
    """They count no changes, by which copies are told to be those of before."""
    with torch.inference_mode():
        model = jt.convert(network().eval(), measure="never")
        stock = jt.revert(copy.deepcopy(model))
    for _ in range(5):
        with mode(), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(X), stock(X), rtol=2e-2, atol=2e-2)
    assert not calls["_foreach_copy_"]


def test_a_call_that_fails_leaves_nothing(calls: dict[str, list[int]]) -> None:
    model = jt.convert(network(), measure="never")
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            model(X)
        with pytest.raises(RuntimeError):
            model(random(5, 3, 6, 6))
        assert int(model[0][1].num_batches_tracked) == 4
        assert model(X).shape == (5, 2)
    assert int(model[0][1].num_batches_tracked) == 5


def test_copies_and_reverted_models() -> None:
    model = jt.convert(network(), measure="never")
    model(X)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        shared = {id(one.__dict__[TOGETHER]) for one in again.modules() if TOGETHER in one.__dict__}
        assert len(shared) == 1
        assert shared != {id(model.__dict__[TOGETHER])}
        torch.testing.assert_close(again(X), copy.deepcopy(model)(X))
    jt.revert(model)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not any(TOGETHER in vars(one) for one in model.modules())
    alone = jt.convert(nn.Conv2d(3, 4, 3), measure="never")
    assert TOGETHER not in vars(alone)


def test_gradients_of_weights_that_are_cast_together() -> None:
    """All, some, with a frozen layer, of several calls, of gradients, and of steps in which weights are watched."""
    stock = network().requires_grad_(True)
    stock[0][0].requires_grad_(False)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    apart = copy.deepcopy(model)
    together.forget(apart)
    found: list[list[Any]] = [[], []]
    for results, one in zip(found, (model, apart), strict=True):
        seen: list[Any] = []
        one[2].weight.register_hook(seen.append)
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                first, second = one(X), one(2 * X)
            wanted = [p for p in one.parameters() if p.requires_grad]
            results += torch.autograd.grad(first.float().square().sum(), wanted)
            (part,) = torch.autograd.grad(second.float().square().sum(), [one[2].bias], create_graph=True)
            results += torch.autograd.grad(part.square().sum(), [one[2].weight])
        results += seen
    torch.testing.assert_close(*found)
    assert any("_CastAll" in type(node[0]).__name__ for node in history(model))
    assert not any("_CastAll" in type(node[0]).__name__ for node in history(apart))


def history(model: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return model(X).grad_fn.next_functions
