"""Which kernels ran, ours or PyTorch's, and both beside each other: a test that reads the values alone cannot tell."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from jitdnn.frameworks.torch.kinds import Kind, observers

# results are rounded once to the type of the operands, and so is what the backward pass reads of them
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}


@contextmanager
def watched() -> Iterator[list[Kind]]:
    """The kinds of all calls of a block, in their order."""
    seen: list[Kind] = []

    def observe(kind: Kind, operands: tuple[Any, ...]) -> None:
        seen.append(kind)

    observers.append(observe)
    try:
        yield seen
    finally:
        observers.remove(observe)


@contextmanager
def all_ours(*names: str) -> Iterator[list[Kind]]:
    """All calls of the block run by ours, and those of these names are among them."""
    with watched() as seen:
        yield seen
    assert seen, "nothing of ours was called"
    for kind in seen:
        assert kind.decision.is_ours, f"{kind.name}: {kind.decision.reason}"
    assert set(names) <= {kind.name for kind in seen}, [kind.name for kind in seen]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normally distributed numbers, the same ones each time."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def agree(mine: Tensor, exact: Tensor, dtype: torch.dtype, what: str) -> None:
    """Equal to a result in double precision but for the rounding of this type."""
    assert mine.dtype == dtype, what
    scale = max(1.0, float(exact.detach().abs().max())) if exact.numel() else 1.0
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        mine.detach().double(), exact.detach(), rtol=tolerance, atol=tolerance * scale,
        msg=lambda text: f"{what}: {text}",
    )  # fmt: skip


def compare(
    mine: Callable[..., Tensor],
    stock: Callable[..., Tensor],
    operands: tuple[Tensor | None, ...],
    names: tuple[str, ...],
    *,
    is_expanded: bool = False,
) -> Tensor:
    """The value and all gradients of `mine(*operands)`, by ours, against `stock` in double precision; the value.

    `names` are the kinds that must be among the calls. `is_expanded`: the gradient of the result is one number.
    """
    given = [None if one is None else one.detach().requires_grad_() for one in operands]
    exact = [None if one is None else one.detach().double().requires_grad_() for one in operands]
    expected = stock(*exact)
    dtype = next(one.dtype for one in operands if one is not None)
    dy = random(1, dtype=dtype) if is_expanded else random(*expected.shape, dtype=dtype, seed=7)
    dy = dy.expand(expected.shape) if is_expanded else dy
    with all_ours(*names):
        y = mine(*given)
        wanted = [one for one in given if one is not None]
        found = torch.autograd.grad(y, wanted, dy)
    agree(y, expected, dtype, "the result")
    gradients = torch.autograd.grad(expected, [one for one in exact if one is not None], dy.double())
    for number, (one, other, operand) in enumerate(zip(found, gradients, wanted, strict=True)):
        assert one.shape == operand.shape
        agree(one, other, operand.dtype, f"gradient {number}")
    return y


def step(model: Any, x: Any, dy: Any = None) -> tuple[Any, ...]:
    """The result and the gradients of x and the parameters."""
    own = x.clone().requires_grad_()
    y = model(own)
    grads = torch.autograd.grad(y, [own, *model.parameters()], torch.ones_like(y) if dy is None else dy)
    return y, *grads


def check(model: Any, stock: Any, x: Any, dy: Any = None) -> Any:
    """Value and gradients against torch's in double precision; gives the node of the result."""
    exact = copy.deepcopy(stock).double()
    mine, theirs = step(model, x, dy), step(exact, x.double(), None if dy is None else dy.double())
    types = [x.dtype, x.dtype, *(one.dtype for one in model.parameters())]
    for one, other, dtype in zip(mine, theirs, types, strict=True):
        agree(one, other, dtype, "result and gradients")
    return mine[0].grad_fn


class Mode(TorchDispatchMode):
    """Sees operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(function.name())
        return function(*args, **(kwargs or {}))


def same_form(result: Any, fake: Any) -> None:
    """The shapes, strides and types that the operator promises without data are those of its result."""
    results, fakes = ([one] if isinstance(one, Tensor) else list(one) for one in (result, fake))
    assert len(results) == len(fakes)
    for one, other in zip(results, fakes, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def form_holds(operator: Any, *arguments: Any) -> None:
    """A call and the same call on fake tensors give the same form."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    result = operator(*arguments)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) if isinstance(one, Tensor) else one for one in arguments]
        fake = operator(*fakes)
    same_form(result, fake)
