"""Convolution, its gradients and the transposed convolution over anybody's arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from jitdnn.arguments import LAYOUT, as_key, extents, integer, numbers, pads, settled_before, word
from jitdnn.errors import InvalidShape
from jitdnn.handle import Handle
from jitdnn.ops.call import (
    SETTING,
    Op,
    Recipe,
    WorkspaceLimit,
    call,
    callers_axes,
    logical,
    logical_shape,
    packed_like,
)
from jitdnn.ops.epilogue import Fused, epilogue_key, fuse
from jitdnn.ops.fused_convolution import (
    Prologue,
    make_backward_filter,
    make_forward,
    refuse_with_sums,
    settled_prologue,
    settled_sums,
)
from jitdnn.ops.kept_filter import KeptFilter
from jitdnn.problems.convolution import MODES, Convolution
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.problems.problem import result_like
from jitdnn.tensor import TensorDescriptor

PerAxis = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]


def conv(
    x: Any,
    w: Any,
    bias: Any = None,
    residual: Any = None,
    *operands: Any,
    prologue: Prologue | None = None,
    epilogue: Fused = None,
    sums: bool | str = False,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
    layout: str | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the convolution of x by w, with what is fused into its end:

        y = alpha * epilogue(conv(x, w), bias, residual, ...) + beta * out

    `x`: (N, C, space), `w`: (K, C/groups, taps), result (N, K, output space); 1 to 3 axes of space; float16,
    bfloat16, float32 or float64; or x int8 or uint8 and w int8: then the sums are exact, y is float32, or what `out` is
    (int8, uint8 and int32 are rounded and saturated); or both 8-bit reals (float8_e4m3fn, float8_e5m2, in any
    combination): then y is float32, or what `out` is (float16, bfloat16, or an 8-bit real, saturated), and `alpha` is
    the product of the scales that x and w were divided by. On every axis the output extent is
    floor((extent + before + after - dilation * (taps - 1) - 1) / stride) + 1. `stride`, `dilation`: one number, or
    one for each axis; `padding`: the same, or (before, after) pairs; all in elements. `mode`: "cross_correlation", or
    "convolution" for taps in reverse.
    `layout="NHWC"` takes x as (N, space, C), w as (K, taps, C/groups) and gives (N, output space, K).

    `bias` (K,), `residual` and further `operands` (of the result's dtype or float32) are those of the epilogue; one
    that has one dimension belongs to the channels, any other is broadcast to the result as in NumPy. `epilogue` is a
    function of the sum and the operands that are given, written with operators and the functions of this
    package (`lambda a, b, r: jd.relu(a + b) + r`), or a traced `Expression`; without it they are all added.
    It is traced anew when a variable that it reads by name has changed, and at every call if it reads
    anything else.

    `prologue` is done to x as it is read; padding is zero behind it. With `sums` the result is (y, sums, squares): of
    y and of y * y over all but the channels, (K,) in float32 (float64 for float64), or with "image" over the space of
    each image, (N, K); of y before it is rounded where the algorithm has it and as it is stored elsewhere. There is no
    epilogue then, alpha is 1 and beta 0, and `out` a tuple of three. One kernel does all of it on sm_90a, with the
    algorithms `implicit_gemm_wgmma` and, without a prologue, `implicit_gemm_wgmma_in_boxes`; elsewhere, or where it is
    faster, `separate_kernels` do. Their gradients: see docs/ops/fused_convolution.md.

    `w` may be a `KeptFilter`: then what the algorithm prepares of it is kept for the next call (with a prologue or
    sums nothing is). `algorithm` asks for one by name, `workspace_limit` (bytes, or text such as "64 MiB") bounds its
    scratch memory. `out` may be any view of the result's shape; its old values are read only if beta is not 0. The
    result lies in memory as x does, channels first or last.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit, NotSupported if no algorithm
    takes it.
    """
    names, arrays = ["x", "w"], [x, w]
    if bias is not None:
        names.append("bias")
        arrays.append(bias)
    if residual is not None:
        names.append("residual")
        arrays.append(residual)
    for number, operand in enumerate(operands, start=3):
        names.append(f"operand {number}")
        arrays.append(operand)
    fused, fused_key = epilogue_key(epilogue)
    if prologue is not None or sums is not False:
        known, has_sums = settled_prologue(prologue), settled_sums(sums)
        if known is not None or has_sums:
            if has_sums:
                refuse_with_sums(len(arrays) > 2 or fused is not None, alpha, beta)
            if known is not None:
                names[2:2], arrays[2:2] = ("scale", "shift"), (known.scale, known.shift)
            if isinstance(w, KeptFilter):
                arrays[1] = w.w
            key = None if known is None else known.key
            return call(
                _FUSED, names, arrays, (stride, padding, dilation, groups, mode, layout, key, has_sums, fused_key),
                out, alpha, beta, handle, algorithm, workspace_limit, fused, results=3 if has_sums else 1,
            )  # fmt: skip
    arguments = (stride, padding, dilation, groups, mode, layout, fused_key)
    op, run = _CONV, None
    if isinstance(w, KeptFilter):
        op, run, arrays[1] = _CONV_KEPT, w.run, w.w
    return call(
        op, names, arrays, arguments, out, alpha, beta, handle, algorithm, workspace_limit, fused, run=run
    )


def conv_backward_data(
    dy: Any,
    w: Any,
    x_shape: Sequence[int],
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
    layout: str | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of the data) + beta * out, of the shape `x_shape`.

    It lies in memory as dy does, channels first or last.

    `dy`: (N, K, output space), `w`: (K, C/groups, taps) or a `KeptFilter` of one, `x_shape`: (N, C, space), all in the
    order of `layout`. The other arguments are those of the forward convolution. Raises as `conv` does.
    """
    arguments = (as_key(x_shape), stride, padding, dilation, groups, mode, layout)
    op, run = _BACKWARD_DATA, None
    if isinstance(w, KeptFilter):
        op, run, w = _BACKWARD_DATA_KEPT, w.run, w.w
    return call(
        op, ("dy", "w"), (dy, w), arguments, out, alpha, beta, handle, algorithm, workspace_limit, run=run
    )


def conv_backward_filter(
    x: Any,
    dy: Any,
    w_shape: Sequence[int],
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
    layout: str | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
    prologue: Prologue | None = None,
) -> Any:
    """Return dw = alpha * (the gradient of the filter) + beta * out, of the shape `w_shape`.

    It lies in memory as x does, channels first or last.

    `x`: (N, C, space), `dy`: (N, K, output space), `w_shape`: (K, C/groups, taps), all in the order of
    `layout`. The other arguments are those of the forward convolution, the `prologue` on x too; beta=1 accumulates.
    Raises as `conv` does.
    """
    arguments: tuple[Any, ...] = (as_key(w_shape), stride, padding, dilation, groups, mode, layout)
    known = settled_prologue(prologue)
    if known is not None:
        return call(
            _FUSED_FILTER, ("x", "dy", "scale", "shift"), (x, dy, known.scale, known.shift), (*arguments, known.key),
            out, alpha, beta, handle, algorithm, workspace_limit,
        )  # fmt: skip
    return call(
        _BACKWARD_FILTER,
        ("x", "dy"),
        (x, dy),
        arguments,
        out,
        alpha,
        beta,
        handle,
        algorithm,
        workspace_limit,
    )


def conv_backward_bias(
    dy: Any,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return db = alpha * (the sum of dy over all axes but the channels) + beta * out, of the shape (K,).

    `dy`: (N, K, output space), or (N, output space, K) for `layout="NHWC"`, with up to 3 axes of space.
    Raises InvalidShape and InvalidType.
    """
    return call(_BACKWARD_BIAS, ("dy",), (dy,), (layout,), out, alpha, beta, handle)


def conv_transpose(
    x: Any,
    w: Any,
    stride: PerAxis = 1,
    padding: Padding = 0,
    output_padding: PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
    layout: str | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return the transposed convolution of x by w: alpha * (what `conv_backward_data` computes) + beta * out.

    `x`: (N, C, space), `w`: (C, K/groups, taps) or a `KeptFilter` of one, result (N, K, output space), where an axis
    has the extent

        (extent - 1) * stride + dilation * (taps - 1) + 1 - before - after + output_padding

    and `output_padding`, less than the stride, picks among those that `conv` would take back to x's extent.
    The other arguments are those of `conv`. Raises as `conv` does.
    """
    arguments = (stride, padding, output_padding, dilation, groups, mode, layout)
    op, run = _TRANSPOSE, None
    if isinstance(w, KeptFilter):
        op, run, w = _TRANSPOSE_KEPT, w.run, w.w
    return call(
        op, ("x", "w"), (x, w), arguments, out, alpha, beta, handle, algorithm, workspace_limit, run=run
    )


def _make_conv(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    stride: PerAxis,
    padding: Padding,
    dilation: PerAxis,
    groups: int,
    mode: str,
    layout: str | None,
    fused_key: Hashable,
    fused: Fused = None,
) -> Recipe:
    x, w = (logical(tensor, layout) for tensor in inputs[:2])
    y = None if out is None else logical(out, layout)
    problem = Convolution.make(
        "fwd", x, w, stride, padding, dilation, groups, mode, layout=x.nearest_layout, y=y
    )
    axes = callers_axes(layout, len(x.shape))
    return Recipe(problem, fuse(fused, inputs[2:], problem.y, layout, problem.is_integer), axes)


def _make_gradient(
    direction: str,
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    result_shape: tuple[int, ...],
    stride: PerAxis,
    padding: Padding,
    dilation: PerAxis,
    groups: int,
    mode: str,
    layout: str | None,
) -> Recipe:
    """dx from dy and w, or dw from x and dy."""
    first, second = (logical(tensor, layout) for tensor in inputs)
    shape = logical_shape(result_shape, layout)
    result = packed_like(result_like(first), shape) if out is None else logical(out, layout)
    x, w, dy = (result, second, first) if direction == "bwd_data" else (first, result, second)
    problem = Convolution.make(direction, x, w, stride, padding, dilation, groups, mode, y=dy)
    return Recipe(problem, None, callers_axes(layout, len(first.shape)))


def _make_backward_bias(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, layout: str | None
) -> Recipe:
    return Recipe(BiasGradient.make(logical(inputs[0], layout), db=out))


def _make_transpose(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    stride: PerAxis,
    padding: Padding,
    output_padding: PerAxis,
    dilation: PerAxis,
    groups: int,
    mode: str,
    layout: str | None,
) -> Recipe:
    x, w = (logical(tensor, layout) for tensor in inputs)
    if len(x.shape) == len(w.shape) > 1 and x.shape[1] != w.shape[0]:
        raise InvalidShape(
            f"w has {w.shape[0]} input channels, x has {x.shape[1]}: they must be equal, "
            "w is (C, K/groups, taps)"
        )
    problem = Convolution.make_transposed(
        x,
        w,
        stride,
        padding,
        dilation,
        output_padding,
        groups,
        mode,
        layout=x.nearest_layout,
        x=None if out is None else logical(out, layout),
    )
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


_STRIDE, _DILATION = numbers("stride", 1), numbers("dilation", 1)
_LAST = (integer("groups", 1), word("mode", MODES), LAYOUT)
_FORWARD_TAKES = (_STRIDE, pads(), _DILATION, *_LAST, settled_before("epilogue"))
_DATA_TAKES = (extents("x_shape"), _STRIDE, pads(), _DILATION, *_LAST)
_FILTER_TAKES = (extents("w_shape"), _STRIDE, pads(), _DILATION, *_LAST)
_TRANSPOSE_TAKES = (_STRIDE, pads(), numbers("output_padding", 0), _DILATION, *_LAST)

_CONV = Op(_make_conv, _FORWARD_TAKES)
_CONV_KEPT = Op(_make_conv, _FORWARD_TAKES, keeps_filter=True)
_BACKWARD_DATA = Op(partial(_make_gradient, "bwd_data"), _DATA_TAKES)
_BACKWARD_DATA_KEPT = Op(partial(_make_gradient, "bwd_data"), _DATA_TAKES, keeps_filter=True)
_BACKWARD_FILTER = Op(partial(_make_gradient, "bwd_filter"), _FILTER_TAKES)
_FUSED = Op(
    make_forward,
    (*_FORWARD_TAKES[:-1], settled_before("prologue"), settled_before("sums"), settled_before("epilogue")),
)
_FUSED_FILTER = Op(make_backward_filter, (*_FILTER_TAKES, settled_before("prologue")))
_BACKWARD_BIAS = Op(_make_backward_bias, (LAYOUT,))
_TRANSPOSE = Op(_make_transpose, _TRANSPOSE_TAKES)
_TRANSPOSE_KEPT = Op(_make_transpose, _TRANSPOSE_TAKES, keeps_filter=True)
