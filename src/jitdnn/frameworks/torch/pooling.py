"""`torch.ops.jitdnn.max_pool` and `avg_pool` with their gradients: 1 to 3 axes of space, floor and ceil."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from jitdnn.errors import JitdnnError
from jitdnn.frameworks.torch.convolution import memory_format
from jitdnn.frameworks.torch.fresh import fresh_like, without_data
from jitdnn.frameworks.torch.kinds import Computation, Operation, Ways
from jitdnn.frameworks.torch.launch import Run, descriptor, prepared
from jitdnn.frameworks.torch.outputs import changes_of
from jitdnn.frameworks.torch.registry import define, hooks_of_saved, in_order, is_graph_kept, is_transformed
from jitdnn.handle import Handle
from jitdnn.ops import pooling
from jitdnn.problems.pooling import Pooling, output_shape

aten = torch.ops.aten
_MAX = {1: aten.max_pool2d_with_indices, 2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}
_MAX_BACKWARD = {
    1: aten.max_pool2d_with_indices_backward,
    2: aten.max_pool2d_with_indices_backward,
    3: aten.max_pool3d_with_indices_backward,
}
_AVG = {1: aten.avg_pool2d, 2: aten.avg_pool2d, 3: aten.avg_pool3d}
_AVG_BACKWARD = {1: aten.avg_pool2d_backward, 2: aten.avg_pool2d_backward, 3: aten.avg_pool3d_backward}


def _as_image(x: Tensor, space: int) -> Tensor:
    """One axis of space as an image of one row, which torch's kernels take."""
    return x.unsqueeze(2) if space == 1 else x


def _as_given(y: Tensor, space: int) -> Tensor:
    return y.squeeze(2) if space == 1 else y


def _wide(value: Sequence[int], fill: int) -> list[int]:
    """The numbers of a window of one axis as those of an image of one row."""
    return [fill, *value] if len(value) == 1 else list(value)


def _rounding(is_ceil: bool) -> str:
    return "ceil" if is_ceil else "floor"


def _maker(
    x: Tensor, window: Any, stride: Any, padding: Any, dilation: Any, is_ceil: bool
) -> Callable[[], Callable[[], Tensor]]:
    """What gives what allocates results, when it is asked for the first time: it raises errors as ours do."""
    shape, dtype, device, order = x.shape, x.dtype, x.device, memory_format(x)

    @cache
    def made() -> Callable[[], Tensor]:
        found = output_shape(shape, window, stride, padding, _rounding(is_ceil), dilation)
        return fresh_like(torch.empty(found, dtype=dtype, device="meta", memory_format=order), device)

    return made


def forward_run(
    handle: Handle, mode: str, x: Tensor, window: Any, stride: Any, padding: Any, counts_padding: bool, is_ceil: bool,
    dilation: Any,
) -> Run | None:  # fmt: skip
    """What pools tensors of the form of x, in its order in memory; None where addresses do not do."""
    try:
        shape = output_shape(x.shape, window, stride, padding, _rounding(is_ceil), dilation)
    except JitdnnError:
        return None
    y = torch.empty(shape, dtype=x.dtype, device="meta", memory_format=memory_format(x))

    def make() -> Pooling:
        wide = descriptor(x)
        return Pooling.make(
            "fwd", mode, wide, window, stride, padding, counts_padding, _rounding(is_ceil), layout=wide.nearest_layout,
            y=descriptor(y), dilation=dilation,
        )  # fmt: skip

    return prepared(handle, make, (x,), (y,), x.device, True)


def average_gradient(
    handle: Handle, dy: Tensor, like: Tensor, window: Any, stride: Any, padding: Any, counts_padding: bool,
    is_ceil: bool,
) -> Run | None:  # fmt: skip
    """What gives the gradient, of the form of `like`, from that of an average; None where addresses do not do."""

    def make() -> Pooling:
        wide, narrow = descriptor(like), descriptor(dy)
        return Pooling.make(
            "bwd", "avg", wide, window, stride, padding, counts_padding, _rounding(is_ceil), y=narrow, dx=wide,
            dy=narrow,
        )  # fmt: skip

    return prepared(handle, make, (dy,), (like,), dy.device, True)


def _max_ways(
    handle: Handle, x: Tensor, window: Any, stride: Any, padding: Any, dilation: Any, is_ceil: bool
) -> Ways:
    space = x.dim() - 2
    form = memory_format(x)
    arguments = (_wide(window, 1), _wide(stride, 1), _wide(padding, 0), _wide(dilation, 1), is_ceil)

    def theirs(x: Tensor, *_: Any) -> Tensor:
        y: Tensor = _as_given(_MAX[space].default(_as_image(x, space), *arguments)[0], space)
        return y.contiguous(memory_format=form)

    made = _maker(x, window, stride, padding, dilation, is_ceil)
    run = forward_run(handle, "max", x, window, stride, padding, True, is_ceil, dilation)

    def ours(x: Tensor, *_: Any) -> Tensor:
        y = made()()
        pooling.max_pool(x, window, stride, padding, _rounding(is_ceil), dilation, out=y, handle=handle)
        return y

    return Ways(run or ours, theirs, what="of max pooling")


def _max_backward_ways(
    handle: Handle, dy: Tensor, x: Tensor, y: Tensor, window: Any, stride: Any, padding: Any, dilation: Any,
    is_ceil: bool,
) -> Ways:  # fmt: skip
    space = x.dim() - 2
    arguments = (_wide(window, 1), _wide(stride, 1), _wide(padding, 0), _wide(dilation, 1), is_ceil)

    made = fresh_like(x, x.device)
    like = without_data(x)

    def make() -> Pooling:
        return Pooling.make(
            "bwd", "max", descriptor(x), window, stride, padding, True, _rounding(is_ceil), y=descriptor(y),
            dx=descriptor(like), dy=descriptor(dy), dilation=dilation,
        )  # fmt: skip

    run = prepared(handle, make, (dy, x, y), (like,), dy.device, True)

    def theirs(dy: Tensor, x: Tensor, y: Tensor, *_: Any) -> Tensor:
        image = _as_image(x, space)
        indices = _MAX[space].default(image, *arguments)[1]
        dx = _MAX_BACKWARD[space].default(_as_image(dy, space), image, *arguments, indices)
        return _as_given(dx, space).contiguous(memory_format=memory_format(x))

    def ours(dy: Tensor, x: Tensor, y: Tensor, *_: Any) -> Tensor:
        dx = made()
        pooling.max_pool_backward(
            dy, x, y, window, stride, padding, _rounding(is_ceil), dilation, out=dx, handle=handle
        )
        return dx

    return Ways(run or ours, theirs, what="of max pooling")


def _avg_ways(
    handle: Handle, x: Tensor, window: Any, stride: Any, padding: Any, is_ceil: bool, counts_padding: bool
) -> Ways:
    space = x.dim() - 2
    form = memory_format(x)
    arguments = (_wide(window, 1), _wide(stride, 1), _wide(padding, 0), is_ceil, counts_padding)

    def theirs(x: Tensor, *_: Any) -> Tensor:
        y: Tensor = _as_given(_AVG[space].default(_as_image(x, space), *arguments), space)
        return y.contiguous(memory_format=form)

    made = _maker(x, window, stride, padding, 1, is_ceil)
    run = forward_run(handle, "avg", x, window, stride, padding, counts_padding, is_ceil, 1)

    def ours(x: Tensor, *_: Any) -> Tensor:
        y = made()()
        pooling.avg_pool(x, window, stride, padding, counts_padding, _rounding(is_ceil), out=y, handle=handle)
        return y

    return Ways(run or ours, theirs, what="of average pooling")


def _avg_backward_ways(
    handle: Handle, dy: Tensor, x_shape: Any, window: Any, stride: Any, padding: Any, is_ceil: bool,
    counts_padding: bool,
) -> Ways:  # fmt: skip
    space = dy.dim() - 2
    arguments = (_wide(window, 1), _wide(stride, 1), _wide(padding, 0), is_ceil, counts_padding, None)
    shape, form = tuple(x_shape), memory_format(dy)
    like = torch.empty(shape, dtype=dy.dtype, device="meta", memory_format=form)
    made = fresh_like(like, dy.device)
    run = average_gradient(handle, dy, like, window, stride, padding, counts_padding, is_ceil)

    def theirs(dy: Tensor, *_: Any) -> Tensor:
        x = dy.new_empty(shape)
        dx: Tensor = _AVG_BACKWARD[space].default(_as_image(dy, space), _as_image(x, space), *arguments)
        return _as_given(dx, space).contiguous(memory_format=form)

    def ours(dy: Tensor, *_: Any) -> Tensor:
        dx = made()
        pooling.avg_pool_backward(
            dy, shape, window, stride, padding, counts_padding, _rounding(is_ceil), out=dx, handle=handle
        )
        return dx

    return Ways(run or ours, theirs, what="of average pooling")


_max_forward = Computation("forward", _max_ways, 6)
_max_gradient = Computation("data", _max_backward_ways, 8)
_avg_forward = Computation("forward", _avg_ways, 6)
_avg_gradient = Computation("data", _avg_backward_ways, 7)


def _fake_pool(x: Tensor, aten_pool: Any, arguments: tuple[Any, ...]) -> Tensor:
    space = x.dim() - 2
    found = aten_pool[space].default(_as_image(x, space), *arguments)
    y = _as_given(found[0] if isinstance(found, tuple) else found, space)
    return torch.empty(y.shape, dtype=x.dtype, device=x.device, memory_format=memory_format(x))


def _max_fake(
    x: Tensor, window: Any, stride: Any, padding: Any, dilation: Any, is_ceil: bool, options: str = ""
) -> Tensor:
    arguments = (_wide(window, 1), _wide(stride, 1), _wide(padding, 0), _wide(dilation, 1), is_ceil)
    return _fake_pool(x, _MAX, arguments)


def _max_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.arguments, ctx.options = inputs
    ctx.changes, output = changes_of(output)
    ctx.save_for_backward(x, output)


def _max_keep(ctx: Any, x: Tensor, output: Tensor, _: Any) -> None:
    """The same of calls that nobody looks at but hooks of what is saved."""
    if hooks_of_saved(False) is not None:
        ctx.changes, output = changes_of(output)
        ctx.save_for_backward(x, output)
        return
    ctx.save_for_backward(x)
    ctx.result = counter = output.detach()  # counts changes with the result
    ctx.version = counter._version


def _max_kept(ctx: Any, kept: Sequence[Tensor], again: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The input and the result of a pool, which is computed again where it was changed in place."""
    if len(kept) == 2:
        x, y = kept
        return x, again(x) if ctx.changes is not None and ctx.changes.are_there else y
    (x,) = kept
    result: Tensor | None = ctx.result
    if result is None or result._version != ctx.version:
        return x, again(x)
    if not is_graph_kept():
        ctx.result = None  # as what is saved goes
    return x, result


def _max_derivative(
    ctx: Any, dy: Tensor, kept: Sequence[Tensor], arguments: Sequence[Any], options: str
) -> tuple[Tensor]:
    x, y = kept
    return (max_pool_backward(_packed(dy, y), x, y, *arguments, options),)


def _max_gradients(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    def again(x: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = max_pool(x.detach(), *ctx.arguments, ctx.options)
        return found

    kept = _max_kept(ctx, ctx.saved_tensors, again)
    return (*_max_derivative(ctx, dy, kept, ctx.arguments, ctx.options), *[None] * 6)


def _packed(dy: Tensor, like: Tensor) -> Tensor:
    """A gradient that is no view of fewer elements, in the order of the result."""
    return dy if dy.stride() == like.stride() else in_order(dy, memory_format(like))


def _avg_fake(
    x: Tensor, window: Any, stride: Any, padding: Any, is_ceil: bool, counts_padding: bool, options: str = ""
) -> Tensor:
    return _fake_pool(
        x, _AVG, (_wide(window, 1), _wide(stride, 1), _wide(padding, 0), is_ceil, counts_padding)
    )


def _avg_keep(ctx: Any, x: Tensor, output: Tensor, _: Any) -> None:
    ctx.form = memory_format(x)


def _avg_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *arguments, ctx.options = inputs
    ctx.behind = [*x.shape], *arguments
    _avg_keep(ctx, x, output, None)


def _avg_derivative(
    ctx: Any, dy: Tensor, kept: Sequence[Tensor], behind: Sequence[Any], options: str
) -> tuple[Tensor]:
    return (avg_pool_backward(in_order(dy, ctx.form), *behind, options),)


def _avg_gradients(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return (*_avg_derivative(ctx, dy, ctx.saved_tensors, ctx.behind, ctx.options), *[None] * 6)


def _max_double_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, x, _, *ctx.rest = inputs
    ctx.save_for_backward(x)


def _max_double_gradients(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
    """The gradient of a gradient: what was spread to the maxima is gathered from them."""
    (x,) = ctx.saved_tensors
    space, (window, stride, padding, dilation, is_ceil, _) = x.dim() - 2, ctx.rest
    arguments = (_wide(window, 1), _wide(stride, 1), _wide(padding, 0), _wide(dilation, 1), is_ceil)
    indices = _as_given(_MAX[space].default(_as_image(x, space), *arguments)[1], space)
    ddy = ddx.reshape(*ddx.shape[:2], prod(ddx.shape[2:])).gather(2, indices.flatten(2)).view(indices.shape)
    return (ddy, *[None] * 8)


def _avg_double_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, *ctx.rest = inputs


def _avg_double_gradients(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
    if not is_transformed():  # whose tensors cannot be asked for the order of their axes
        ddx = ddx.contiguous(memory_format=memory_format(ddx))
    return (avg_pool(ddx, *ctx.rest), *[None] * 7)


_WINDOW = "int[] window, int[] stride, int[] padding"
max_pool_backward = define(
    f'max_pool_backward(Tensor dy, Tensor x, Tensor y, {_WINDOW}, int[] dilation, bool is_ceil, str options="") '
    "-> Tensor",
    _max_gradient.kernel,
    lambda dy, x, y, *_: torch.empty_like(x),
    _max_double_save,
    _max_double_gradients,
)
max_pool = define(
    f'max_pool(Tensor x, {_WINDOW}, int[] dilation, bool is_ceil, str options="") -> Tensor',
    _max_forward.kernel,
    _max_fake,
    _max_save,
    _max_gradients,
)
avg_pool_backward = define(
    f'avg_pool_backward(Tensor dy, SymInt[] x_shape, {_WINDOW}, bool is_ceil, bool counts_padding, str options="") '
    "-> Tensor",
    _avg_gradient.kernel,
    lambda dy, x_shape, *_: torch.empty(
        x_shape, dtype=dy.dtype, device=dy.device, memory_format=memory_format(dy)
    ),
    _avg_double_save,
    _avg_double_gradients,
)
avg_pool = define(
    f'avg_pool(Tensor x, {_WINDOW}, bool is_ceil, bool counts_padding, str options="") -> Tensor',
    _avg_forward.kernel,
    _avg_fake,
    _avg_save,
    _avg_gradients,
)
MAX = Operation(
    _max_forward, _max_gradient, _max_keep, _max_derivative, lambda _, *arguments: arguments, kept=_max_kept
)
AVERAGE = Operation(
    _avg_forward, _avg_gradient, _avg_keep, _avg_derivative, lambda x, *arguments: (list(x.shape), *arguments)
)
