"""Batch normalizations in training that remember their calls, alone and with an activation behind them."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.autograd import forward_ad  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import batch_norm_calls, batch_norm_modules, choice, whole  # noqa: E402
from jitdnn.frameworks.torch.batch_norm_modules import APART  # noqa: E402
from jitdnn.frameworks.torch.calls import CALLS  # noqa: E402
from torch_kernels import agree, all_ours, random  # noqa: E402

nn = torch.nn
LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}
ACTS = {"relu": nn.ReLU, "clipped_relu": nn.ReLU6, "swish": nn.SiLU, "identity": None}


def block(act: Any, **options: Any) -> Any:
    made = nn.Sequential(nn.BatchNorm2d(5, **options), *([] if act is None else [act(inplace=True)]))
    with torch.no_grad():
        made[0].weight.copy_(random(5, seed=1) * 4)
        made[0].bias.copy_(random(5, seed=2))
    return made


def step(model: Any, x: Any, dy: Any) -> tuple[Any, ...]:
    given = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(given * 1)
    return (y, *torch.autograd.grad(y, [given, *model.parameters()], dy))


@pytest.fixture
def no_look_up(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From its call on, whatever is not remembered fails."""

    def now() -> None:
        def refuse(*_: Any) -> Any:
            raise AssertionError("a call that was made before is looked up")

        monkeypatch.setattr(batch_norm_modules, "routed", refuse)

    return now


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ACTS)
def test_steps_are_torchs(name: str, layout: str, dtype: Any, no_look_up: Any) -> None:
    stock = block(ACTS[name], momentum=0.2)
    model, exact = jt.convert(copy.deepcopy(stock), measure="never"), copy.deepcopy(stock).double()
    for number in range(6):
        if number == 3:
            no_look_up()
        x = random(4, 5, 7, 6, seed=number).to(dtype).contiguous(memory_format=LAYOUTS[layout])
        dy = random(4, 5, 7, 6, seed=10 + number).to(dtype).contiguous(memory_format=LAYOUTS[layout])
        found, wanted = step(model, x, dy), step(exact, x.double(), dy.double())
        assert found[0].stride() == x.stride()
        for what, one, other in zip(("y", "dx", "dweight", "dbias"), found, wanted, strict=True):
            agree(one, other, dtype if what in ("y", "dx") else torch.float32, what)
        for one, other in zip(model.buffers(), exact.buffers(), strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-6)
    assert int(model[0].num_batches_tracked) == 6


def test_what_is_asked_for_is_given(no_look_up: Any) -> None:
    """Parts of the gradients, derivatives of gradients, batches of them, and results that are changed."""
    stock = block(nn.SiLU).double()
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x, dy = random(3, 5, 4, 3, dtype=torch.float64), random(3, 5, 4, 3, dtype=torch.float64, seed=1)
    for _ in range(3):
        step(model, x, dy)
    no_look_up()
    found = []
    for one in (model, stock):
        given = x.clone().requires_grad_()
        y = one(given)
        first = torch.autograd.grad(y, given, dy, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), [given, one[0].weight], retain_graph=True)
        bias = torch.autograd.grad(
            y, one[0].bias, dy.transpose(2, 3).contiguous().transpose(2, 3), retain_graph=True
        )
        rows = torch.stack([dy, 2 * dy])
        both = torch.autograd.grad(y, given, rows, is_grads_batched=True, retain_graph=True)
        found.append((*first, *second, *bias, *both, one(given).mul_(2)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ACTS)
def test_what_hooks_hand_out_may_lie_otherwise(name: str) -> None:
    """As what `save_on_cpu(pin_memory=True)` has saved of images with channels last does."""
    stock = block(ACTS[name])
    model = jt.convert(copy.deepcopy(stock), measure="never")

    def packed(tensor: Any) -> Any:
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    for number in range(4):
        x = random(4, 5, 7, 6, seed=number).contiguous(memory_format=torch.channels_last)
        dy = random(4, 5, 7, 6, seed=10 + number).contiguous(memory_format=torch.channels_last)
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda one: one):
            found = step(model, x, dy)
        for one, other in zip(found, step(stock, x, dy), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        step(model, x, dy), step(stock, x, dy)


@pytest.mark.parametrize("name", ACTS)
def test_nothing_of_a_model_is_kept(name: str) -> None:
    model = jt.convert(block(ACTS[name]), measure="never")
    for number in range(4):
        x = random(4, 5, 3, 2, seed=number)
        step(model, x, x)
    gone = [weakref.ref(one) for one in model.parameters()]
    del model
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_frozen_layers_and_passes_without_gradients() -> None:
    stock = block(nn.ReLU).requires_grad_(False)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(4, 5, 3, 3)
    for number in range(4):
        given = x.clone().requires_grad_(number != 1)
        with torch.set_grad_enabled(number != 2):
            y, expected = model(given), stock(given)
        assert y.requires_grad == expected.requires_grad
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        if y.requires_grad:
            torch.testing.assert_close(
                torch.autograd.grad(y.square().sum(), given),
                torch.autograd.grad(expected.square().sum(), given), rtol=1e-4, atol=1e-4,
            )  # fmt: skip
    torch.testing.assert_close(model.state_dict(), stock.state_dict())


def test_running_statistics_have_versions() -> None:
    model = jt.convert(block(None), measure="never")
    x = random(4, 5, 3, 3)
    for _ in range(3):
        before = model[0].running_mean._version
        step(model, x, x)
        assert model[0].running_mean._version > before
    model.eval()
    with torch.no_grad():
        fused = jt.fuse(model, measure="never")
        torch.testing.assert_close(fused(x), model(x))
        model.train()(x)
        model.eval()
        torch.testing.assert_close(fused(x), model(x))


def test_momenta_come_and_go() -> None:
    """Each is compiled in: of a schedule's no more than some are."""
    stock = block(nn.ReLU)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(4, 5, 3, 3)
    batch_norm_calls._prepared.clear()
    for number in range(12):
        for one in (model, stock):
            one[0].momentum = 0.5 / (1 + number // 2)
        step(model, x, x), step(stock, x, x)
        torch.testing.assert_close(model.state_dict(), stock.state_dict(), rtol=1e-5, atol=1e-6)
    kinds = [*batch_norm_calls._prepared.young.values(), *batch_norm_calls._prepared.old.values()]
    assert max(map(len, kinds)) == batch_norm_calls._MOST_MOMENTA


def test_statistics_of_another_type_go_the_long_way() -> None:
    stock = block(nn.ReLU)
    for name in ("running_mean", "running_var"):
        stock[0].register_buffer(name, getattr(stock[0], name).double())
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(4, 5, 3, 3)
    with torch.no_grad():
        expected = nn.functional.batch_norm(x, None, None, stock[0].weight, stock[0].bias, True).relu()
    for _ in range(3):
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
        step(model, x, x)
    assert model[0].running_mean.dtype == torch.float64
    torch.testing.assert_close(model[0].running_mean.float(), (1 - 0.9**6) * x.mean((0, 2, 3)))
    assert CALLS not in vars(model[0])


def test_a_normalization_that_is_no_part_of_its_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both together are slower, each runs by itself, and that is remembered."""
    monkeypatch.setattr(choice, "_measured", lambda ours, stock, *_: (ours(), stock(), 2.0, 1.0)[-2:])
    model = jt.convert(block(nn.ReLU), threads=1, workspace_limit=3)  # a kind of its own
    stock = jt.revert(copy.deepcopy(model))
    x = random(4, 5, 3, 3)
    for _ in range(4):
        step(model, x, x)
        step(stock, x, x)
    assert APART in model[0].__dict__
    monkeypatch.setattr(whole, "run", None)
    torch.testing.assert_close(step(model, x, x), step(stock, x, x))
    torch.testing.assert_close(model.state_dict(), stock.state_dict())
    assert not {APART, CALLS} & set(vars(jt.revert(model)[0]))


def test_who_watches_is_told() -> None:
    model = jt.convert(block(nn.SiLU), measure="never")
    x = random(4, 5, 3, 3)
    for _ in range(3):
        step(model, x, x)
    with all_ours("forward", "gradients") as seen:
        step(model, x, x)
    assert [kind.name for kind in seen] == ["forward", "gradients"]


@pytest.mark.parametrize("act", [None, nn.SiLU])
def test_checkpoints(act: Any) -> None:
    """What is recomputed is what was saved, whichever way either goes."""
    model = jt.convert(nn.Sequential(block(act), nn.Tanh()), measure="never")
    stock = jt.revert(copy.deepcopy(model))
    x = random(4, 5, 3, 3)
    for _ in range(4):
        found = []
        for one in (model, stock):
            given = x.clone().requires_grad_()
            y = checkpoint(one, given, use_reentrant=False)
            found.append((y, *torch.autograd.grad(y.square().sum(), [given, *one.parameters()])))
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_derivatives_taken_forward_are_torchs() -> None:
    stock = block(None)
    model, x = jt.convert(copy.deepcopy(stock), measure="never"), random(4, 5, 3, 3)
    dy = random(4, 5, 3, 3, seed=1)
    for _ in range(2):
        step(model, x, dy)
    for _ in range(3):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, dy)
            found, wanted = (forward_ad.unpack_dual(one(dual)).tangent for one in (model, stock))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
