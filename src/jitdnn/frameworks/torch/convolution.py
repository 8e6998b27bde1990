"""Convolution and its gradients as PyTorch means them, by ours or by torch's kernels.

The arguments are those of `torch.ops.aten.convolution`. Each direction is a choice of its own (kinds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitdnn.errors import JitdnnError
from jitdnn.frameworks.torch.fresh import fresh_like, without_data
from jitdnn.frameworks.torch.kinds import RESULT, Computation, Launched, Ways, run_together
from jitdnn.frameworks.torch.launch import Direct, Launch, descriptor, direct
from jitdnn.frameworks.torch.stock import stock
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.convolution import (
    conv,
    conv_backward_bias,
    conv_backward_data,
    conv_backward_filter,
    conv_transpose,
)
from jitdnn.ops.epilogue import fuse
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.problems.problem import Problem
from jitdnn.tensor import TensorDescriptor

aten = torch.ops.aten
Made = Callable[[], Tensor]
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Geometry:
    """The arguments of a convolution that are no tensors; one number for each axis of space."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @staticmethod
    def of(
        space: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
        output_padding: Sequence[int], groups: int,
    ) -> Geometry:  # fmt: skip
        """The same with one number for all axes written out; torch takes both."""
        s, p, d, o = (
            tuple(one) * (space if len(one) == 1 else 1)
            for one in (stride, padding, dilation, output_padding)
        )
        return Geometry(s, p, d, transposed, o, groups)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """In the order of `aten::convolution`."""
        return (
            list(self.stride), list(self.padding), list(self.dilation), self.transposed, list(self.output_padding),
            self.groups,
        )  # fmt: skip

    @property
    def named(self) -> dict[str, Any]:
        """What all convolutions of ours take."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    def output_shape(self, x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
        """The shape (N, K, output space) for those of x (N, C, space) and w."""
        axes = zip(x[2:], w[2:], self.stride, self.padding, self.dilation, self.output_padding, strict=True)
        if self.transposed:
            space = [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in axes]
            return (x[0], w[1] * self.groups, *space)
        return (x[0], w[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in axes))


def forward(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, options: str = "",
) -> Tensor:  # fmt: skip
    """The convolution of x (N, C, space) by w, or the transposed one; 1 to 3 axes of space."""
    y: Tensor = computation(
        options, x, w, bias, stride, padding, dilation, transposed, output_padding, groups
    )
    return y


def backward(
    dy: Tensor, x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, output_mask: Sequence[bool], options: str = "",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, w and the bias that `output_mask` asks for; empty tensors for the others."""
    if not dy.is_contiguous() and memory_format(dy) is torch.contiguous_format:
        dy = dy.contiguous(memory_format=memory_format(x, w))
    wanted = tuple(
        gradient if is_wanted else None for gradient, is_wanted in zip(GRADIENTS, output_mask, strict=True)
    )
    operands = (dy, x, w, stride, padding, dilation, transposed, output_padding, groups)
    dx, dw, db = (
        x.new_empty((0,)) if one is None else one for one in run_together(wanted, options, operands)
    )
    return dx, dw, db


def memory_format(*operands: Tensor) -> torch.memory_format:
    """Channels last if one of the operands lies in memory so, as torch's own convolutions have it."""
    for operand in operands:
        last = _CHANNELS_LAST.get(operand.dim())
        if last is not None and operand.is_contiguous(memory_format=last) and not operand.is_contiguous():
            return last
    return torch.contiguous_format


def prepared(
    handle: Handle, problem: Problem | None, operands: Sequence[Tensor], device: torch.device
) -> Direct:
    """What runs the plan of a convolution or of one of its gradients on addresses (see `direct`); behind the result of
    a forward one comes the bias, if there is one."""
    if problem is None:
        return None
    epilogue, given = None, []
    if isinstance(problem, Convolution) and len(operands) > len(problem.inputs) + len(problem.outputs):
        epilogue = bias_epilogue(problem, True)
        given.append(TensorDescriptor((problem.output.shape[1],), (1,), problem.output.dtype))
    return direct(handle, problem, operands, device, epilogue, given)


def bias_epilogue(problem: Problem, has_bias: bool) -> Epilogue | None:
    """What adds a bias to the result of a convolution, or of one that is transposed."""
    if not has_bias or not isinstance(problem, Convolution):
        return None
    y = problem.output
    return fuse(None, (TensorDescriptor((y.shape[1],), (1,), y.dtype),), y, None)


def launched(
    run: Direct, roles: tuple[int, ...], made: Made, add: Callable[[Tensor, Tensor], Any] | None = None
) -> Launched | None:
    """How a kernel of ours is launched, if that is all that a call does, but for a bias that is added."""
    if run is None:
        return None
    if isinstance(run, Launch):
        return Launched(run.at, run.handle, roles, made, add, run.settle)
    return Launched(run.at, None, roles, made, add, launch=run)


def _forward_by_torch(x: Tensor, w: Tensor, bias: Tensor | None, *arguments: Any) -> Callable[..., Tensor]:
    """Torch's kernel for calls of a kind."""
    g, form = Geometry.of(x.dim() - 2, *arguments), memory_format(x, w)

    def theirs(x: Tensor, w: Tensor, bias: Tensor | None, *_: Any) -> Tensor:
        y: Tensor = stock(aten.convolution.default, x, w, bias, *g.arguments)
        return y if y.is_contiguous(memory_format=form) else y.contiguous(memory_format=form)

    return theirs


def _backward_by_torch(
    number: int, dy: Tensor, x: Tensor, w: Tensor, *arguments: Any
) -> Callable[..., Tensor]:
    """Torch's kernel for calls of a kind, of one gradient."""
    run = gradients_by_torch([place == number for place in range(3)], dy, x, w, *arguments)

    def theirs(dy: Tensor, x: Tensor, w: Tensor, *_: Any) -> Tensor:
        found = run(dy, x, w)[number]
        assert found is not None
        return found

    return theirs


def gradients_by_torch(
    mask: Sequence[bool], dy: Tensor, x: Tensor, w: Tensor, *arguments: Any
) -> Callable[[Tensor, Tensor, Tensor], list[Tensor | None]]:
    """Torch's one call for several gradients of calls of a kind, those that the mask says of the data, the filter and
    the bias."""
    g, wanted = Geometry.of(x.dim() - 2, *arguments), [*mask]

    def theirs(dy: Tensor, x: Tensor, w: Tensor) -> list[Tensor | None]:
        # the number of channels stands for the shape of the bias
        grads = [*stock(aten.convolution_backward.default, dy, x, w, [dy.shape[1]], *g.arguments, wanted)]
        for place, like in enumerate((x, w)):
            if wanted[place] and grads[place].stride() != like.stride():
                grads[place] = torch.empty_like(like).copy_(grads[place])
        return [grad if is_wanted else None for grad, is_wanted in zip(grads, wanted, strict=True)]

    return theirs


def _prepare_forward(handle: Handle, x: Tensor, w: Tensor, bias: Tensor | None, *arguments: Any) -> Ways:
    g = Geometry.of(x.dim() - 2, *arguments)
    form, named, by_channel = memory_format(x, w), g.named, (-1, *[1] * (x.dim() - 2))
    theirs = _forward_by_torch(x, w, bias, *arguments)

    try:
        shape = g.output_shape(x.shape, w.shape)
    except (ValueError, ZeroDivisionError):  # what is wrong torch says
        return Ways(theirs, theirs, refusal="the arguments do not fit each other")

    def ours(x: Tensor, w: Tensor, bias: Tensor | None, *_: Any) -> Tensor:
        y = made()
        if run is None:
            conv(x, w, bias, out=y, handle=handle, **named)
        elif bias is None:
            run(x, w, y)
        else:
            run(x, w, y, bias)
        return y

    def ours_transposed(x: Tensor, w: Tensor, bias: Tensor | None, *_: Any) -> Tensor:
        y = made()
        if run is None:
            conv_transpose(x, w, output_padding=g.output_padding, out=y, handle=handle, **named)
        else:
            run(x, w, y)
        return y if bias is None else add(y, bias)

    def add(y: Tensor, bias: Tensor) -> Tensor:
        return y.add_(bias.view(by_channel))

    y = torch.empty(shape, dtype=x.dtype, device="meta", memory_format=form)
    made = fresh_like(y, x.device)
    problem = problem_of("forward", x, w, y, g)
    if g.transposed:
        what = "transposed with a bias" if bias is not None else ""
        run = prepared(handle, problem, (x, w, y), x.device)
        kernel = launched(run, (0, 1, RESULT), made, None if bias is None else add)
        return Ways(ours_transposed, theirs, problem, what=what, launched=kernel)
    run = prepared(handle, problem, (x, w, y) if bias is None else (x, w, y, bias), x.device)
    kernel = launched(run, FORWARD[bias is not None], made)
    return Ways(ours, theirs, problem, bias is not None, launched=kernel)


def _prepare_backward(number: int, handle: Handle, dy: Tensor, x: Tensor, w: Tensor, *arguments: Any) -> Ways:
    """The ways to one gradient: 0, 1 or 2, of the data, the filter or the bias."""
    g = Geometry.of(x.dim() - 2, *arguments)
    theirs = _backward_by_torch(number, dy, x, w, *arguments)
    # gradients are dense: what an operand with gaps looks like is not what its gradient does
    dx, dw, db = (
        without_data(x),
        without_data(w),
        dy.new_empty(dy.shape[1], device="meta"),
    )
    forms = ((dx, w, dy), (x, dw, dy), (x, w, dy))[number]
    problem = problem_of(DIRECTIONS[1 + number], *forms, g)
    wide, narrow = (dy, x) if g.transposed else (x, dy)
    run = prepared(handle, problem, ((dy, w, dx), (wide, narrow, dw), (dy, db))[number], dy.device)
    made = fresh_like((dx, dw, db)[number], dy.device)
    ours = (_data_gradient, _filter_gradient, _bias_gradient)[number](g, handle, run, made)
    roles = ((0, 2, RESULT), (0, 1, RESULT) if g.transposed else (1, 0, RESULT), (0, RESULT))[number]
    return Ways(ours, theirs, problem, launched=launched(run, roles, made))


def _data_gradient(g: Geometry, handle: Handle, run: Direct, made: Made) -> Callable[..., Tensor]:
    named = g.named

    def ours(dy: Tensor, x: Tensor, w: Tensor, *_: Any) -> Tensor:
        dx = made()
        if run is not None:
            run(dy, w, dx)
        elif g.transposed:
            conv(dy, w, out=dx, handle=handle, **named)
        else:
            conv_backward_data(dy, w, x.shape, out=dx, handle=handle, **named)
        return dx

    return ours


def _filter_gradient(g: Geometry, handle: Handle, run: Direct, made: Made) -> Callable[..., Tensor]:
    named = g.named

    def ours(dy: Tensor, x: Tensor, w: Tensor, *_: Any) -> Tensor:
        wide, narrow = (dy, x) if g.transposed else (x, dy)
        dw = made()
        if run is not None:
            run(wide, narrow, dw)
        else:
            conv_backward_filter(wide, narrow, w.shape, out=dw, handle=handle, **named)
        return dw

    return ours


def _bias_gradient(g: Geometry, handle: Handle, run: Direct, made: Made) -> Callable[..., Tensor]:
    def ours(dy: Tensor, x: Tensor, w: Tensor, *_: Any) -> Tensor:
        db = made()
        if run is not None:
            run(dy, db)
        else:
            conv_backward_bias(dy, out=db, handle=handle)
        return db

    return ours


def problem_of(direction: str, x: Tensor, w: Tensor, y: Tensor, g: Geometry) -> Problem | None:
    """What ours computes, as a problem of the library; None for what it has no problem for.

    A transposed convolution is the data's gradient of the one that leads from its result back to its x.
    """
    kinds = {"forward": "bwd_data", "data": "fwd"} if g.transposed else {"forward": "fwd", "data": "bwd_data"}
    wide, narrow = (y, x) if g.transposed else (x, y)
    try:
        image, filter, result, dy = (descriptor(t) for t in (wide, w, narrow, y))
        if direction == "bias":
            return BiasGradient.make(dy)
        return Convolution.make(kinds.get(direction, "bwd_filter"), image, filter, y=result, **g.named)
    except (JitdnnError, KeyError):  # what it is that ours refuses it says when it is called
        return None


#: without and with a bias, the numbers of the operands in the order of a plan
FORWARD = ((0, 1, RESULT), (0, 1, RESULT, 2))
DIRECTIONS = ("forward", "data", "filter", "bias")
computation = Computation("forward", _prepare_forward, 9, weight=1, torchs=_forward_by_torch)
GRADIENTS = tuple(
    Computation(
        name, partial(_prepare_backward, number), 9, weight=2, torchs=partial(_backward_by_torch, number)
    )
    for number, name in enumerate(DIRECTIONS[1:])
)
