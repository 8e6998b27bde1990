"""Layers on GPUs are chosen as a whole: here plain tensors stand for those of a GPU, and made-up clocks for its own."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from fake_gpu import Gpu  # noqa: E402
from jitdnn.frameworks.torch import choice, guards, kinds, whole  # noqa: E402
from jitdnn.frameworks.torch.registry import OWN  # noqa: E402
from jitdnn.planner.store import Store  # noqa: E402
from torch_kernels import all_ours, random, watched  # noqa: E402

nn = torch.nn
F = torch.nn.functional
IS_CHOSEN = whole.is_chosen


class Times:
    """In place of measuring: seconds of ours and torch's, of kernels and of whole calls; `asked` are the latter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels, self.whole = (1.0, 2.0), (1.0, 2.0)
        self.asked: list[str] = []
        real = choice.measured

        def measured(what: str, handle: Any, device: Any, ours: Any, stock: Any, *how: Any) -> Any:
            is_whole = what.startswith("torch whole ")
            if is_whole:
                self.asked.append(what)
            monkeypatch.setattr(choice, "_measured", lambda *_: self.whole if is_whole else self.kernels)
            ours(), stock()
            return real(what, handle, device, ours, stock, *how)

        monkeypatch.setattr(choice, "measured", measured)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    made = Store(tmp_path / "times.sqlite")
    monkeypatch.setattr(Store, "default", staticmethod(lambda: made))
    monkeypatch.setattr(whole, "is_chosen", lambda function, x: type(x) in OWN)
    monkeypatch.setattr(guards, "_Guards", None)  # so that modules remember no calls
    return made


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 4, 2, 2),
        nn.Flatten(), nn.LayerNorm(256), nn.Linear(256, 3), nn.Tanh(),
    )  # fmt: skip


LAYERS = 7  # of the network that are converted, normalization and activation as one


def trained(model: Any, x: Any) -> list[Any]:
    x = x.clone().requires_grad_()
    y = model(x)
    grads = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
    return [y.detach(), *grads, *(one.clone() for one in model.buffers())]


def test_torchs_own_functions_run_where_the_whole_call_is_slower(times: Times) -> None:
    stock, x = network(), random(2, 3, 10, 10)
    model = jt.convert(copy.deepcopy(stock))
    times.whole = (2.0, 1.0)  # every kernel of ours is faster, no layer is
    for _ in range(2):
        expected = trained(stock, x)
        with watched() as seen:
            found = trained(model, x)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert [(kind.name, kind.decision.is_ours) for kind in seen] == [("whole", False)] * LAYERS
    assert len(times.asked) == LAYERS
    assert all(" gradients " in what for what in times.asked)
    kinds.forget()  # as another process finds it
    with watched() as seen:
        trained(model, x)
    assert {kind.decision.reason for kind in seen} == {"stored: slower"}
    assert len(times.asked) == LAYERS


def test_ours_run_where_the_whole_call_is_faster(times: Times) -> None:
    stock, x = network(), random(2, 3, 10, 10)
    model = jt.convert(copy.deepcopy(stock))
    for _ in range(2):
        with all_ours("forward", "data", "filter", "bias", "gradients"):
            found = trained(model, x)
        torch.testing.assert_close(found, trained(stock, x), rtol=1e-4, atol=1e-4)
    assert len(times.asked) == LAYERS


def test_where_no_kernel_is_faster_nothing_is_measured(times: Times) -> None:
    times.kernels = (2.0, 1.0)
    model, x = jt.convert(network()), random(2, 3, 10, 10)
    for _ in range(2):
        with watched() as seen:
            trained(model, x)
        assert [kind.name for kind in seen] == ["whole"] * LAYERS
    assert not times.asked
    kinds.forget()  # another process runs none of ours to know
    with watched() as seen:
        trained(jt.convert(network()), x)
    assert [kind.name for kind in seen] == ["whole"] * LAYERS
    assert {kind.decision.reason for kind in seen} == {"stored: torch's kernels are faster, each of them"}


def test_on_processors_convolutions_and_products_are_chosen_by_their_kernels() -> None:
    """Whose modules remember their calls; all else pays for the way to its kernel."""
    x = random(2, 3)
    assert IS_CHOSEN(F.batch_norm, x)
    assert IS_CHOSEN(F.max_pool2d, x)
    assert not IS_CHOSEN(F.conv2d, x)
    assert not IS_CHOSEN(F.linear, x)
    assert not IS_CHOSEN(F.batch_norm, nn.Parameter(x).as_subclass(type("Own", (torch.Tensor,), {})))


def test_the_momentum_of_batch_norm_makes_no_other_kind(times: Times) -> None:
    """The average of all batches has another one in each call."""
    model, x = jt.convert(nn.BatchNorm2d(3, momentum=None)), random(4, 3, 5, 5)
    stock = nn.BatchNorm2d(3, momentum=None)
    for _ in range(4):
        torch.testing.assert_close(model(x), stock(x))
    torch.testing.assert_close(model.running_mean, stock.running_mean)
    assert len(times.asked) == 1


def test_what_makes_another_kind(times: Times) -> None:
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    wanted = w.clone().requires_grad_()

    def without() -> None:
        with torch.no_grad():
            F.conv2d(x, wanted)

    def lower() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            F.conv2d(x, w)

    with jt.use():
        for number, call in enumerate(
            [
                lambda: F.conv2d(x, w),
                lambda: F.conv2d(x, wanted),
                lower,
                lambda: F.conv2d(x.double(), w.double()),
                lambda: F.conv2d(x, w, padding=[1, 1]),
                lambda: F.conv2d(x, weight=w, dilation=2),
                lambda: F.conv2d(x.contiguous(memory_format=torch.channels_last), w),
            ],
            1,
        ):
            for _ in range(2):
                call()
            without()  # as without a gradient that is wanted
            assert len(times.asked) == number


def test_never_is_never(times: Times) -> None:
    model = jt.convert(network(), measure="never")
    with all_ours("forward"):
        trained(model, random(2, 3, 10, 10))
    assert not times.asked


def test_what_ours_do_not_take(times: Times) -> None:
    x = random(2, 3, 4, 4)
    with jt.use():
        for _ in range(2):
            _, indices = F.max_pool2d(x, 2, return_indices=True)
        changed = x.clone()
        assert F.silu(changed, inplace=True) is changed
    assert torch.equal(changed, F.silu(x))
    assert indices.dtype == torch.int64
    assert not times.asked


# ---- measured by a clock that the calls themselves move ----


class Costs(torch.autograd.Function):
    """A layer whose passes take the host and the GPU so long."""

    @staticmethod
    def forward(ctx: Any, x: Any, forward: Any, backward: Any) -> Any:
        ctx.backward_call = backward
        forward()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        ctx.backward_call()
        return dy, None, None


Cost = tuple[float, float]
_US = 1e-6
SMALL = {
    "ours": ((41 * _US, 5 * _US), (21 * _US, 5 * _US)),
    "torch": ((20 * _US, 9 * _US), (4 * _US, 9 * _US)),
}
LARGE = {"ours": ((41 * _US, 2e-3), (21 * _US, 3e-3)), "torch": ((20 * _US, 3e-3), (4 * _US, 4e-3))}
UNEVEN = {"ours": ((41 * _US, 1e-3), (21 * _US, 3e-3)), "torch": ((20 * _US, 2e-3), (4 * _US, 1e-3))}


@pytest.mark.parametrize(
    ("costs", "has_gradients", "is_ours"),
    [
        (SMALL, False, False), (SMALL, True, False), (LARGE, False, True), (LARGE, True, True),
        (UNEVEN, False, True), (UNEVEN, True, False),  # faster forward, slower with the backward pass
    ],
)  # fmt: skip
def test_by_host_and_device_with_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch, costs: dict[str, tuple[Cost, Cost]], has_gradients: bool, is_ours: bool
) -> None:
    gpu, called = Gpu(monkeypatch), []

    def measured(ours: Any, stock: Any, *_: Any) -> tuple[float, ...]:
        return tuple(map(max, *choice._measured_on_gpu(ours, stock, torch.device("cuda", 0))))

    monkeypatch.setattr(choice, "_measured", measured)

    def layer(name: str) -> Callable[..., Any]:
        forward, backward = (gpu.call(*cost) for cost in costs[name])

        def call(x: Any, options: str = "") -> Any:
            called.append(name)
            if name == "ours":  # has a kernel that was chosen
                kind = kinds.Kind("forward", choice.Decision(True, "of the test"), call)
                kinds.tell(kind, ())
            return Costs.apply(x, forward, backward)

        return call

    x = random(2, 3).requires_grad_(has_gradients)
    ours, stock = layer("ours"), layer("torch")
    for _ in range(2):
        called.clear()
        whole.run(stock, ours, (x,), {}, "")
    assert called == ["ours" if is_ours else "torch"]


# ---- measuring leaves no trace ----


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "SECONDS", 0.0)
    monkeypatch.setattr(choice, "_MOST_CALLS", 2)


@pytest.mark.usefixtures("quick")
def test_a_measured_step_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, x = network(), random(2, 3, 10, 10)
    model = jt.convert(copy.deepcopy(stock))
    torch.testing.assert_close(trained(model, x), trained(stock, x), rtol=1e-4, atol=1e-4)
    assert all(one.grad is None for one in model.parameters())


def test_observers_hooks_and_caches_see_the_call_alone(times: Times) -> None:
    model, x = jt.convert(nn.Conv2d(2, 3, 3)), random(1, 2, 5, 5)
    packed = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t)
    with torch.autocast("cpu", dtype=torch.bfloat16), hooks, watched() as seen:
        model(x)
        first, number = len(packed), len(seen)
        model(x)
        assert torch.is_autocast_cache_enabled()
        assert torch.is_autocast_enabled("cpu")
    assert times.asked
    assert (first, number) == (len(packed) - first, len(seen) - number)
    assert number == 1


def test_a_checkpointed_layer(times: Times) -> None:
    for seconds in ((1.0, 2.0), (2.0, 1.0)):
        times.whole = seconds
        kinds.forget()
        stock, x = network(), random(2, 3, 10, 10)
        model = jt.convert(copy.deepcopy(stock), threads=1 if seconds[0] == 1.0 else 2)
        found, expected = (
            torch.autograd.grad(run.square().sum(), list(own.parameters()))
            for own, run in (
                (model, checkpoint(model, x.clone().requires_grad_(), use_reentrant=False)),
                (stock, stock(x)),
            )
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_no_memory_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(choice, "measured", measured)
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    with jt.use(), watched() as seen:
        for _ in range(2):
            assert torch.equal(F.conv2d(x, w), F.conv2d(x, w))
    assert {(kind.name, kind.decision.is_ours) for kind in seen} == {("whole", False)}


# ---- when nothing can be measured ----


@contextmanager
def held() -> Iterator[None]:
    """Another thread measures."""
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with whole._lock:
            begun.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


class InBackward(torch.autograd.Function):
    """Calls a function in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any, call: Any) -> Any:
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        ctx.call()
        return dy, None


def test_a_backward_pass_waits_for_nobody(times: Times) -> None:
    model, x = jt.convert(nn.Conv2d(2, 3, 3)), random(1, 2, 5, 5)
    with held(), watched() as seen:
        InBackward.apply(x.requires_grad_(), lambda: model(x)).sum().backward()
    assert [kind.name for kind in seen] == ["whole"]
    assert not times.asked
    model(x)  # not kept
    assert len(times.asked) == 1


def test_transforms_and_compilers_see_our_operators(times: Times) -> None:
    times.whole = (2.0, 1.0)
    model, x = jt.convert(nn.Conv2d(2, 3, 3)), random(4, 1, 2, 5, 5)
    with watched() as seen:
        torch.vmap(model)(x)
    assert "whole" not in {kind.name for kind in seen}
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with all_ours("forward"):
        torch.testing.assert_close(compiled(x[0]), F.conv2d(x[0], model.weight, model.bias))
    torch._dynamo.reset()

    class Other(torch.Tensor):
        """Anything."""

    with watched() as seen, jt.use():
        F.conv2d(x[0], model.weight.detach().as_subclass(Other))
    assert "whole" not in {kind.name for kind in seen}
    assert not times.asked


def test_explain_tells_of_whole_calls(times: Times) -> None:
    times.whole = (2.0, 1.0)
    explained = jt.explain(jt.convert(network()), random(2, 3, 10, 10))
    rows = [(row.layer, row.direction, row.runs) for row in explained.rows]
    assert rows == [(str(number), "whole", "torch") for number in (0, 1, 3, 4, 6, 7, 8)]
    assert "measured: slower" in str(explained)
