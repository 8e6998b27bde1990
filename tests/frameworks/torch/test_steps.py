"""Whole steps of models on GPUs, as chosen and by torch's own functions: a made-up clock stands for the GPU's."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import choice, steps, whole  # noqa: E402
from jitdnn.frameworks.torch.batch_norm_modules import REVERTED  # noqa: E402
from jitdnn.frameworks.torch.modules import OPTIONS  # noqa: E402
from jitdnn.frameworks.torch.options import parse  # noqa: E402
from jitdnn.frameworks.torch.registry import OWN  # noqa: E402
from jitdnn.planner.store import Store  # noqa: E402
from torch_kernels import random, watched  # noqa: E402

nn = torch.nn
MEASURED = steps._BLOCK * len(steps._ORDER) + len(steps._MEASURES) * steps._QUIET


class Clock:
    """Seconds that steps take, by the way that their model runs; `now` goes on with each."""

    def __init__(self) -> None:
        self.now, self.ours, self.kernels, self.host, self.both, self.stock = 0.0, 1.0, 3.0, 4.0, 3.5, 2.0

    def step(self, model: Any, x: Any) -> Any:
        y = model(x)
        by_layers = {"first": self.ours, "kernels": self.kernels, "host": self.host, "both": self.both}
        self.now += self.stock if is_bypassed(model) else by_layers[measure(model)]
        return y


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    made = Store(tmp_path / "times.sqlite")
    monkeypatch.setattr(Store, "default", staticmethod(lambda: made))
    monkeypatch.setattr(choice, "_measured", lambda ours, stock, *_: (ours(), stock(), 1.0, 2.0)[-2:])
    monkeypatch.setattr(whole, "_has_seen_hooks", False)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(steps, "is_measured", lambda x: True)
    monkeypatch.setattr(steps, "mark", lambda device: made.now)
    monkeypatch.setattr(steps, "seconds", lambda begun, ended: ended - begun)
    return made


def network() -> Any:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    return nn.Sequential(block, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def is_bypassed(model: Any) -> bool:
    """Whether layers with weights are, of which each has its own choice."""
    (found,) = {
        type(one) in steps.ACTIVE for one in model.modules() if isinstance(one, (nn.Conv2d, nn.Linear))
    }
    return found


def measure(model: Any) -> str:
    (text,) = {one.__dict__[OPTIONS] for one in model.modules() if OPTIONS in one.__dict__}
    return parse(text).measure


X = random(2, 3, 6, 6)


def run(model: Any, clock: Clock, count: int = MEASURED + 10) -> list[bool]:
    """Steps; which of them rested."""
    found = []
    for _ in range(count):
        clock.step(model, X)
        found.append(is_bypassed(model))
    return found


def test_the_faster_way_stays(clock: Clock) -> None:
    for clock.ours, clock.stock in ((1.0, 2.0), (2.0, 1.0)):
        model = jt.convert(network(), workspace_limit=int(clock.ours))  # a kind of its own
        found = run(model, clock)
        decision = steps.decision(model)
        assert decision is not None
        assert decision.is_ours is (clock.ours < clock.stock)
        assert (decision.seconds, decision.stock_seconds) == (clock.ours, clock.stock)
        assert found.count(True) >= 3 * steps._BLOCK  # all were tried
        assert found[-3:] == [not decision.is_ours] * 3
        assert jt.explain(model, X).rows[0].direction == "step"
        assert not is_bypassed(model)  # who asks is told of the layers
        clock.step(model, X)
        assert is_bypassed(model) is not decision.is_ours


@pytest.mark.parametrize(
    ("which", "who"),
    [("kernels", "GPU's time alone"), ("host", "host's time alone"), ("both", "GPU's and the host's time")],
)
def test_layers_are_chosen_by_other_times_where_steps_are_faster_so(
    clock: Clock, which: str, who: str
) -> None:
    setattr(clock, which, 0.5)
    model = jt.convert(network(), threads=1)
    ways = []
    for _ in range(MEASURED + 10):
        clock.step(model, X)
        ways.append(measure(model) == which and not is_bypassed(model))
    decision = steps.decision(model)
    assert decision is not None
    assert (decision.is_ours, decision.seconds, decision.stock_seconds) == (True, 0.5, 2.0)
    assert who in decision.reason
    assert 3 * steps._BLOCK <= ways.count(True) < MEASURED
    assert ways[-3:] == [True] * 3
    assert who in jt.explain(model, X).rows[0].reason
    assert measure(model) == which  # layers as they run are told
    with torch.no_grad():
        clock.step(model, X)  # steps of another kind
    assert measure(model) == "first"
    clock.step(model, X)
    assert measure(model) == which
    # another process knows, whose model tells its kinds of steps apart as before
    again = jt.convert(network(), threads=1)
    clock.step(again, X)
    assert measure(again) == which
    assert steps.decision(again).reason.startswith("stored")
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(one(X), model(X))
    jt.convert(model, threads=1)
    assert measure(model) == "first"


def test_modules_whose_calls_are_torchs_are_bypassed_by_themselves(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block's normalization and activation are torch's, its convolution and the linear layer ours."""
    monkeypatch.setattr(whole, "is_chosen", lambda function, x: type(x) in OWN)

    def measured(what: str, *_: Any) -> choice.Decision:
        return choice.Decision("batch_norm" not in what, "of the test", 1.0, 1.0)

    monkeypatch.setattr(choice, "measured", measured)
    stock = network()
    for kept in (steps.CHOSEN, steps.KERNELS):
        seconds = {"first": 3.0, "kernels": 3.0, "host": 4.0, "both": 3.5} | {steps._MEASURES[kept]: 1.0}
        model = jt.convert(copy.deepcopy(stock), workspace_limit=1 + (kept == steps.KERNELS))
        for _ in range(MEASURED + 10):
            model(X)
            clock.now += 2.0 if type(model[3]) in steps.ACTIVE else seconds[measure(model)]
        assert steps.decision(model).is_ours
        assert measure(model) == steps._MEASURES[kept]
        block = model[0]
        for one in (block, block[1]):
            assert type(one) in steps.ACTIVE
            assert type(one).forward is REVERTED[type(one)].forward
        for one in (block[0], model[3]):
            assert type(one) in steps.BYPASSED
        torch.testing.assert_close(model(X), copy.deepcopy(stock)(X), rtol=1e-4, atol=1e-4)
        with torch.no_grad():  # another kind, of which nothing is known
            model(X)
            assert type(block[1]) in steps.BYPASSED
        model(X)
        assert type(block[1]) in steps.ACTIVE
        jt.revert(model)
        assert [type(one) for one in model.modules()] == [type(one) for one in stock.modules()]


def test_what_rests_is_torchs(clock: Clock) -> None:
    clock.stock = 0.5
    stock = network()
    model = jt.convert(copy.deepcopy(stock))
    run(model, clock)
    for _ in range(MEASURED + 10):
        stock(X)  # statistics
    assert is_bypassed(model)
    with watched() as seen:
        pass
    y, expected = model(X), stock(X)
    assert torch.equal(y, expected)
    assert not seen
    for one, other in zip(model.modules(), stock.modules(), strict=True):
        assert isinstance(one, type(other))
        assert type(one).forward is type(other).forward
    assert repr(model) == repr(stock)
    assert model.state_dict().keys() == stock.state_dict().keys()
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(again(X), model(X))
        assert not is_bypassed(again) or steps.decision(again) is not None
    assert jt.convert(model, measure="never") is model
    assert not is_bypassed(model)
    jt.revert(model)
    assert [type(one) for one in model.modules()] == [type(one) for one in stock.modules()]
    assert not model._forward_pre_hooks
    assert vars(model).keys() == vars(stock).keys()


def test_another_process_knows(clock: Clock) -> None:
    clock.stock = 0.5
    run(jt.convert(network()), clock)
    model = jt.convert(network())
    clock.step(model, X)
    decision = steps.decision(model)
    assert decision is not None
    assert decision.reason.startswith("stored")
    assert is_bypassed(model)
    other = jt.convert(nn.Sequential(network(), nn.Tanh()))
    clock.step(other, X)
    assert steps.decision(other) is None


def test_kinds_of_steps_are_chosen_by_themselves(clock: Clock) -> None:
    clock.stock = 0.5
    model = jt.convert(network())
    run(model, clock)
    assert is_bypassed(model)
    with torch.no_grad():
        clock.step(model, X)
    assert not is_bypassed(model)
    assert steps.decision(model) is None
    clock.step(model, random(3, 3, 6, 6))
    assert not is_bypassed(model)
    clock.step(model, X)
    assert is_bypassed(model)


def test_first_calls_do_not_count(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [0]
    monkeypatch.setattr(choice, "made", lambda: made[0])
    model = jt.convert(network())
    for _ in range(20):
        made[0] += 1  # as if a layer was compiled in each
        clock.step(model, X)
    assert not is_bypassed(model)
    found = run(model, clock)
    assert True in found
    monkeypatch.setattr(steps, "_MOST_WAITING", 5)
    model = jt.convert(network(), workspace_limit=7)
    for _ in range(20):
        made[0] += 1
        clock.step(model, X)
    assert "ever new" in steps.decision(model).reason


def test_what_is_not_tried(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = jt.convert(network(), measure="never")
    assert steps.STEPS not in vars(asked)
    # checkpoints recompute what ran before
    model = jt.convert(nn.Sequential(network()))
    x = X.clone().requires_grad_()
    monkeypatch.setattr(whole, "is_chosen", lambda function, x: True)
    for _ in range(3):
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert "checkpoints" in steps.decision(model).reason
    monkeypatch.setattr(whole, "_has_seen_hooks", False)
    # several threads
    model = jt.convert(network())
    clock.step(model, X)
    thread = threading.Thread(target=clock.step, args=(model, X))
    thread.start()
    thread.join()
    assert "threads" in steps.decision(model).reason
    # transforms, and tensors of which nothing is known
    model = jt.convert(network().eval())
    torch.func.vmap(model)(X[None])
    model(random(2, 3, 6, 6).to("meta")) if False else None
    assert steps.decision(model) is None


def test_graphs_are_whole() -> None:
    model = jt.convert(network().eval())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), model(X), rtol=1e-4, atol=1e-5)
    program = torch.export.export(model, (X,))
    torch.testing.assert_close(program.module()(X), model(X), rtol=1e-4, atol=1e-5)
    traced = torch.fx.symbolic_trace(model)
    torch.testing.assert_close(traced(X), model(X), rtol=1e-4, atol=1e-5)
