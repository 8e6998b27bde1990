"""Sums and activations behind batch normalizations in a model's own `forward`, found and done as one operation."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.errors import NotSupported  # noqa: E402
from jitdnn.frameworks.torch import batch_norm_sum, deferred  # noqa: E402
from jitdnn.frameworks.torch.deferred import JOIN, SUM, Deferred  # noqa: E402
from torch_kernels import agree, random, watched  # noqa: E402

nn, F = torch.nn, torch.nn.functional
NEVER = "measure=never"
LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "LEAST", 1)


class Block(nn.Module):
    """A residual block whose forward does what `end` does with the normalized values and the block's input."""

    def __init__(self, end: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.act, self.end = nn.ReLU(inplace=True), end
        with torch.no_grad():
            self.body[1].weight.copy_(random(4, seed=1))
            self.body[1].bias.copy_(random(4, seed=2))

    def forward(self, x: Any) -> Any:
        return self.end(self, self.body(x), x)


def add_in_place(block: Any, y: Any, x: Any) -> Any:
    y += x
    return block.act(y)


def add(block: Any, y: Any, x: Any) -> Any:
    return F.relu(x + y)


def call_add(block: Any, y: Any, x: Any) -> Any:
    return torch.relu(torch.add(y, x))


def rectify(block: Any, y: Any, x: Any) -> Any:
    return F.relu(y, True) + x


def clip(block: Any, y: Any, x: Any) -> Any:
    return nn.ReLU6()(y) * x


class Joined(nn.Sequential):
    """A class of its own, as those of torchvision are."""


def read_before(block: Any, y: Any, x: Any) -> Any:
    return block.act(y + x) * y.mean()


def read_later(block: Any, y: Any, x: Any) -> Any:
    z = y + x
    return F.relu(z) + z * y


def change(block: Any, y: Any, x: Any) -> Any:
    s = y + x
    y.mul_(3)
    return F.relu(s) - y


def add_twice(block: Any, y: Any, x: Any) -> Any:
    return F.relu(y + x) + F.relu(y + 2 * x)


def add_number(block: Any, y: Any, x: Any) -> Any:
    return F.relu(y + 1.0)


def add_scaled(block: Any, y: Any, x: Any) -> Any:
    return F.relu(torch.add(y, x, alpha=2))


def add_row(block: Any, y: Any, x: Any) -> Any:
    return F.relu(y + x[:, :, :1])


def several(block: Any, y: Any, x: Any) -> Any:
    return {"here": [y], "there": (F.relu(y), x)}["there"][0] if y.shape == x.shape else y


JOINED = {add_in_place: SUM, add: SUM, call_add: SUM, rectify: "relu", clip: "clipped_relu", several: "relu"}


def read_aside(block: Any, y: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = y.mean()
    return F.relu(y) * scale


APART = (read_aside, read_before, read_later, change, add_twice, add_number, add_scaled, add_row)


def model_of(*ends: Any) -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), *map(Block, ends))


def step(model: Any, x: Any) -> list[Any]:
    """The result and all gradients of a step."""
    for one in model.parameters():
        one.grad = None
    given = x.clone().requires_grad_()
    y = model(given)
    (y * torch.linspace(-1, 2, y.shape[-1], dtype=y.dtype)).sum().backward()
    found = [given.grad, *(one.grad for one in model.parameters())]
    return [y, *(torch.zeros((), dtype=y.dtype) if one is None else one for one in found)]


def held(model: Any, stock: Any, x: Any, times: int = 3) -> None:
    """Steps of a converted model are those of torch in double precision, running statistics included."""
    exact = copy.deepcopy(stock).double()
    model.load_state_dict(stock.state_dict())
    for _ in range(times):
        for number, (one, other) in enumerate(zip(step(model, x), step(exact, x.double()), strict=True)):
            agree(one, other, torch.float32, str(number))
        for one, other in zip(model.buffers(), exact.buffers(), strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-6)


def joins(model: Any) -> list[Any]:
    return [one.__dict__.get(JOIN) for one in model.modules() if isinstance(one, nn.BatchNorm2d)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_is_torchs(layout: str) -> None:
    for end in (*JOINED, *APART):
        stock = model_of(end).to(memory_format=LAYOUTS[layout])
        model = jt.convert(copy.deepcopy(stock), measure="never")
        held(model, stock, random(3, 3, 9, 7).contiguous(memory_format=LAYOUTS[layout]))
        assert joins(model) == [JOINED.get(end)], end


def test_sequences_of_other_classes() -> None:
    for act, join in ((nn.ReLU6, "clipped_relu"), (nn.SiLU, "swish")):
        for inplace in (False, True):
            stock = nn.Sequential(nn.Conv2d(3, 4, 1), Joined(nn.BatchNorm2d(4), act(inplace=inplace)))
            model = jt.convert(copy.deepcopy(stock), measure="never")
            held(model, stock, random(2, 3, 6, 6))
            assert joins(model) == [join]


def test_what_ran_is_one_operation() -> None:
    model = jt.convert(model_of(add_in_place), measure="never")
    x = random(2, 3, 5, 5)
    step(model, x)
    with watched() as seen:
        step(model, x)
    assert batch_norm_sum.stock in [kind.run for kind in seen]
    rows = jt.explain(model, x).rows
    assert ("1.body.1", "whole", "jitdnn") in [(row.layer, row.direction, row.runs) for row in rows]


@pytest.mark.parametrize("end", APART)
def test_what_follows_may_change(end: Any) -> None:
    """What was learnt is no longer so: the same numbers, and the module returns its result again."""
    for before in (add, add_in_place, rectify):
        stock = model_of(before)
        model = jt.convert(copy.deepcopy(stock), measure="never")
        x = random(3, 3, 6, 6)
        held(model, stock, x, 1)
        assert joins(model) != [None]
        model[1].end = stock[1].end = end
        held(model, stock, x, 2)
        stock[1].end = model[1].end = lambda block, y, x: (
            x
        )  # nobody reads it: the statistics are updated all the same
        held(model, stock, x, 2)


def test_derivatives() -> None:
    """First and second ones, by differences."""
    x, z = (random(3, 2, 3, 2, dtype=torch.float64, seed=seed).requires_grad_() for seed in (0, 1))
    w, b = (random(2, dtype=torch.float64, seed=seed).requires_grad_() for seed in (2, 3))

    def run(*operands: Any) -> Any:
        found = batch_norm_sum.route(*operands[:2], None, None, *operands[2:], True, 1e-5, 0.1)
        assert found is not NotImplemented
        return found

    assert torch.autograd.gradcheck(run, (x, z, w, b))
    assert torch.autograd.gradgradcheck(run, (x, z, w, b))


def test_what_hooks_hand_out_may_lie_otherwise() -> None:
    """As what `save_on_cpu(pin_memory=True)` has saved of images with channels last does."""
    x, z, dy = (
        random(4, 5, 7, 6, seed=seed).contiguous(memory_format=torch.channels_last) for seed in range(3)
    )
    given = [
        x.requires_grad_(),
        z.requires_grad_(),
        *(random(5, seed=seed).requires_grad_() for seed in (3, 4)),
    ]

    def packed(tensor: Any) -> Any:
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda one: one):
        y = batch_norm_sum.route(*given[:2], None, None, *given[2:], True, 1e-5, 0.1)
    stock = torch.relu(nn.functional.batch_norm(x, None, None, *given[2:], True) + z)
    found, wanted = torch.autograd.grad(y, given, dy), torch.autograd.grad(stock, given, dy)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_nobody_is_surprised() -> None:
    """Hooks, checkpoints, evaluation, copies, autocast and compilers see what they saw before."""
    stock = model_of(add, several)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(2, 3, 6, 6)
    held(model, stock, x, 2)
    seen: list[Any] = []
    for hook in (
        model[1].body.register_forward_hook(lambda module, given, result: seen.append(result)),
        model[1].act.register_full_backward_hook(lambda module, grads, given: None),
        model[2].body[1].register_full_backward_pre_hook(lambda module, grads: None),
    ):
        held(model, stock, x, 1)
        hook.remove()
    assert [type(one) for one in seen] == [torch.Tensor]
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    agree(again(x), copy.deepcopy(model).double()(x.double()), torch.float32, "copies")
    given = x.clone().requires_grad_()
    y = torch.utils.checkpoint.checkpoint(model, given, use_reentrant=False)
    other = copy.deepcopy(model)(given)
    torch.testing.assert_close(
        torch.autograd.grad(y.sum(), given), torch.autograd.grad(other.sum(), given), rtol=1e-4, atol=1e-4
    )
    with torch.autocast("cpu", torch.bfloat16):
        model(x).float().sum().backward()
    torch.testing.assert_close(model.eval()(x), jt.revert(copy.deepcopy(model))(x), rtol=1e-4, atol=1e-4)
    model.train()
    jt.revert(model)
    assert not any(name.startswith("_jitdnn") for module in model.modules() for name in module.__dict__)


def test_the_result_of_a_model_has_elements() -> None:
    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.act, self.reads = nn.BatchNorm2d(3), nn.ReLU(), True

        def forward(self, x: Any) -> Any:
            y = self.norm(x)
            return F.relu(y) if self.reads else {"all": [y, y + 1]}

    model = jt.convert(nn.Sequential(nn.Conv2d(3, 3, 1), Ends()), measure="never")
    x = random(2, 3, 4, 4)
    model(x)
    model[1].reads = False
    found = model(x)["all"]
    assert [type(one) for one in found] == [torch.Tensor] * 2
    torch.testing.assert_close(found[0] + 1, found[1])
    found[0].sum().backward()


def test_who_goes_past_torchs_functions_is_told() -> None:
    class Past(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return dy * 2

    model = jt.convert(model_of(rectify), measure="never")
    x = random(2, 3, 6, 6)
    model(x)
    model[1].end = lambda block, y, x: Past.apply(y)
    with pytest.raises(NotSupported, match="exclude that normalization"):
        model(x).sum().backward()
    model[1].end = rectify
    assert type(model(x)) is torch.Tensor
    assert deferred._here.call is None


def test_an_error_teaches_nothing() -> None:
    def fail(block: Any, y: Any, x: Any) -> Any:
        F.relu(y)
        raise KeyError("as asked")

    stock = model_of(rectify)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(2, 3, 6, 6)
    for _ in range(2):  # watched, then put off
        model[1].end = fail
        with pytest.raises(KeyError):
            model(x)
        assert joins(model) in ([None], ["relu"])
        assert deferred._here.call is None
        model[1].end = rectify
        held(model, stock, x, 2)
        assert joins(model) == ["relu"]


def test_an_error_behind_a_normalization_leaves_its_running_statistics_as_torchs() -> None:
    def end(block: Any, y: Any, x: Any) -> Any:
        if block.fails:
            raise KeyError("as asked")
        return F.relu(y + x)

    stock, x = model_of(end), random(2, 3, 6, 6)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    for fails in (False, False, True, False):
        for one in (stock, model):
            one[1].fails = fails
            with pytest.raises(KeyError) if fails else nullcontext():
                one(x)
        for own, theirs in zip(model.buffers(), stock.buffers(), strict=True):
            torch.testing.assert_close(own, theirs)
        assert joins(model) == [SUM]


@pytest.mark.parametrize("calls", [0, 2])
def test_an_interrupted_call_is_over(calls: int) -> None:
    """PyTorch calls no hooks behind KeyboardInterrupt, neither in a call that is watched nor in a later one."""

    def end(block: Any, y: Any, x: Any) -> Any:
        if block.stops:
            raise KeyboardInterrupt
        return F.relu(y + x)

    stock, x = model_of(end), random(2, 3, 6, 6)
    other = jt.convert(model_of(rectify), measure="never")
    model = jt.convert(copy.deepcopy(stock), measure="never")
    for stops in (*[False] * calls, True):
        for one in (stock, model):
            one[1].stops = stops
            with pytest.raises(KeyboardInterrupt) if stops else nullcontext():
                one(x)
    y = model[1].body(model[0](x))  # outside of a call nothing is put off
    assert type(y) is torch.Tensor
    torch.testing.assert_close(y, stock[1].body(stock[0](x)))
    held(other, model_of(rectify), x)
    assert joins(other) == ["relu"]
    assert torch._C._len_torch_function_stack() == 0
    for own, theirs in zip(model.buffers(), stock.buffers(), strict=True):
        torch.testing.assert_close(own, theirs)
    model[1].stops = stock[1].stops = False
    held(model, stock, x)
    assert joins(model) == [SUM]


def test_changes_in_place_before_the_sum_are_told() -> None:
    def changed(block: Any, y: Any, x: Any) -> Any:
        z = x * 1
        s = y + z
        z.mul_(2)
        return F.relu(s)

    model = jt.convert(model_of(add), measure="never")
    x = random(2, 3, 6, 6)
    model(x)
    model[1].end = changed
    with pytest.raises(RuntimeError, match="changed in place"):
        model(x)
    again = jt.convert(model_of(changed), measure="never")
    held(again, jt.revert(copy.deepcopy(again)), x)
    assert joins(again) == [None]


def test_repr_of_what_was_put_off() -> None:
    norm = jt.convert(nn.Sequential(nn.BatchNorm2d(2), nn.Identity()), measure="never")[0]
    x = random(2, 2, 3, 3).requires_grad_()
    one = Deferred(deferred._Normalized(norm, x))
    assert one.shape == x.shape
    assert "grad_fn" in repr(one)
