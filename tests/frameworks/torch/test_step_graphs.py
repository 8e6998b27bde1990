"""Training steps as CUDA graphs: functions that run again stand for graphs, tensors of the processor for a GPU's."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.errors import InvalidArgument  # noqa: E402
from jitdnn.frameworks.torch import step_graphs  # noqa: E402

nn = torch.nn
X = [torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(n)) for n in range(24)]


class Replay:
    """What a function gives, in the tensors that it gave at first."""

    count = 0

    aliases: Any = None

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run, self._found, self._aliases = run, run(), Replay.aliases

    @property
    def found(self) -> Any:
        return self._found

    def replay(self) -> None:
        Replay.count += 1
        with self._aliases:  # of which the capture was
            found = self._run()
        for old, new in zip(self._found, found, strict=True):
            if old is not None:
                old.detach().copy_(new.detach())


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(run: Callable[[], Any], place: Any) -> tuple[Any, Any]:
        buffers = [(one, one.clone()) for one in MODEL[-1].buffers()]
        made = Replay(run)
        for one, was in buffers:  # a capture runs nothing
            one.copy_(was)
        return made, made.found

    monkeypatch.setattr(step_graphs, "is_on_gpu", lambda x: True)

    class Aliases(step_graphs.Aliases):
        def __enter__(self) -> None:
            Replay.aliases = self
            super().__enter__()

    monkeypatch.setattr(step_graphs, "captured", captured)
    monkeypatch.setattr(step_graphs, "Aliases", Aliases)
    Replay.count = 0
    MODEL.clear()


MODEL: list[Any] = []


def network() -> Any:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    return nn.Sequential(block, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def converted(model: Any) -> Any:
    MODEL.append(jt.convert(model, measure="never", graphs=True))
    return MODEL[-1]


def reason(model: Any) -> str:
    (found,) = step_graphs.of(model).reasons
    return found


def train(model: Any, count: int = 12) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for number in range(count):
        optimizer.zero_grad()
        loss = model(X[number]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_steps_are_those_of_the_model_itself() -> None:
    stock = network()
    ours = converted(copy.deepcopy(stock))
    assert train(ours) == pytest.approx(train(stock), rel=1e-4)
    assert reason(ours) == "captured as CUDA graphs"
    assert Replay.count == 2 * (12 - step_graphs._QUIET)
    told = jt.explain(ours, X[0]).rows[0]
    assert (told.direction, told.reason) == ("step", "captured as CUDA graphs")
    for one, other in zip(ours.state_dict().values(), stock.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_results_and_gradients_are_the_programs_own() -> None:
    model = converted(network())
    train(model)
    model.zero_grad()
    y = model(X[0])
    y.sum().backward()
    kept = [y, *(one.grad for one in model.parameters())]
    copies = [one.detach().clone() for one in kept]
    model(X[1]).sum().backward()  # gradients add up
    for one, was in zip(kept[:1], copies[:1], strict=True):
        assert torch.equal(one, was)
    total = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    model(X[1]).sum().backward()
    for one, was, both in zip(model.parameters(), copies[1:], total, strict=True):
        torch.testing.assert_close(one.grad + was, both)


def test_a_second_pass_before_the_first_ones_gradients_runs_layer_by_layer() -> None:
    model = converted(network())
    train(model)
    expected = []
    for x in X[:2]:
        model.zero_grad()
        model(x).sum().backward()
        expected.append([one.grad.clone() for one in model.parameters()])
    before = Replay.count
    first, second = (model(x).sum() for x in X[:2])
    for loss, grads in zip((first, second), expected, strict=True):
        model.zero_grad()
        loss.backward()
        for one, grad in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(one.grad, grad)
    assert Replay.count == before + 2
    del first, loss
    y = model(X[0])
    del y  # no backward pass comes
    model(X[0]).sum().backward()
    assert Replay.count == before + 5


def test_what_graphs_cannot_do_is_refused() -> None:
    model = converted(network())
    train(model)
    loss = model(X[0]).square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="has run before"):
        loss.backward()
    loss = model(X[0]).square().sum()
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    del loss
    loss = model(X[0]).square().sum()
    with torch.no_grad():
        model[3].bias.add_(1.0)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()
    with pytest.raises(InvalidArgument, match="give one of the two"):
        jt.convert(network(), graphs=True, memory_limit="1 GiB")
    model = network()
    model.forward = lambda x: x
    with pytest.raises(InvalidArgument, match="forward of its own"):
        jt.convert(model, graphs=True)


def test_steps_of_another_kind_run_layer_by_layer() -> None:
    model = converted(network())
    train(model)
    before = Replay.count
    with torch.no_grad():
        model(X[0])
    model.eval()
    model(X[0]).sum().backward()
    model.train()
    model(X[0][:2]).sum().backward()
    model[0][1].eval()  # frozen statistics
    model(X[0]).sum().backward()
    model[0][1].train()
    model[0][1].momentum = 0.5
    model(X[0]).sum().backward()
    model[0][1].momentum = 0.1
    model[3].bias.requires_grad_(False)
    model(X[0]).sum().backward()
    model[3].bias.requires_grad_(True)
    seen: list[Any] = []
    hook = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(0))
    model(X[0]).sum().backward()
    hook.remove()
    assert seen
    assert Replay.count == before
    model(X[0]).sum().backward()
    assert Replay.count == before + 2


class Model(nn.Module):
    """A network whose forward does something besides."""

    def __init__(self, besides: Callable[[Any], Any]) -> None:
        super().__init__()
        self.net, self.besides, self.seen = network(), besides, 0
        self.list: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.besides(self)
        return self.net(x)


@pytest.mark.parametrize(
    "besides",
    [
        lambda model: setattr(model, "seen", model.seen + 1),
        lambda model: model.list.append(0),
        lambda model: setattr(model, "last", torch.zeros(1)),
        lambda model: random.random(),
        lambda model: torch.rand(1),
    ],
)
def test_models_with_effects_that_are_seen_run_layer_by_layer(besides: Callable[[Any], Any]) -> None:
    model = converted(Model(besides))
    train(model)
    assert Replay.count == 0
    assert reason(model).startswith("runs layer by layer: ")
    assert model.seen in (0, 12)  # once a step


def test_hooks_inside_run() -> None:
    model, seen = converted(network()), []
    model[0][0].register_forward_hook(lambda *_: seen.append(0))
    train(model)
    assert len(seen) == 12
    assert "hooks" in reason(model)


def test_copies_and_reverted_models_have_captured_nothing() -> None:
    model = converted(network())
    train(model)
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert step_graphs.of(one).reasons == []
        before = Replay.count
        torch.testing.assert_close(one(X[0]), model(X[0]))
        assert Replay.count == before + 1
        assert [*one.state_dict()] == [*network().state_dict()]
    jt.convert(model, measure="never")
    assert step_graphs.of(model) is None
    converted(model)
    jt.revert(model)
    assert step_graphs.of(model) is None
    assert type(model) is nn.Sequential


def test_models_on_several_devices_run_layer_by_layer() -> None:
    model = network()
    model.register_buffer("elsewhere", torch.zeros(1, device="meta"))
    train(converted(model))
    assert Replay.count == 0
    assert "not all of it is on cpu" in reason(model)


def test_inputs_by_name_and_results_of_several_parts() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Any, scale: float, *, labels: Any) -> Any:
            y = scale * self.net(x)
            return {
                "loss": nn.functional.cross_entropy(y, labels),
                "y": [y, labels + 1],
                "kind": "train",
                "no": None,
            }

    stock = Parts()
    ours = converted(copy.deepcopy(stock))
    labels = torch.arange(4) % 3
    for number in range(10):
        found, wanted = (one(X[number], 2.0, labels=labels) for one in (ours, stock))
        torch.testing.assert_close(found["y"], wanted["y"])
        assert (found["kind"], found["no"]) == ("train", None)
        assert not found["y"][1].requires_grad
        for model, one in ((ours, found), (stock, wanted)):
            model.zero_grad()
            one["loss"].backward()
        for one, other in zip(ours.parameters(), stock.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    assert Replay.count == 2 * (10 - step_graphs._QUIET)
    ours(X[0], 3.0, labels=labels)  # another kind
    assert Replay.count == 2 * (10 - step_graphs._QUIET)


def test_parameters_from_elsewhere_are_seen() -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale = network(), nn.Parameter(torch.ones(1))
            self.held = [self.scale]

        def forward(self, x: Any) -> Any:
            return self.net(x) * self.held[0]

    stock = Holds()
    ours = converted(copy.deepcopy(stock))
    assert train(ours) == pytest.approx(train(stock), rel=1e-4)
    assert "from elsewhere" in reason(ours)
    assert Replay.count == 0
    before = [*ours.parameters()]
    train(ours, 2)
    assert all(one is other for one, other in zip(ours.parameters(), before, strict=True))


def test_forward_passes_that_wait_for_the_gpu_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = [0]

    def wait(model: Any) -> None:
        if modes[-1] == "warn":  # as PyTorch does
            warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)
            warnings.warn("something else", UserWarning, stacklevel=1)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    model = converted(Model(wait))
    with pytest.warns(UserWarning, match="something else") as told:
        train(model)
    assert len(told) == 1
    assert modes == [0, "warn", 0]
    assert Replay.count == 0
    assert "waits for the GPU" in reason(model)


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older PyTorch has one name of it"
)
def test_the_newer_names_of_precision_tell_steps_apart() -> None:
    """PyTorch raises RuntimeError for the older name where the newer ones are not all alike."""
    matmul, model, found = torch.backends.cuda.matmul, network(), []
    before = matmul.fp32_precision
    try:
        for precision in ("tf32", "ieee"):
            matmul.fp32_precision = precision
            found.append(step_graphs._key(model, X[:1]))
    finally:
        matmul.fp32_precision = before
    assert found[0] != found[1]
