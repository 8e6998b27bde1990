"""Affine grids, images sampled at the places of a grid, and the gradients of both, over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import Argument, as_key, check_choice, extents, settled_before, word, yes
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.handle import Handle
from jitdnn.ops.call import (
    Op,
    Recipe,
    call,
    each_out,
    packed_like,
    same_order,
    scale_factor,
    target_of,
)
from jitdnn.problems.spatial_transformer import MODES, PADDINGS, AffineGrid, GridSample, check_grid
from jitdnn.tensor import TensorDescriptor, borrow


def affine_grid(
    theta: Any,
    size: Sequence[int],
    align_corners: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return grid[n, space..., :] = alpha * theta[n] (x, y, 1) + beta * out, a place for each element of an image.

    `theta`: (N, 2, 3) for images of two axes, (N, 3, 4) for three, of a real dtype. `size`: the extents of the image
    behind N and C. The grid has the shape (N, *size, 2 or 3); its numbers (x, y) or (x, y, z) are those that
    `grid_sample` takes, with the same `align_corners`. Raises InvalidShape, InvalidType, InvalidArgument.
    """
    return call(_AFFINE, ("theta",), (theta,), (as_key(size), align_corners), out, alpha, beta, handle)


def affine_grid_backward(
    dgrid: Any,
    align_corners: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dtheta = alpha * (the gradient of `affine_grid`) + beta * out; raises as that does."""
    return call(_AFFINE_BACKWARD, ("dgrid",), (dgrid,), (align_corners,), out, alpha, beta, handle)


def grid_sample(
    x: Any,
    grid: Any,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y[n, c, o...] = alpha * (x[n, c] at the place grid[n, o...]) + beta * out.

    `x`: (N, C, H, W) or (N, C, D, H, W); `grid`: (N, output space, 2 or 3), of x's dtype, places (x, y) or (x, y, z)
    between -1 and 1. `mode`: "linear" (also called "bilinear") or "nearest". `padding`: what is outside of the image,
    "zeros", "border" or "reflection". `align_corners`: -1 and 1 are the centres of the outermost elements, as in
    cuDNN, and not their borders. Any number is a legal place; NaN is outside.

    Raises InvalidShape, InvalidType, and InvalidArgument for an unknown name.
    """
    arguments = (mode, padding, align_corners)
    return call(_SAMPLE, ("x", "grid"), (x, grid), arguments, out, alpha, beta, handle)


def grid_sample_backward(
    dy: Any,
    x: Any,
    grid: Any,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: tuple[Any, Any] | None = None,
    handle: Handle | None = None,
) -> tuple[Any, Any]:
    """Return (dx, dgrid) = alpha * (the gradients of `grid_sample`) + beta * out.

    `out`: None, or a tuple of two arrays, each of which may be None. The arguments are those of the forward call.
    Both gradients are the same for any number of threads. The one by the grid is 0 for "nearest".
    """
    dx, dgrid = each_out(out, 2)
    names = (mode, padding, align_corners)
    shape = borrow(x, False, "x").descriptor.shape
    if dx is not None:  # nothing is written before all is known to be right
        if dgrid is not None:
            given = zip(("dy", "x", "grid"), (dy, x, grid), strict=True)
            _make_by_grid(
                [borrow(a, False, name).descriptor for name, a in given], target_of(dgrid).descriptor, *names
            )
        elif scale_factor("beta", beta) != 0.0:
            raise InvalidArgument(
                f"beta is {beta} and no dgrid is given: beta scales what it holds before the call"
            )
    image = call(_BY_IMAGE, ("dy", "grid"), (dy, grid), (shape, *names), dx, alpha, beta, handle)
    places = call(_BY_GRID, ("dy", "x", "grid"), (dy, x, grid), names, dgrid, alpha, beta, handle)
    return image, places


def _make_affine(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    size: tuple[int, ...],
    align_corners: bool,
) -> Recipe:
    (theta,) = inputs
    problem = AffineGrid.make("fwd", (theta.shape[0], *size), align_corners, theta.dtype, theta, out)
    return Recipe(problem)


def _make_affine_backward(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, align_corners: bool
) -> Recipe:
    (dgrid,) = inputs
    if len(dgrid.shape) < 3:
        raise InvalidShape(f"dgrid has shape {dgrid.shape}: it must be (N, H, W, 2) or (N, D, H, W, 3)")
    return Recipe(AffineGrid.make("bwd", dgrid.shape[:-1], align_corners, dgrid.dtype, out, dgrid))


def _outputs_of(x: TensorDescriptor, grid: TensorDescriptor) -> tuple[int, ...]:
    check_grid(grid)
    return (*x.shape[:2], *grid.shape[1:-1])


def _make_sample(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    padding: str,
    align_corners: bool,
) -> Recipe:
    x, grid = inputs
    y = out or packed_like(x, _outputs_of(x, grid))
    return Recipe(GridSample("fwd", x, grid, y, mode, padding, align_corners))


def _make_by_image(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    shape: tuple[int, ...],
    mode: str,
    padding: str,
    align_corners: bool,
) -> Recipe:
    dy, grid = inputs
    dx = out or packed_like(dy, shape)
    return Recipe(GridSample("bwd_data", dx, grid, dy, mode, padding, align_corners))


def _make_by_grid(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    padding: str,
    align_corners: bool,
) -> Recipe:
    dy, x, grid = inputs
    return Recipe(GridSample("bwd_grid", x, grid, dy, mode, padding, align_corners, out or same_order(grid)))


def _mode(value: Any, name: str) -> str:
    value = "linear" if isinstance(value, str) and value == "bilinear" else value
    check_choice(value, MODES, name)
    return str(value)


_CORNERS = yes("align_corners")
_HOW = (Argument("mode", _mode), word("padding", PADDINGS), _CORNERS)

_AFFINE = Op(_make_affine, (extents("size"), _CORNERS))
_AFFINE_BACKWARD = Op(_make_affine_backward, (_CORNERS,))
_SAMPLE = Op(_make_sample, _HOW)
_BY_IMAGE = Op(_make_by_image, (settled_before("x_shape"), *_HOW))
_BY_GRID = Op(_make_by_grid, _HOW)
