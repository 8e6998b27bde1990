"""Sequences in which an activation behind an instance normalization is a part of it: values, who is joined, what is
remembered."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import choice, instance_norm_modules, steps  # noqa: E402
from jitdnn.frameworks.torch.batch_norm_modules import APART, Sequential  # noqa: E402
from torch_kernels import check, random, watched  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def network(behind: Any, norm: Any = None) -> Any:
    made = nn.Sequential(nn.InstanceNorm2d(4, affine=True) if norm is None else norm, behind)
    with torch.no_grad():
        for seed, one in enumerate(made.parameters()):
            one.copy_(random(*one.shape, seed=seed + 11))
    return made


def image(seed: int = 0, order: Any = torch.channels_last, images: int = 2) -> Any:
    return random(images, 4, 5, 3, seed=seed).contiguous(memory_format=order)


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The names of the functions whose calls take the long way."""
    taken: list[Any] = []
    routed = instance_norm_modules.routed

    def counted(function: Any, *rest: Any) -> Any:
        taken.append(function.__name__)
        return routed(function, *rest)

    monkeypatch.setattr(instance_norm_modules, "routed", counted)
    return taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("behind", [nn.ReLU(), nn.LeakyReLU(0.01), nn.ReLU6(), nn.SiLU(inplace=True)])
def test_one_operation(behind: Any, order: Any, dtype: Any, long_ways: list[Any]) -> None:
    stock = network(behind)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    assert type(model) is Sequential
    for number in range(3):
        x, dy = (image(number + seed, order).to(dtype) for seed in (0, 5))
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            node = check(model, stock, x, torch.cat([dy, dy], 1)[:, 4:])
        assert type(node).__name__ == ("_LayerBackward" if number else "_CallBackward")
    assert long_ways == ["instance_norm_activation"]
    with torch.no_grad():
        torch.testing.assert_close(model(image()), stock(image()), rtol=1e-4, atol=1e-5)
    alone = check(model[0], stock[0], image())  # remembers other calls
    assert type(alone).__name__ == "_CallBackward"
    check(model, stock, image())
    check(model[0], stock[0], image())


@pytest.mark.parametrize(
    ("norm", "behind", "images"),
    [
        (nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU(0.2), 2),
        (nn.InstanceNorm2d(4), nn.ReLU(), 2),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ReLU(), 2),
        (nn.InstanceNorm2d(4, affine=True), nn.Tanh(), 2),
        (nn.InstanceNorm2d(4, affine=True), nn.ReLU(), 1),
    ],
)
def test_what_stays_two(norm: Any, behind: Any, images: int, long_ways: list[Any]) -> None:
    stock = network(behind, copy.deepcopy(norm))
    model = jt.convert(copy.deepcopy(stock), measure="never")
    for number in range(3):
        x = image(number, torch.contiguous_format, images)
        check(model, stock, x)
    assert "instance_norm_activation" not in long_ways


def test_whole_steps_run_sequences_that_are_ours() -> None:
    model = jt.convert(network(nn.ReLU()), measure="never")
    for _ in range(3):
        model(image().requires_grad_()).sum().backward()
    assert steps._torchs(model) == set()
    steps._set(model, steps.STOCK)
    assert type(model).forward is nn.Sequential.forward


def test_who_watches_sees_both() -> None:
    stock = network(nn.ReLU())
    model = jt.convert(copy.deepcopy(stock), measure="never")
    seen: list[Any] = []
    handle = model[0].register_forward_hook(lambda module, args, y: seen.append(y.detach()))
    check(model, stock, image())
    torch.testing.assert_close(seen[0], stock[0](image()), rtol=1e-4, atol=1e-5)
    handle.remove()
    model(image())
    assert len(seen) == 1
    excluded = jt.convert(copy.deepcopy(stock), exclude=["1"], measure="never")
    with watched() as kinds:
        check(excluded, stock, image())
    assert kinds
    with pytest.raises(ValueError, match=r"4D"):
        model(random(2, 4))
    with pytest.raises((ValueError, RuntimeError)):
        model(random(2, 5, 4, 4))
    torch.testing.assert_close(model(random(4, 3, 5)), stock(random(4, 3, 5)), rtol=1e-4, atol=1e-5)


def test_the_faster_way_is_chosen_and_remembered(
    monkeypatch: pytest.MonkeyPatch, long_ways: list[Any]
) -> None:
    times = [2.0, 1.0]  # ours, torch's
    monkeypatch.setattr(choice, "_measured", lambda ours, stock, *_: (ours(), stock(), *times)[-2:])
    stock = network(nn.LeakyReLU())
    for is_ours in (False, True):
        model = jt.convert(copy.deepcopy(stock), workspace_limit=1 + is_ours)  # kinds of its own
        for number in range(3):
            node = check(model, stock, image(number))
        assert (type(node).__name__ == "_LayerBackward") is is_ours
        assert (APART in vars(model[0])) is not is_ours
        again = pickle.loads(pickle.dumps(model))
        torch.testing.assert_close(again(image()), stock(image()), rtol=1e-4, atol=1e-5)
        jt.revert(model)
        assert type(model) is nn.Sequential
        assert vars(model[0]).keys() == vars(stock[0]).keys()
        times.reverse()
    assert (
        long_ways.count("instance_norm_activation") == 4
    )  # settled at the second call, where torch's are faster
