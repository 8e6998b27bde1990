"""Batch normalization and the activation behind it as one operation, in converted sequences."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.frameworks.torch import batch_norm_activation, functional, operators  # noqa: E402
from jitdnn.frameworks.torch.batch_norm_modules import Sequential  # noqa: E402
from jitdnn.frameworks.torch.options import handle_of  # noqa: E402
from torch_kernels import agree, random, watched  # noqa: E402

nn = torch.nn
NEVER = "measure=never"
LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}
ACTS = {"relu": nn.ReLU, "clipped_relu": nn.ReLU6, "swish": nn.SiLU}
JOINED = "of batch normalization with an activation"


def block(act: Any, inplace: bool = False) -> Any:
    made = nn.Sequential(
        nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), act(inplace=inplace), nn.Conv2d(5, 2, 1)
    )
    with torch.no_grad():
        made[1].weight.copy_(random(5, seed=1) * 4)  # beyond 6, and of both signs
        made[1].bias.copy_(random(5, seed=2))
    return made


def is_joined(seen: Any) -> bool:
    return [kind.name for kind in seen].count("gradients") == 1 and all(
        kind.decision.is_ours for kind in seen
    )


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ACTS)
def test_a_training_step_is_torchs(name: str, layout: str, inplace: bool) -> None:
    stock = block(ACTS[name], inplace).to(memory_format=LAYOUTS[layout])
    model = jt.convert(copy.deepcopy(stock), measure="never")
    assert type(model) is Sequential
    exact = copy.deepcopy(stock).double()
    x = random(4, 3, 7, 6).contiguous(memory_format=LAYOUTS[layout])
    given, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    with watched() as seen:
        y = model(given)
        y.square().sum().backward()
    assert is_joined(seen)
    wanted = exact(wide)
    wanted.square().sum().backward()
    assert y.stride() == stock(x).stride()
    agree(y, wanted, torch.float32, "y")
    agree(given.grad, wide.grad, torch.float32, "dx")
    for (part, one), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        agree(one.grad, other.grad, torch.float32, part)
    for one, other in zip(model.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 5), (3, 5, 9), (2, 5, 3, 4, 2)])
def test_any_number_of_axes(shape: tuple[int, ...]) -> None:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 5: nn.BatchNorm3d}[len(shape)]
    stock = nn.Sequential(kind(5), nn.SiLU())
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(*shape)
    torch.testing.assert_close(model(x), stock(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_derivatives(layout: str, name: str) -> None:
    """First and second ones, by differences."""
    x = random(3, 2, 3, 2, dtype=torch.float64).contiguous(memory_format=LAYOUTS[layout])
    given = [one.requires_grad_() for one in (x, random(2, dtype=x.dtype), random(2, dtype=x.dtype, seed=1))]

    def run(*operands: Any) -> Any:
        return functional.batch_norm_activated(
            operands[0], None, None, *operands[1:], True, name, False, 0.1, 1e-5, options=NEVER
        )

    with watched() as seen:
        assert torch.autograd.gradcheck(run, given)
        assert torch.autograd.gradgradcheck(run, given)
    assert seen
    assert all(kind.decision.is_ours for kind in seen)


def test_the_operator_by_the_rules() -> None:
    x, weight, bias = (one.requires_grad_() for one in (random(2, 4, 7, 6), random(4), random(4, seed=1)))
    torch.library.opcheck(operators.batch_norm_activation.default, (x, weight, bias, 1e-5, "swish", NEVER))


def test_torchs_own_kernels_are_the_same() -> None:
    """What runs where ours is slower, for either direction."""
    for name in ACTS:
        x, weight, bias, dy = random(2, 4, 5, 3), random(4) * 4, random(4, seed=1), random(2, 4, 5, 3, seed=1)
        handle = handle_of("")
        ways = batch_norm_activation._forward_ways(handle, x, weight, bias, 1e-5, name)
        y, mean, rstd, var = ways.stock(x, weight, bias, 1e-5, name)
        mine = operators.batch_norm_activation(x, weight, bias, 1e-5, name, NEVER)
        torch.testing.assert_close(mine, (y, mean, rstd, var), rtol=1e-5, atol=1e-5)
        operands = (dy, x, weight, bias, mean, rstd, 1e-5, name)
        stock = batch_norm_activation._backward_ways(handle, *operands).stock(*operands)
        torch.testing.assert_close(
            operators.batch_norm_activation_backward(*operands, NEVER), stock, rtol=1e-4, atol=1e-4
        )


def test_what_is_not_joined_is_as_torch_has_it() -> None:
    x = random(4, 5, 3, 3)
    for stock in (
        nn.Sequential(nn.BatchNorm2d(5, affine=False), nn.ReLU()),
        nn.Sequential(nn.BatchNorm2d(5, track_running_stats=False, momentum=None), nn.ReLU(inplace=True)),
        nn.Sequential(nn.BatchNorm2d(5), nn.BatchNorm2d(5), nn.SiLU(), nn.ReLU()),
        nn.Sequential(nn.BatchNorm2d(5, momentum=None), nn.ReLU()),
    ):
        model = jt.convert(copy.deepcopy(stock), measure="never")
        for _ in range(2):  # in training, then in evaluation
            torch.testing.assert_close(model(x), stock(x), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(model.state_dict(), stock.state_dict(), rtol=1e-5, atol=1e-6)
            model.eval(), stock.eval()
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model.train()(x), stock.train()(x), rtol=1e-2, atol=1e-2)
        with pytest.raises(ValueError, match="4D"):
            model(x[0])


def test_who_watches_a_part_sees_it() -> None:
    model = jt.convert(nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True)), measure="never")
    x, seen = random(2, 4, 3, 3), []
    hook = model[0].register_forward_hook(lambda module, given, result: seen.append(result.detach().clone()))
    y = model(x)
    assert (seen[0] < 0).any()
    torch.testing.assert_close(y, seen[0].relu())
    hook.remove()
    with watched() as kinds:
        model(x)
    assert len(kinds) == 1
    explained = jt.explain(model, x)
    assert [(row.layer, row.direction) for row in explained.rows] == [("0", "forward"), ("0", "gradients")]


def test_excluded_parts_stay_torchs() -> None:
    model = jt.convert(nn.Sequential(nn.BatchNorm2d(4), nn.SiLU()), exclude=[nn.SiLU], measure="never")
    with watched() as seen:
        model(random(2, 4, 3, 3))
    assert len(seen) == 1
    torch.testing.assert_close(model(random(2, 4, 3, 3)), jt.revert(model)(random(2, 4, 3, 3)))
    assert type(model) is nn.Sequential


def test_copies_and_compiled_graphs() -> None:
    stock = block(nn.ReLU)
    model = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(2, 3, 6, 6)
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again(x), copy.deepcopy(stock)(x), rtol=1e-4, atol=1e-5)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), copy.deepcopy(stock)(x), rtol=1e-4, atol=1e-5)
    stock.load_state_dict(
        model.state_dict()
    )  # the exported graph has counted its batch in the model's buffers
    torch.testing.assert_close(jt.fuse(model.eval())(x), stock.eval()(x), rtol=1e-4, atol=1e-4)
    found = torch.func.functional_call(model.train(), dict(stock.named_parameters()), (x,))
    torch.testing.assert_close(found, stock.train()(x), rtol=1e-4, atol=1e-5)
