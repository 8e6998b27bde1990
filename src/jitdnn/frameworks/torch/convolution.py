"""`torch.ops.jitdnn.convolution` and its gradient: what `aten::convolution` computes, by ours or by torch's kernels.

The arguments are those of `torch.ops.aten.convolution`, and the `options` of the call as text (options.py). Each
direction is a choice of its own (choice.py): what the first call of a kind finds is kept in a `_Kind`, so that every
later one is a look-up by the shapes and strides of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jitdnn.errors import JitdnnError
from jitdnn.frameworks.torch.choice import Decision, decide
from jitdnn.frameworks.torch.options import handle_of, is_disabled, parse
from jitdnn.frameworks.torch.stock import stock as stock_call
from jitdnn.handle import Handle
from jitdnn.ops.convolution import (
    conv,
    conv_backward_bias,
    conv_backward_data,
    conv_backward_filter,
    conv_transpose,
)
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.problems.problem import Problem
from jitdnn.retention import Recent
from jitdnn.tensor import TensorDescriptor

aten = torch.ops.aten
DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
DEVICES = ("cpu", "cuda")
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
        space: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Geometry:
        """The same with one number for all axes written out; torch takes both."""
        wide = (tuple(one) * space if len(one) == 1 else tuple(one) for one in (stride, padding, dilation))
        s, p, d = wide
        o = tuple(output_padding) * space if len(output_padding) == 1 else tuple(output_padding)
        return Geometry(s, p, d, transposed, o, groups)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """In the order of `aten::convolution`."""
        return (
            list(self.stride), list(self.padding), list(self.dilation), self.transposed, list(self.output_padding),
            self.groups,
        )  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What is known of one kind of call: who runs it, and how.

    `direction`: "forward", "data", "filter" or "bias". `problem` and `handle` are those of ours, None where it refuses;
    `has_bias` says whether the bias is added by the same kernel.
    """

    direction: str
    decision: Decision
    run: Callable[..., Tensor]
    problem: Problem | None = None
    handle: Handle | None = None
    has_bias: bool = False


#: what was chosen, by direction and everything that tells kinds of calls apart
_kinds: Recent[tuple[Any, ...], Kind] = Recent(8192)
#: who wants to know of every call: gets its kind and its filter
observers: list[Callable[[Kind, Tensor], None]] = []


def forget() -> None:
    """Choose anew at the next calls (with the times that are stored by then)."""
    _kinds.clear()


def memory_format(*operands: Tensor) -> torch.memory_format:
    """Channels last if one of the operands lies in memory so, as torch's own convolutions have it."""
    for operand in operands:
        last = _CHANNELS_LAST.get(operand.dim())
        if last is not None and operand.is_contiguous(memory_format=last) and not operand.is_contiguous():
            return last
    return torch.contiguous_format


# ---- forward ----


def forward(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, options: str = "",
) -> Tensor:  # fmt: skip
    """The convolution of x (N, C, space) by w, or the transposed one; 1 to 3 axes of space."""
    key = (
        "fwd", x.shape, x.stride(), w.shape, w.stride(), None if bias is None else bias.dtype, x.dtype, w.dtype,
        x.device, tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups, options,
        torch.get_num_threads(),
    )  # fmt: skip
    kind = _kinds.get(key) or _kinds.older(key)
    if kind is None:
        geometry = Geometry.of(x.dim() - 2, stride, padding, dilation, transposed, output_padding, groups)
        kind = _kinds.put(key, _forward_kind(x, w, bias, geometry, options))
    for observe in observers:
        observe(kind, w)
    return kind.run(x, w, bias)


def _forward_kind(x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, options: str) -> Kind:
    def stock(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = stock_call(aten.convolution.default, x, w, bias, *g.arguments)
        return y if y.is_contiguous(memory_format=form) else y.contiguous(memory_format=form)

    form = memory_format(x, w)
    reason = refusal(x, w, *([] if bias is None else [bias]))
    if reason is not None:
        return Kind("forward", Decision(False, reason), stock)
    handle = handle_of(options)
    shape = output_shape(x.shape, w.shape, g)

    def ours(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)
        if g.transposed:
            conv_transpose(
                x, w, g.stride, g.padding, g.output_padding, g.dilation, g.groups, out=y, handle=handle
            )
            if bias is not None:
                y += bias.view(-1, *[1] * (x.dim() - 2))
        else:
            conv(
                x, w, bias, stride=g.stride, padding=g.padding, dilation=g.dilation, groups=g.groups, out=y,
                handle=handle,
            )  # fmt: skip
        return y

    y = torch.empty(shape, dtype=x.dtype, device="meta", memory_format=form)
    return _chosen("forward", (x, w, y), g, handle, options, ours, stock, (x, w, bias))


def output_shape(x: Sequence[int], w: Sequence[int], g: Geometry) -> tuple[int, ...]:
    """The shape of the result (N, K, output space)."""
    taps = w[2:]
    if g.transposed:
        space = [
            (extent - 1) * s - 2 * p + d * (k - 1) + o + 1
            for extent, s, p, d, k, o in zip(
                x[2:], g.stride, g.padding, g.dilation, taps, g.output_padding, strict=True
            )
        ]
        return (x[0], w[1] * g.groups, *space)
    space = [
        (extent + 2 * p - d * (k - 1) - 1) // s + 1
        for extent, s, p, d, k in zip(x[2:], g.stride, g.padding, g.dilation, taps, strict=True)
    ]
    return (x[0], w[0], *space)


# ---- backward ----


def backward(
    dy: Tensor, x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, output_mask: Sequence[bool], options: str = "",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, w and the bias that `output_mask` asks for; empty tensors for the others."""
    if not dy.is_contiguous() and memory_format(dy) is torch.contiguous_format:
        dy = dy.contiguous(memory_format=memory_format(x, w))
    arguments = (
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        transposed,
        tuple(output_padding),
        groups,
        options,
    )
    operands = (
        dy.shape, dy.stride(), x.shape, x.stride(), w.shape, w.stride(), x.dtype, dy.dtype, w.dtype, x.device,
    )  # fmt: skip
    threads = torch.get_num_threads()
    results = []
    for direction, is_wanted in zip(("data", "filter", "bias"), output_mask, strict=True):
        if not is_wanted:
            results.append(x.new_empty((0,)))
            continue
        key = (direction, *operands, *arguments, threads)
        kind = _kinds.get(key) or _kinds.older(key)
        if kind is None:
            geometry = Geometry.of(x.dim() - 2, stride, padding, dilation, transposed, output_padding, groups)
            kind = _kinds.put(key, _backward_kind(direction, dy, x, w, geometry, options))
        for observe in observers:
            observe(kind, w)
        results.append(kind.run(dy, x, w))
    return results[0], results[1], results[2]


def _backward_kind(direction: str, dy: Tensor, x: Tensor, w: Tensor, g: Geometry, options: str) -> Kind:
    number = ("data", "filter", "bias").index(direction)
    mask = [place == number for place in range(3)]
    channels = w.shape[1] * g.groups if g.transposed else w.shape[0]
    like = (x, w, None)[number]

    def stock(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
        grads = stock_call(aten.convolution_backward.default, dy, x, w, [channels], *g.arguments, mask)
        found: Tensor = grads[number]
        if like is None or found.stride() == like.stride():
            return found
        return torch.empty_like(like).copy_(found)

    reason = refusal(dy, x, w)
    if reason is not None:
        return Kind(direction, Decision(False, reason), stock)
    handle = handle_of(options)
    run = {"data": _data_gradient, "filter": _filter_gradient, "bias": _bias_gradient}[direction]

    def ours(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return run(dy, x, w, g, handle)

    return _chosen(direction, (x, w, dy), g, handle, options, ours, stock, (dy, x, w))


def _data_gradient(dy: Tensor, x: Tensor, w: Tensor, g: Geometry, handle: Handle) -> Tensor:
    dx = torch.empty_like(x)
    if g.transposed:
        return conv(
            dy, w, stride=g.stride, padding=g.padding, dilation=g.dilation, groups=g.groups, out=dx, handle=handle
        )  # fmt: skip
    return conv_backward_data(
        dy, w, x.shape, g.stride, g.padding, g.dilation, g.groups, out=dx, handle=handle
    )


def _filter_gradient(dy: Tensor, x: Tensor, w: Tensor, g: Geometry, handle: Handle) -> Tensor:
    wide, narrow = (dy, x) if g.transposed else (x, dy)
    return conv_backward_filter(
        wide, narrow, w.shape, g.stride, g.padding, g.dilation, g.groups, out=torch.empty_like(w), handle=handle
    )  # fmt: skip


def _bias_gradient(dy: Tensor, x: Tensor, w: Tensor, g: Geometry, handle: Handle) -> Tensor:
    return conv_backward_bias(dy, handle=handle)


# ---- what both share ----


def refusal(*operands: Tensor) -> str | None:
    """Why operands cannot be ours, in words; None if they can. What else ours refuses it says itself."""
    first = operands[0]
    if is_disabled():
        return "JITDNN_DISABLE is set"
    if first.device.type not in DEVICES:
        return f"the operands are on {first.device.type}: ours run on {' and '.join(DEVICES)}"
    for operand in operands:
        if operand.dtype not in DTYPES:
            return f"an operand is {operand.dtype}: it must be {', '.join(map(str, DTYPES))}"
        if operand.dtype != first.dtype or operand.device != first.device:
            return "the operands are of several types or devices: torch's own kernel says so"
        if operand.layout is not torch.strided or operand.is_conj() or operand.is_neg():
            return "an operand is sparse, or a view that is conjugated or negated when it is read"
        if operand.numel() == 0:
            return "an operand is empty"
    return None


def _chosen(
    direction: str,
    shapes: tuple[Tensor, Tensor, Tensor],
    g: Geometry,
    handle: Handle,
    options: str,
    ours: Callable[..., Tensor],
    stock: Callable[..., Tensor],
    operands: tuple[Any, ...],
) -> Kind:
    """The faster one of two ways; `shapes` are of x, w and the result, `operands` those that both are called with."""

    def call(function: Callable[..., Tensor]) -> Callable[[], Tensor]:
        return lambda: function(*operands)

    problem = _problem(direction, *shapes, g)
    x, w, y = shapes
    shown = problem or f"{direction} x {_form(x)} w {_form(w)} y {_form(y)} {x.dtype} {g}"
    has_bias = direction == "forward" and operands[2] is not None
    what = f"torch {shown}{' with a bias' if has_bias else ''}{' ' if options else ''}{options}"
    decision = decide(what, handle, x.device, parse(options).measure, call(ours), call(stock))
    run = ours if decision.is_ours else stock
    return Kind(direction, decision, run, problem, handle, has_bias and not g.transposed)


def _problem(direction: str, x: Tensor, w: Tensor, y: Tensor, g: Geometry) -> Problem | None:
    """What ours computes, as a problem of the library; None for what it has no problem for.

    A transposed convolution is the data's gradient of the one that leads from its result back to its x.
    """
    kinds = {"forward": "bwd_data", "data": "fwd"} if g.transposed else {"forward": "fwd", "data": "bwd_data"}
    wide, narrow = (y, x) if g.transposed else (x, y)
    try:
        image, filter, result = (
            TensorDescriptor(tuple(t.shape), t.stride(), DTYPES[t.dtype]).normalized()
            for t in (wide, w, narrow)
        )
        if direction == "bias":
            return BiasGradient.make(result)
        kind = kinds.get(direction, "bwd_filter")
        return Convolution.make(kind, image, filter, g.stride, g.padding, g.dilation, g.groups, y=result)
    except JitdnnError:  # what it is that ours refuses it says when it is called
        return None


def _form(operand: Tensor) -> str:
    return f"{tuple(operand.shape)} by {operand.stride()}"
