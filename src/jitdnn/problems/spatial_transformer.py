"""The two halves of a spatial transformer (Jaderberg et al. 2015): a grid of places from an affine map, and the image
sampled at the places of a grid; with their gradients.

A grid holds one place for each output: numbers (x, y) or (x, y, z), the last axis of the image first, in which -1 and 1
are the ends of the image: the centres of the outermost elements with `align_corners`, else their outer borders.

    u = (g + 1) / 2 * (extent - 1)            with align_corners
    u = ((g + 1) * extent - 1) / 2            without

u is in elements. Places outside of the image are zeros ("zeros"), or u is moved to the nearest element ("border"), or
mirrored at the ends until it is inside ("reflection"). A place that is not a number counts as outside, or as 0. The
value there is a weighted sum over the neighbours along all axes ("linear"), or the nearest element, ties to even
("nearest").
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidShape
from jitdnn.problems.directed import DirectedProblem
from jitdnn.problems.problem import Operand, Reals, as_descriptor, check_extents
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor

MODES = ("linear", "nearest")
PADDINGS = ("zeros", "border", "reflection")
SAMPLE_DIRECTIONS = ("fwd", "bwd_data", "bwd_grid")
GRID_DIRECTIONS = ("fwd", "bwd")

_Places = npt.NDArray[np.int64]
_LETTERS = ("d", "h", "w")


@dataclass(frozen=True)
class AffineGrid(DirectedProblem, kinds=("affine_grid_fwd", "affine_grid_bwd")):
    """grid[n, space..., :] = theta[n] (x, y, 1) for the place (x, y) of each element of an image; or dtheta from dgrid.

    `theta`: (N, 2, 3) for two axes of space, (N, 3, 4) for three; `grid`: (N, space..., 2 or 3). For "bwd" they
    describe the gradients. An axis with one element is at 0.

    Raises InvalidShape for other shapes, InvalidType.
    """

    direction: str
    theta: TensorDescriptor
    grid: TensorDescriptor
    align_corners: bool = False

    def __post_init__(self) -> None:
        check_choice(self.direction, GRID_DIRECTIONS, "direction")
        rank = check_grid(self.grid)
        wanted = (self.grid.shape[0], rank, rank + 1)
        if self.theta.shape != wanted:
            raise InvalidShape(
                f"theta has shape {self.theta.shape}: a grid of shape {self.grid.shape} needs {wanted}"
            )
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        shape: Sequence[int],
        align_corners: bool = False,
        dtype: str = "f32",
        theta: TensorDescriptor | None = None,
        grid: TensorDescriptor | None = None,
    ) -> Self:
        """The problem from the shape of the grid without its last axis: (N, space...)."""
        rank = len(shape) - 1
        grid = grid or as_descriptor((*shape, rank), dtype, "nchw")
        return cls(
            direction, theta or as_descriptor((shape[0], rank, rank + 1), dtype, "nchw"), grid, align_corners
        )

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(theta, grid) forward, (dgrid, dtheta) backward."""
        if self.direction == "fwd":
            return Operand("theta", self.theta), Operand("grid", self.grid)
        return Operand("dgrid", self.grid), Operand("dtheta", self.theta)

    @property
    def flops(self) -> int:
        """Two operations for each coefficient and element."""
        return 2 * self.grid.size * (self.grid.shape[-1] + 1)

    def _define(self, *inputs: Reals) -> Reals:
        """The formula above."""
        space = self.grid.shape[1:-1]
        lines = [_ends(extent, self.align_corners) for extent in space]
        axes = np.meshgrid(*lines, indexing="ij")[::-1]
        base = np.stack([*axes, np.ones(space)], axis=-1).reshape(-1, len(space) + 1)
        if self.direction == "fwd":
            return np.asarray(np.einsum("nij,sj->nsi", inputs[0], base)).reshape(self.grid.shape)
        dgrid = inputs[0].reshape(self.grid.shape[0], len(base), len(space))
        return np.asarray(np.einsum("nsi,sj->nij", dgrid, base))

    def _body(self) -> list[str]:
        words = [
            shape_word(self.grid.shape[:-1]),
            *(["align_corners"] if self.align_corners else []),
            self.dtype,
        ]
        return words + self._layout_words()

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction = words.kind.removeprefix("affine_grid_")
        shape, align = words.shape("shape"), words.flag("align_corners")
        dtype, layout = words.dtype(), words.layout(len(shape) + 1)
        rank = len(shape) - 1
        names = ("theta", "grid") if direction == "fwd" else ("dtheta", "dgrid")
        shapes = ((shape[0], rank, rank + 1), (*shape, rank))
        given = words.descriptors(dict(zip(names, shapes, strict=True)), dtype, layout)
        return cls(direction, given[names[0]], given[names[1]], align)


def _ends(extent: int, align_corners: bool) -> Reals:
    """The places of the elements of one axis, between -1 and 1."""
    if extent == 1:
        return np.zeros(1)
    index = np.arange(extent)
    return 2 * index / (extent - 1) - 1 if align_corners else (2 * index + 1) / extent - 1


def check_grid(grid: TensorDescriptor) -> int:
    """The number of spatial axes of a grid (N, space..., axes), 2 or 3. Raises InvalidShape."""
    rank = len(grid.shape) - 2
    if rank not in (2, 3) or grid.shape[-1] != rank:
        raise InvalidShape(f"grid has shape {grid.shape}: it must be (N, H, W, 2) or (N, D, H, W, 3)")
    check_extents(grid.shape[:-1], "grid", ("n", *_LETTERS[-rank:]))
    return rank


@dataclass(frozen=True)
class GridSample(DirectedProblem, kinds=("grid_sample_fwd", "grid_sample_bwd_data", "grid_sample_bwd_grid")):
    """y[n, c, o...] = x[n, c] at the place grid[n, o...]; or dx or dgrid from dy.

    `x`: (N, C, space) with two or three axes of space, `grid`: (N, output space, axes), `y`: (N, C, output space). For
    the gradients, x and y describe dx and dy where these take their part, and `grid` describes dgrid too.

    Raises InvalidShape for shapes that do not belong together, InvalidArgument for unknown names, InvalidType.
    """

    direction: str
    x: TensorDescriptor
    grid: TensorDescriptor
    y: TensorDescriptor
    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False
    dgrid: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        check_choice(self.direction, SAMPLE_DIRECTIONS, "direction")
        check_choice(self.mode, MODES, "mode")
        check_choice(self.padding, PADDINGS, "padding")
        rank = check_grid(self.grid)
        if len(self.x.shape) != rank + 2 or self.x.shape[0] != self.grid.shape[0]:
            raise InvalidShape(
                f"x has shape {self.x.shape} and grid {self.grid.shape}: x must be (N, C, and {rank} axes of space), "
                "with the N of the grid"
            )
        check_extents(self.x.shape, "x", ("n", "c", *_LETTERS[-rank:]))
        wanted = (*self.x.shape[:2], *self.grid.shape[1:-1])
        if self.y.shape != wanted:
            raise InvalidShape(f"y has shape {self.y.shape}: x and grid make it {wanted}")
        if self.direction == "bwd_grid":
            object.__setattr__(
                self, "dgrid", self.dgrid or TensorDescriptor.packed(self.grid.shape, self.grid.dtype)
            )
        elif self.dgrid is not None:
            raise InvalidShape(f"dgrid is given, but {self.kind} does not make it")
        if self.direction == "bwd_grid" and self.dgrid is not None and self.dgrid.shape != self.grid.shape:
            raise InvalidShape(
                f"dgrid has shape {self.dgrid.shape} and grid {self.grid.shape}: they must be equal"
            )
        self._check_operands()

    @classmethod
    def make(
        cls,
        direction: str,
        shape: TensorDescriptor | Sequence[int],
        size: Sequence[int],
        mode: str = "linear",
        padding: str = "zeros",
        align_corners: bool = False,
        dtype: str = "f32",
        layout: str = "nchw",
    ) -> Self:
        """The problem from the shape of x and the extents of the output, packed."""
        x = as_descriptor(shape, dtype, layout)
        grid = as_descriptor((x.shape[0], *size, len(size)), x.dtype, "nchw")
        y = as_descriptor((*x.shape[:2], *size), x.dtype, layout)
        return cls(direction, x, grid, y, mode, padding, align_corners)

    @property
    def rank(self) -> int:
        """Axes of space."""
        return len(self.x.shape) - 2

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, grid, y) forward, (dy, grid, dx) for the image, (dy, x, grid, dgrid) for the grid."""
        x, y, grid = (Operand(name, t) for name, t in (("x", self.x), ("y", self.y), ("grid", self.grid)))
        if self.direction == "fwd":
            return x, grid, y
        if self.direction == "bwd_data":
            return Operand("dy", self.y), grid, Operand("dx", self.x)
        assert self.dgrid is not None
        return Operand("dy", self.y), x, grid, Operand("dgrid", self.dgrid)

    @property
    def flops(self) -> int:
        """Two operations for each neighbour of an output."""
        return 2 * self.y.size * (1 if self.mode == "nearest" else 2**self.rank)

    def _define(self, *inputs: Reals) -> Reals:
        """Sums over the neighbours, by gathering or scattering whole planes of channels."""
        grid = inputs[2] if self.direction == "bwd_grid" else inputs[1]
        images = np.arange(self.x.shape[0]).reshape(-1, *[1] * self.rank)
        if self.direction == "fwd":
            x = np.moveaxis(inputs[0], 1, -1)
            y = np.zeros((*self.grid.shape[:-1], self.x.shape[1]))
            for places, inside, weights in self._neighbours(grid):
                y += np.where(inside[..., None], x[images, *places], 0.0) * _product(weights)[..., None]
            return np.moveaxis(y, -1, 1)
        dy = np.moveaxis(inputs[0], 1, -1)
        if self.direction == "bwd_data":
            dx = np.zeros((self.x.shape[0], *self.x.shape[2:], self.x.shape[1]))
            for places, inside, weights in self._neighbours(grid):
                term = np.where(inside[..., None], dy * _product(weights)[..., None], 0.0)
                np.add.at(dx, (np.broadcast_to(images, inside.shape), *places), term)
            return np.moveaxis(dx, -1, 1)
        x = np.moveaxis(inputs[1], 1, -1)
        dgrid = np.zeros(self.grid.shape)
        if self.mode == "nearest":
            return dgrid
        slopes = [self._place(grid, axis)[1] for axis in range(self.rank)]
        corners = itertools.product((0, 1), repeat=self.rank)
        for corner, (places, inside, weights) in zip(corners, self._neighbours(grid), strict=True):
            dot = np.where(inside, (np.where(inside[..., None], x[images, *places], 0.0) * dy).sum(-1), 0.0)
            for axis, side in enumerate(corner):
                others = _product([w for other, w in enumerate(weights) if other != axis])
                dgrid[..., self.rank - 1 - axis] += dot * others * slopes[axis] * (1 if side else -1)
        return dgrid

    def _place(self, grid: Reals, axis: int) -> tuple[Reals, Reals]:
        """u along an axis of space, and its derivative by the number in the grid."""
        extent = self.x.shape[2 + axis]
        g = grid[..., self.rank - 1 - axis]
        if self.align_corners:
            u, slope = (g + 1) / 2 * (extent - 1), np.full(g.shape, (extent - 1) / 2)
        else:
            u, slope = ((g + 1) * extent - 1) / 2, np.full(g.shape, extent / 2)
        if self.padding == "reflection":
            low, span = (0.0, extent - 1.0) if self.align_corners else (-0.5, float(extent))
            if span == 0:
                return np.zeros(g.shape), np.zeros(g.shape)
            distance = np.abs(u - low)
            slope = np.where(u < low, -slope, slope)
            turns = np.floor(distance / span)
            rest, is_odd = distance - turns * span, turns % 2 == 1
            u, slope = low + np.where(is_odd, span - rest, rest), np.where(is_odd, -slope, slope)
        if self.padding != "zeros":
            slope = np.where((u > 0) & (u < extent - 1), slope, 0.0)
            u = np.where(u > 0, np.minimum(u, extent - 1), 0.0)
        return u, slope

    def _neighbours(self, grid: Reals) -> Iterator[tuple[list[_Places], npt.NDArray[np.bool_], list[Reals]]]:
        """For each corner of the cell around the places: indices made safe, which are inside, weights by axis."""
        axes = []
        for axis in range(self.rank):
            extent = self.x.shape[2 + axis]
            u = self._place(grid, axis)[0]
            u = np.where(
                u > -2, np.minimum(u, extent + 1), -2.0
            )  # farther out nothing changes; NaN is outside
            low = np.rint(u) if self.mode == "nearest" else np.floor(u)
            sides = [(low, np.ones(u.shape))]
            if self.mode == "linear":
                sides = [(low, 1 - (u - low)), (low + 1, u - low)]
            axes.append([(i.astype(np.int64), (i >= 0) & (i < extent), weight) for i, weight in sides])
        for corner in itertools.product(*axes):
            inside = np.logical_and.reduce([fits for _, fits, _ in corner])
            yield [np.where(inside, i, 0) for i, _, _ in corner], inside, [weight for _, _, weight in corner]

    def _body(self) -> list[str]:
        words = [self.mode, self.padding, *(["align_corners"] if self.align_corners else [])]
        words += [shape_word(self.x.shape), "out" + "x".join(map(str, self.y.shape[2:])), self.dtype]
        return words + self._layout_words()

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction = words.kind.removeprefix("grid_sample_")
        mode, padding = words.choice(MODES, MODES[0]), words.choice(PADDINGS, PADDINGS[0])
        align, shape, size = words.flag("align_corners"), words.shape("shape"), words.shape("out")
        dtype, layout = words.dtype(), words.layout(len(shape))
        x, y = {"fwd": ("x", "y"), "bwd_data": ("dx", "dy"), "bwd_grid": ("x", "dy")}[direction]
        grid_shape = (shape[0], *size, len(size))
        shapes = {x: shape, y: (*shape[:2], *size), "grid": grid_shape}
        if direction == "bwd_grid":
            shapes["dgrid"] = grid_shape
        given = words.descriptors(shapes, dtype, layout)
        return cls(direction, given[x], given["grid"], given[y], mode, padding, align, given.get("dgrid"))


def _product(weights: Sequence[Reals]) -> Reals:
    result = np.ones(())
    for weight in weights:
        result = result * weight
    return result
