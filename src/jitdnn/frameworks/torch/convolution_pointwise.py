"""`torch.ops.jitdnn.convolution_pointwise`: a convolution with the pointwise operators behind it, for inference.

    y = tail(convolution(x, w), *operands)

The operands are a bias, statistics, residuals: of the result's type or float32. One of a single dimension belongs to
the channels, others are broadcast as in torch. `tail` is the text of tail.py. With `is_constant` the values of w never
change: what an algorithm prepares of them is kept as long as w is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from jitdnn.frameworks.torch.convolution import Geometry, memory_format, problem_of
from jitdnn.frameworks.torch.kinds import Computation, Ways
from jitdnn.frameworks.torch.launch import descriptor
from jitdnn.frameworks.torch.registry import define
from jitdnn.frameworks.torch.stock import stock
from jitdnn.frameworks.torch.tail import applied, expression_of
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.convolution import conv
from jitdnn.ops.epilogue import fuse
from jitdnn.ops.kept_filter import KeptFilter
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.expression import Expression

aten = torch.ops.aten
_kept: Any = WeakIdKeyDictionary()


def _kept_filter(w: Tensor) -> KeptFilter:
    """The filter with what is prepared of it, which is kept for as long as its tensor is there."""
    found = _kept.get(w)
    if found is None:
        # of an alias: what is kept must not keep the tensor itself
        found = _kept[w] = KeptFilter(w.detach())
    kept: KeptFilter = found
    return kept


def planned(
    arguments: tuple[Any, ...], tail: str, operands: Sequence[Tensor]
) -> tuple[Convolution, Epilogue | None] | None:
    """What ours compute for (x, w, stride, padding, dilation, groups), as a problem and its end; None where ours has no
    problem for it.

    Raises InvalidArgument or NotSupported for a tail that ours cannot say.
    """
    x, w, stride, padding, dilation, groups = arguments
    g, expression = _geometry(x, stride, padding, dilation, groups), expression_of(tail, len(operands))
    return _planned(x, w, operands, _result(x, w, g), g, expression)


def result(
    x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Tensor:
    """The result without data."""
    return _result(x, w, _geometry(x, stride, padding, dilation, groups))


def _geometry(
    x: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Geometry:
    return Geometry.of(x.dim() - 2, stride, padding, dilation, False, [0], groups)


def _result(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """The result without data."""
    shape, form = g.output_shape(x.shape, w.shape), memory_format(x, w)
    return torch.empty(shape, dtype=x.dtype, device="meta", memory_format=form)


def _planned(
    x: Tensor, w: Tensor, operands: Sequence[Tensor], y: Tensor, g: Geometry, expression: Expression
) -> tuple[Convolution, Epilogue | None] | None:
    problem = problem_of("forward", x, w, y, g)
    if problem is None or not isinstance(problem, Convolution):
        return None
    if [descriptor(one) for one in (x, w, y)] != [
        one.descriptor for one in (*problem.inputs, *problem.outputs)
    ]:
        return None  # nothing may be read or written where no element is
    epilogue = fuse(expression, [descriptor(one) for one in operands], problem.y, None)
    return problem, None if len(expression.instructions) == 1 else epilogue  # the sum itself


def by_address(
    handle: Handle, x: Tensor, w: Tensor, operands: Sequence[Tensor], y: Tensor, geometry: Sequence[Any], tail: str,
    is_constant: bool,
) -> Callable[[Tensor, list[int]], None] | None:  # fmt: skip
    """What runs the plan of a kind on a processor: on w, and addresses of x, w, y and the operands; None where that
    cannot be. `geometry`: stride, padding, dilation, groups. All tensors may be without data."""
    if handle.settings.total_workspace is not None:
        return None
    g, expression = _geometry(x, *geometry), expression_of(tail, len(operands))
    found = _planned(x, w, operands, y, g, expression)
    if found is None:
        return None
    problem, epilogue = found
    request = replace(Request.of(handle.settings), keeps_filter=True) if is_constant else None
    plan: Plan | None = None

    def run(w: Tensor, addresses: list[int]) -> None:
        nonlocal plan
        if plan is None:
            plan = handle.plan(problem, request, epilogue)
        if is_constant:
            _kept_filter(w).run(handle, plan, addresses)
        else:
            handle.run(plan, addresses)

    return run


def _prepare(
    handle: Handle, x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    groups: int, tail: str, is_constant: bool, *operands: Tensor,
) -> Ways:  # fmt: skip
    g = _geometry(x, stride, padding, dilation, groups)
    form, named, expression = memory_format(x, w), g.named, expression_of(tail, len(operands))
    empty = _result(x, w, g)
    shape = empty.shape
    geometry = (stride, padding, dilation, groups)
    is_here = x.device.type == "cpu"
    direct = by_address(handle, x, w, operands, empty, geometry, tail, is_constant) if is_here else None

    def ours(x: Tensor, w: Tensor, *given: Any) -> Tensor:
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)
        if direct is not None:
            direct(w, [one.data_ptr() for one in (x, w, y, *given[6:])])
        else:
            conv(x, w, *given[6:], epilogue=expression, out=y, handle=handle, **named)
        return y

    def theirs(x: Tensor, w: Tensor, *given: Any) -> Tensor:
        y = stock(aten.convolution.default, x, w, None, *g.arguments)
        return applied(tail, y, given[6:]).contiguous(memory_format=form)

    refusal = None if x.dtype == w.dtype else "the operands are of several types"
    return Ways(
        ours, theirs, refusal=refusal, what="of a convolution and what follows", has_several_types=True
    )


computation = Computation("forward", _prepare, 0)


def _kernel(
    x: Tensor, w: Tensor, operands: Sequence[Tensor], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int, tail: str, is_constant: bool = False, options: str = "",
) -> Tensor:  # fmt: skip
    y: Tensor = computation(options, x, w, stride, padding, dilation, groups, tail, is_constant, *operands)
    return y


def _fake(
    x: Tensor, w: Tensor, operands: Sequence[Tensor], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int, tail: str, is_constant: bool = False, options: str = "",
) -> Tensor:  # fmt: skip
    space = len(stride)
    y = aten.convolution.default(x, w, None, stride, padding, dilation, False, [0] * space, groups)
    return torch.empty(y.shape, dtype=x.dtype, device=x.device, memory_format=memory_format(x, w))


convolution_pointwise = define(
    "convolution_pointwise(Tensor x, Tensor w, Tensor[] operands, SymInt[] stride, SymInt[] padding, "
    'SymInt[] dilation, SymInt groups, str tail, bool is_constant=False, str options="") -> Tensor',
    _kernel,
    _fake,
)
