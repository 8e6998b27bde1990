"""What `bench --memory-bound --target cuda` measures: our call and PyTorch's over the same tensors.

Bytes are those that must be moved with a cache that holds a row or a window but no whole tensor, every tensor once: but
for batch normalization, where statistics need all of x before any of y is known, so that inputs are read twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jitdnn as jd

LAYOUTS = ("nchw", "nhwc")
ROWS = "rows"  # the layout of matrices
CHANNELS, SPACE = 256, 64
EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Case:
    """One operation: `ours` writes to memory that is there already, `theirs` gets `inputs`.

    `truth` makes the expected results of ours, where what PyTorch computes is no guide. `is_captured`: whether a graph
    can hold our call, which must not get anything new from the host."""

    inputs: tuple[Any, ...]
    ours: Callable[[], Any]
    theirs: Callable[..., Any]
    bytes: int
    truth: Callable[..., Any] | None = None
    is_captured: bool = True


Make = Callable[[], Case]


def cases(
    torch: Any, dtype: Any, nbytes: int, layouts: Sequence[str], device: str, only: Sequence[str] = ()
) -> Iterator[tuple[str, str, Make]]:
    """Name, memory order and maker of all operations, or of those with one of `only` in their names, over tensors of
    `nbytes` bytes. To be made one after the other, so that few tensors are held at once."""
    for layout in (*layouts, ROWS):
        tensors = _Tensors(torch, dtype, nbytes, device, layout)
        for name, make in _row_cases(tensors) if layout == ROWS else _image_cases(tensors):
            if not only or any(part in name for part in only):
                yield name, layout, make


class _Tensors:
    """Makes tensors of one type, size and memory order."""

    def __init__(self, torch: Any, dtype: Any, nbytes: int, device: str, layout: str) -> None:
        self.torch, self.dtype, self.nbytes, self.device, self.layout = torch, dtype, nbytes, device, layout
        self.elements = nbytes // dtype.itemsize
        self.random = torch.Generator(device=device).manual_seed(len(layout) + self.elements)
        self.exact = torch.float64 if dtype is torch.float64 else torch.float32  # of statistics

    def image(self, shrink: int = 1) -> Any:
        """Images of 256 channels, of the size asked for, or with fewer pixels by `shrink` along each axis."""
        count = max(1, self.elements // (CHANNELS * SPACE * SPACE))
        made = self.torch.empty(
            count, CHANNELS, SPACE // shrink, SPACE // shrink, dtype=self.dtype, device=self.device
        )
        return self.ordered(made).normal_(generator=self.random)

    def ordered(self, tensor: Any) -> Any:
        form = self.torch.channels_last if self.layout == "nhwc" else self.torch.contiguous_format
        return tensor.contiguous(memory_format=form)

    def matrix(self, columns: int) -> Any:
        rows = max(1, self.elements // columns)
        made = self.torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        return made.normal_(generator=self.random)

    def vector(self, count: int, dtype: Any = None) -> Any:
        made = self.torch.empty(count, dtype=dtype or self.dtype, device=self.device)
        return made.uniform_(0.5, 1.5, generator=self.random)

    def classes(self, rows: int, count: int) -> Any:
        return self.torch.randint(0, count, (rows,), device=self.device, generator=self.random)


def _image_cases(t: _Tensors) -> Iterator[tuple[str, Make]]:
    yield "relu", partial(_relu, t)
    yield "relu backward", partial(_relu_backward, t)
    yield "add", partial(_add, t)
    yield "add by channel", partial(_add_by_channel, t)
    yield "other layout", partial(_other_layout, t)
    yield "dropout", partial(_dropout, t)
    yield "sum by channel", partial(_sum_by_channel, t)
    yield "batch norm training", partial(_batch_norm, t)
    yield "batch norm backward", partial(_batch_norm_backward, t)
    for window, stride, padding in ((2, 2, 0), (3, 2, 1)):
        name = f"max pool {window} by {stride}"
        yield name, partial(_max_pool, t, window, stride, padding)
        yield f"{name} backward", partial(_max_pool_backward, t, window, stride, padding)
    yield "average pool 2 by 2", partial(_average_pool, t)
    yield "average pool 2 by 2 backward", partial(_average_pool_backward, t)
    yield "global average pool", partial(_global_average_pool, t)


def _row_cases(t: _Tensors) -> Iterator[tuple[str, Make]]:
    for columns in (1000, 4096, 32768):
        yield f"softmax {columns}", partial(_softmax, t, columns)
        yield f"softmax backward {columns}", partial(_softmax_backward, t, columns)
    for columns in (1024, 8192):
        yield f"layer norm {columns}", partial(_layer_norm, t, columns)
        yield f"layer norm backward {columns}", partial(_layer_norm_backward, t, columns)
    for columns in (1000, 32768):
        yield f"cross entropy {columns}", partial(_cross_entropy, t, columns)
        yield f"cross entropy backward {columns}", partial(_cross_entropy_backward, t, columns)
    yield "sum over rows", partial(_sum, t, 0)
    yield "sum over columns", partial(_sum, t, 1)


def _relu(t: _Tensors) -> Case:
    x = t.image()
    y = t.torch.empty_like(x)
    return Case((x,), lambda: jd.relu(x, out=y), t.torch.relu, 2 * x.nbytes)


def _relu_backward(t: _Tensors) -> Case:
    x, dy = t.image(), t.image()
    dx = t.torch.empty_like(x)
    theirs = t.torch.ops.aten.threshold_backward
    return Case((dy, x, 0), lambda: jd.relu_backward(dy, x, out=dx), theirs, 3 * x.nbytes)


def _add(t: _Tensors) -> Case:
    a, b = t.image(), t.image()
    y = t.torch.empty_like(a)
    return Case((a, b), lambda: jd.add(a, b, out=y), t.torch.add, 3 * a.nbytes)


def _add_by_channel(t: _Tensors) -> Case:
    x, bias = t.image(), t.vector(CHANNELS).reshape(CHANNELS, 1, 1)
    y = t.torch.empty_like(x)
    return Case((x, bias), lambda: jd.add(x, bias, out=y), t.torch.add, 2 * x.nbytes)


def _other_layout(t: _Tensors) -> Case:
    x = t.image()
    form = t.torch.contiguous_format if t.layout == "nhwc" else t.torch.channels_last
    y = t.torch.empty_like(x, memory_format=form)
    return Case((x,), lambda: jd.transform(x, out=y),
        lambda x: x.contiguous(memory_format=form), 2 * x.nbytes,
    )  # fmt: skip


def _dropout(t: _Tensors) -> Case:
    x, state = t.image(), jd.DropoutState(7)
    y = t.torch.empty_like(x)

    def truth(y: Any) -> Any:
        """Twice what is kept, and about half of it: NaN otherwise."""
        kept = y != 0
        share = float(kept.double().mean())
        return t.torch.where(kept, 2 * x, 0) * (1.0 if abs(share - 0.5) < 0.01 else float("nan"))

    return Case((x,), lambda: jd.dropout(x, 0.5, state, out=y)[0],
        lambda x: t.torch.nn.functional.dropout(x, 0.5, True), 2 * x.nbytes, truth,
        is_captured=False,  # each call has another state
    )  # fmt: skip


def _sum_by_channel(t: _Tensors) -> Case:
    x = t.image()
    y = t.vector(CHANNELS)
    return Case(
        (x,),
        lambda: jd.reduce(x, "add", (0, 2, 3), out=y),
        lambda x: x.sum((0, 2, 3)),
        x.nbytes,
    )


def _batch_norm(t: _Tensors) -> Case:
    x, weight, bias, mean, var = t.image(), *(t.vector(CHANNELS, t.exact) for _ in range(4))
    out = (t.torch.empty_like(x), t.torch.empty_like(mean), t.torch.empty_like(mean))
    states = mean.clone(), var.clone()
    return Case((x, weight, bias, mean, var, True, 0.1, EPSILON),
        lambda: jd.batch_norm(x, weight, bias, *states, epsilon=EPSILON, save=True, out=out),
        t.torch.ops.aten.native_batch_norm, 3 * x.nbytes,
    )  # fmt: skip


def _batch_norm_backward(t: _Tensors) -> Case:
    x, dy, weight = t.image(), t.image(), t.vector(CHANNELS, t.exact)
    wide = x.float() if x.dtype != t.exact else x
    mean = wide.mean((0, 2, 3))
    rstd = (wide.var((0, 2, 3), unbiased=False) + EPSILON).rsqrt()
    out = (t.torch.empty_like(x), t.torch.empty_like(weight), t.torch.empty_like(weight))
    wanted = [True, True, True]
    return Case((dy, x, weight, None, None, mean, rstd, True, EPSILON, wanted),
        lambda: jd.batch_norm_backward(dy, x, weight, mean, rstd, wants_bias=True, out=out),
        t.torch.ops.aten.native_batch_norm_backward, 5 * x.nbytes,
    )  # fmt: skip


def _max_pool(t: _Tensors, window: int, stride: int, padding: int) -> Case:
    x, y = t.image(), t.image(stride)
    return Case((x, window, stride, padding), lambda: jd.max_pool(x, window, stride, padding, out=y),
        t.torch.nn.functional.max_pool2d, x.nbytes + y.nbytes,
    )  # fmt: skip


def _max_pool_backward(t: _Tensors, window: int, stride: int, padding: int) -> Case:
    x, dy = t.image(), t.image(stride)
    y, indices = t.torch.nn.functional.max_pool2d(x, window, stride, padding, return_indices=True)
    dx = t.torch.empty_like(x)
    each = [[number, number] for number in (window, stride, padding, 1)]
    return Case((dy, x, *each, False, indices),
        lambda: jd.max_pool_backward(dy, x, y, window, stride, padding, out=dx),
        t.torch.ops.aten.max_pool2d_with_indices_backward, 2 * x.nbytes + 2 * y.nbytes,
    )  # fmt: skip


def _average_pool(t: _Tensors) -> Case:
    x, y = t.image(), t.image(2)
    theirs = t.torch.nn.functional.avg_pool2d
    return Case((x, 2), lambda: jd.avg_pool(x, 2, out=y), theirs, x.nbytes + y.nbytes)


def _average_pool_backward(t: _Tensors) -> Case:
    dy, dx = t.image(2), t.image()
    theirs = t.torch.ops.aten.avg_pool2d_backward
    return Case((dy, t.image(), [2, 2], [2, 2], [0, 0], False, True, None),
        lambda: jd.avg_pool_backward(dy, dx.shape, 2, out=dx), theirs, dx.nbytes + dy.nbytes,
    )  # fmt: skip


def _global_average_pool(t: _Tensors) -> Case:
    x = t.image()
    y = t.ordered(t.torch.empty(*x.shape[:2], 1, 1, dtype=x.dtype, device=x.device))
    return Case((x, 1), lambda: jd.global_avg_pool(x, out=y),
        t.torch.nn.functional.adaptive_avg_pool2d, x.nbytes,
    )  # fmt: skip


def _softmax(t: _Tensors, columns: int) -> Case:
    x = t.matrix(columns)
    y = t.torch.empty_like(x)
    return Case((x, 1), lambda: jd.softmax(x, out=y), t.torch.softmax, 2 * x.nbytes)


def _softmax_backward(t: _Tensors, columns: int) -> Case:
    dy, y = t.matrix(columns), t.matrix(columns).softmax(1)
    dx = t.torch.empty_like(y)
    theirs = t.torch.ops.aten._softmax_backward_data
    return Case((dy, y), lambda: jd.softmax_backward(dy, y, out=dx),
        lambda dy, y: theirs(dy, y, 1, y.dtype), 3 * y.nbytes,
    )  # fmt: skip


def _layer_norm(t: _Tensors, columns: int) -> Case:
    x, weight, bias = t.matrix(columns), t.vector(columns), t.vector(columns)
    statistics = (t.vector(x.shape[0], t.exact).reshape(-1, 1) for _ in range(2))
    out = (t.torch.empty_like(x), *statistics)
    return Case((x, [columns], weight, bias, EPSILON),
        lambda: jd.layer_norm(x, weight, bias, epsilon=EPSILON, save=True, out=out),
        t.torch.ops.aten.native_layer_norm, 2 * x.nbytes,
    )  # fmt: skip


def _layer_norm_backward(t: _Tensors, columns: int) -> Case:
    x, dy, weight, bias = t.matrix(columns), t.matrix(columns), t.vector(columns), t.vector(columns)
    _, mean, rstd = t.torch.ops.aten.native_layer_norm(x, [columns], weight, bias, EPSILON)
    # PyTorch keeps those of short types in f32 on a GPU, and in the type itself on the CPU
    saved = mean.to(t.exact), rstd.to(t.exact)
    out = (t.torch.empty_like(x), t.torch.empty_like(weight), t.torch.empty_like(weight))
    return Case((dy, x, [columns], mean, rstd, weight, bias, [True, True, True]),
        lambda: jd.layer_norm_backward(dy, x, weight, *saved, wants_bias=True, out=out),
        t.torch.ops.aten.native_layer_norm_backward, 3 * x.nbytes,
    )  # fmt: skip


def _cross_entropy(t: _Tensors, columns: int) -> Case:
    x = t.matrix(columns)
    target, loss = t.classes(x.shape[0], columns), t.vector(1)
    return Case((x, target), lambda: jd.cross_entropy(x, target, out=loss),
        t.torch.nn.functional.cross_entropy, x.nbytes,
    )  # fmt: skip


def _cross_entropy_backward(t: _Tensors, columns: int) -> Case:
    """PyTorch's own two steps, over the logarithms of the softmax that its forward call keeps."""
    x = t.matrix(columns)
    target, loss, aten = t.classes(x.shape[0], columns), t.vector(1), t.torch.ops.aten
    dx = t.torch.empty_like(x)
    log = x.log_softmax(1)
    lse, total = (
        x.to(t.exact).logsumexp(1),
        t.torch.full((1,), float(x.shape[0]), dtype=t.exact, device=x.device),
    )

    def theirs(loss: Any, x: Any, log: Any) -> Any:
        count = t.torch.full((), float(log.shape[0]), dtype=log.dtype, device=log.device)
        each = aten.nll_loss_backward(loss[0], log, target, None, 1, -100, count)
        return aten._log_softmax_backward_data(each, log, 1, log.dtype)

    def truth(dx: Any) -> Any:
        wide = x.float() if x.dtype != t.exact else x.double()
        one = t.torch.zeros_like(wide).scatter_(1, target[:, None], 1.0)
        return (wide.softmax(1) - one) * (loss.to(wide.dtype) / x.shape[0])

    return Case((loss, x, log),
        lambda: jd.cross_entropy_backward(loss, x, target, lse, total, out=dx), theirs, 2 * x.nbytes, truth,
    )  # fmt: skip


def _sum(t: _Tensors, axis: int) -> Case:
    x = t.matrix(4096)
    y = t.vector(x.shape[1 - axis])
    return Case((x,), lambda: jd.reduce(x, "add", axis, out=y), lambda x: x.sum(axis), x.nbytes)
