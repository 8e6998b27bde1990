"""Local response normalization and its gradient over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import LAYOUT, integer, real, word
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, callers_axes, logical, same_order
from jitdnn.problems.lrn import LRN, MODES, MOST_TAPS
from jitdnn.tensor import TensorDescriptor


def lrn(
    x: Any,
    size: int = 5,
    lrn_alpha: float = 1e-4,
    lrn_beta: float = 0.75,
    k: float = 2.0,
    mode: str = "across",
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return alpha * x * s^(-lrn_beta) + beta * out, with s = k + lrn_alpha / elements * (sum of squares around).

    `x`: (N, C, space) with 1 to 3 axes of space, of a real type; `layout="NHWC"` takes and gives (N, space, C).
    `mode` "across": the window of `size` elements lies along the channels, from (size - 1) // 2 before an element
    on; "within": it lies along all axes of space. `elements` is their number in a whole window (size, or size to
    the power of the axes of space): zeros outside of the tensor count. The result lies in memory as x does.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    arguments = (mode, size, lrn_alpha, lrn_beta, k, layout)
    return call(_FORWARD, ("x",), (x,), arguments, out, alpha, beta, handle)


def lrn_backward(
    dy: Any,
    x: Any,
    size: int = 5,
    lrn_alpha: float = 1e-4,
    lrn_beta: float = 0.75,
    k: float = 2.0,
    mode: str = "across",
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of `lrn`) + beta * out, in dy's order in memory.

    `dy` and `x` are of the shape of x; the other arguments are those of the forward call. Raises as `lrn` does.
    """
    arguments = (mode, size, lrn_alpha, lrn_beta, k, layout)
    return call(_BACKWARD, ("dy", "x"), (dy, x), arguments, out, alpha, beta, handle)


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    layout: str | None,
) -> Recipe:
    x = logical(inputs[0], layout)
    y = same_order(x) if out is None else logical(out, layout)
    problem = LRN.make("fwd", mode, x, size, alpha, beta, k, y=y)
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    layout: str | None,
) -> Recipe:
    dy, x = (logical(tensor, layout) for tensor in inputs)
    dx = same_order(dy) if out is None else logical(out, layout)
    problem = LRN.make("bwd", mode, x, size, alpha, beta, k, dx=dx, dy=dy)
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


_TAKES = (
    word("mode", MODES),
    integer("size", 1, MOST_TAPS),
    real("lrn_alpha"),
    real("lrn_beta"),
    real("k"),
    LAYOUT,
)

_FORWARD = Op(_make_forward, _TAKES)
_BACKWARD = Op(_make_backward, _TAKES)
