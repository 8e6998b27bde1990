"""`torch.nn.functional.adaptive_avg_pool2d`, `adaptive_max_pool2d` and kin by ours, where all windows are alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.convolution import memory_format
from jitdnn.frameworks.torch.eager import Eager, EagerOperation, is_taken
from jitdnn.frameworks.torch.launch import Run
from jitdnn.frameworks.torch.pooling import average_gradient, forward_run
from jitdnn.ops.pooling import avg_pool, avg_pool_backward, max_pool, max_pool_backward

STOCK = {
    "avg": {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d},
    "max": {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d},
}


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    kind, window, _ = settings
    pool = avg_pool if kind == "avg" else max_pool
    return (pool(tensors[0], window, window, handle=handle),), ()


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    kind, window, _ = settings
    (dy,), (x,) = grads, tensors
    if kind == "avg":
        return (avg_pool_backward(dy, x.shape, window, window, handle=handle),)
    return (max_pool_backward(dy, x, outputs[0], window, window, handle=handle),)


def _stock(settings: Any, tensors: Any) -> Any:
    kind, window, sizes = settings
    pool: Any = STOCK[kind][len(window)]
    return (pool(tensors[0], sizes),)


_AVERAGE = Eager(_forward, _backward, _stock, needs_outputs=False, is_linear=True)
_MAXIMUM = Eager(_forward, _backward, _stock, repeats=True)


def _prepare(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Run | None:
    kind, window, _ = settings
    if kind != "avg":
        return None  # of maxima, what may be changed in place is kept
    return forward_run(handle, kind, tensors[0], window, window, 0, True, False, 1)


def _prepare_gradient(handle: Any, settings: Any, dy: Tensor, kept: Any) -> Run | None:
    _, window, _ = settings
    shape = (*dy.shape[:2], *(n * size for n, size in zip(dy.shape[2:], window, strict=True)))
    like = torch.empty(shape, dtype=dy.dtype, device="meta", memory_format=memory_format(dy))
    return average_gradient(handle, dy, like, window, window, 0, True, False)


def described(
    kind: str, space: int, input: Tensor, output_size: int | Sequence[int | None], return_indices: bool = False,
) -> tuple[EagerOperation, tuple[Tensor]] | None:  # fmt: skip
    """What runs calls of such a pool of so many axes with these arguments, and its operand."""
    given = [output_size] * space if isinstance(output_size, int) else list(output_size)
    if return_indices or input.dim() != space + 2 or len(given) != space or not is_taken(input):
        return None
    extents = input.shape[2:]
    sizes = [n if size is None else size for size, n in zip(given, extents, strict=True)]
    if not all(
        isinstance(size, int) and size > 0 and n % size == 0 for size, n in zip(sizes, extents, strict=True)
    ):
        return None  # windows of several sizes
    window = tuple(n // size for size, n in zip(sizes, extents, strict=True))
    eager = _AVERAGE if kind == "avg" else _MAXIMUM
    return EagerOperation(eager, (kind, window, tuple(sizes)), _prepare, _prepare_gradient), (input,)


DESCRIBED = {
    stock: partial(described, kind, space)
    for kind, by_space in STOCK.items()
    for space, stock in by_space.items()
}
