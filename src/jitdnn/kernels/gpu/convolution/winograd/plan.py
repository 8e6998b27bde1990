"""Frozen sizes of minimal filtering on GPUs: the axes in tiles, the layout of the workspace, and the matrices.

Names are those of winograd.c. fprop and dgrad are one correlation,

    result[n, k, p] = sum over c, t of  filter[k, c, t] * data[n, c, p + offset + dilation * t]

and wgrad sums the products of x and dy over tiles of dy, whose m neighbouring elements are the taps of F(r, m), and
r taps of the filter its results.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from jitdnn.kernels.formulas.minimal_filtering import Matrix, minimal_filtering
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

MAX_ALPHA = 6
"""Points of an axis: a thread has the numbers of a tile in registers."""
STAGED_CHANNELS = 32
"""Of a thread block that takes tiles through shared memory. So many threads take one tile of all these channels, or
read as many neighbours in memory."""
_STAGED_TILES = (14, 7, 4, 2, 1)
"""Along the last axis, of such a thread block."""
_STAGED_WARPS = 8
"""Of STAGED_CHANNELS threads, at most, of such a thread block; and its tiles where it takes several rows of them."""
_STAGED_BYTES = 32 << 10
"""Of its shared memory, at most: as much as every device has that OpenCL runs on."""
_ALIGNMENT = 256
_RUN = 4
"""What rows of the workspace are a multiple of, in elements."""


def aligned(size: int) -> int:
    """Bytes up to the next piece of the workspace."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True)
class Axis:
    """An axis of space: `results` (of the correlation, or elements of dy) in tiles of `m`, `r` taps.

    `extent`: positions of the data; the first tap of the first result reads `offset`. Neighbouring taps are `dilation`
    apart, and so are the results of a tile.
    """

    results: int
    extent: int
    m: int
    r: int
    offset: int
    dilation: int

    @property
    def alpha(self) -> int:
        return self.m + self.r - 1

    @property
    def steps(self) -> int:
        """Tiles of the results with the same remainder modulo the dilation; those of remainder 0 come first."""
        of_remainder = -(-self.results // self.dilation)
        return -(-of_remainder // self.m)

    @property
    def tiles(self) -> int:
        return self.steps * self.dilation


@dataclass(frozen=True)
class Matrices:
    """B^T for the data, G for the filter (or dy) and A^T for the products, scaled so that rows of the first two make no
    number larger, by powers of two that the last takes back."""

    data: Matrix
    other: Matrix
    result: Matrix


@cache
def matrices(m: int, r: int) -> Matrices:
    """Those of F(m, r)."""
    found = minimal_filtering(m, r)
    powers = [_power(a) * _power(b) for a, b in zip(found.data, found.filter, strict=True)]
    return Matrices(
        _scaled(found.data),
        _scaled(found.filter),
        tuple(tuple(c / power for c, power in zip(row, powers, strict=True)) for row in found.result),
    )


def _power(row: tuple[Fraction, ...]) -> Fraction:
    """The power of two that brings the sum of magnitudes to at most 1, and above a half."""
    total, power = sum(map(abs, row), Fraction(0)), Fraction(1)
    while total * power > 1:
        power /= 2
    while total * power <= Fraction(1, 2):
        power *= 2
    return power


def _scaled(matrix: Matrix) -> Matrix:
    return tuple(tuple(c * _power(row) for c in row) for row in matrix)


@dataclass(frozen=True)
class Place:
    """A matrix for each point and group in the workspace, from a byte on; steps in elements. `between`: from one half
    to the other."""

    at: int
    point: int
    group: int
    row: int
    between: int = 0


@dataclass(frozen=True)
class Staging:
    """A thread block that takes tiles through shared memory: `tiles` of each of `rows`, `warps` at once."""

    tiles: int
    rows: int
    warps: int


@dataclass(frozen=True)
class Plan:
    """A problem in tiles: its axes of space, two of them."""

    problem: Convolution
    axes: tuple[Axis, Axis]

    @property
    def is_wgrad(self) -> bool:
        return self.problem.direction == "bwd_filter"

    @property
    def points(self) -> int:
        return self.axes[0].alpha * self.axes[1].alpha

    @property
    def tiles(self) -> int:
        """Of all images."""
        return self.problem.n * self.axes[0].tiles * self.axes[1].tiles

    @property
    def groups(self) -> int:
        return self.problem.groups

    @property
    def tensors(self) -> tuple[TensorDescriptor, TensorDescriptor, TensorDescriptor]:
        """The operands and the result, in the problem's order."""
        first, second = (operand.descriptor for operand in self.problem.inputs)
        return first, second, self.problem.output

    @property
    def product(self) -> tuple[int, int, int]:
        """Rows, columns and terms of a product: tiles by channels of the result, or channels of y by channels of x."""
        c, k = self.problem.c // self.groups, self.problem.k // self.groups
        if self.is_wgrad:
            return k, c, self.tiles
        return (self.tiles, k, c) if self.problem.direction == "fwd" else (self.tiles, c, k)

    @property
    def lanes(self) -> int:
        """Channels of a thread."""
        counts = (self.problem.c // self.groups, self.problem.k // self.groups)
        return 1 if any(count % 2 for count in counts) else 2

    def is_staged(self, tensor: TensorDescriptor) -> bool:
        """Whether tiles of a tensor go through shared memory: where channels are no neighbours, but pixels are."""
        return (
            tensor.strides[1] != 1
            and tensor.strides[-1] == 1
            and tensor.shape[1] > 1
            and self.axes[1].dilation == 1
            and self.item == 4
        )

    @property
    def staging(self) -> Staging:
        """Of tensors of which `is_staged` holds: one of a few, so that shapes share code."""
        axis = self.axes[1]
        fitting = [tiles for tiles in _STAGED_TILES if (tiles - 1) * axis.m + axis.alpha <= STAGED_CHANNELS]
        # a thread block costs as much as a tile, beside its tiles
        tiles = min(fitting, key=lambda count: -(-axis.tiles // count) * (count + 1))
        line = self.axes[0].alpha * ((tiles - 1) * axis.m + axis.alpha) * (STAGED_CHANNELS + 1) * self.item
        rows = max(1, min(_STAGED_WARPS // tiles, _STAGED_BYTES // line))
        turns = -(-tiles * rows // _STAGED_WARPS)
        return Staging(tiles, rows, -(-tiles * rows // turns))

    @property
    def has_plain_filter(self) -> bool:
        """Whether the filter's gradient has its taps innermost and nothing between filters."""
        result = self.tensors[2]
        plain = TensorDescriptor.packed(result.shape, result.dtype)
        return self.is_wgrad and self.item == 4 and result.strides == plain.strides

    @property
    def real(self) -> str:
        return compute_dtype(self.problem.dtype)

    @property
    def item(self) -> int:
        """Bytes of a number in the workspace."""
        return DTYPES[self.real]

    @property
    def transformed(self) -> int:
        """Bytes that the transforms of the operands read and write."""
        rows, columns, terms = self.product
        numbers = self.points * self.groups * terms * (rows + columns)
        return self.tensors[0].nbytes + self.tensors[1].nbytes + self.item * numbers

    @property
    def finished(self) -> int:
        """Bytes that what makes results of products reads and writes."""
        rows, columns, _ = self.product
        return self.tensors[2].nbytes + self.item * self.points * self.groups * rows * columns

    def place(self, at: int, rows: int, columns: int) -> Place:
        """Of matrices of numbers, one after the other."""
        row = -(-columns // _RUN) * _RUN
        return Place(at, self.groups * rows * row, rows * row, row)

    def bytes_of(self, rows: int, columns: int) -> int:
        return aligned(self.points * self.groups * rows * -(-columns // _RUN) * _RUN * self.item)


def refuse_shape(problem: Convolution) -> str | None:
    """Why there are no tiles; None if there are."""
    rank = len(problem.spatial)
    if rank > 2:
        return f"tiles have one or two axes, and there are {rank}"
    if problem.is_integer or problem.has_float8 or problem.dtype not in ("f16", "bf16", "f32", "f64"):
        return f"its transforms are of reals of 16 bits or more, not {problem.x.dtype}"
    if 0 in problem.x.shape or 0 in problem.y.shape or 0 in problem.w.shape:
        return "there is nothing to compute"
    if max(problem.stride) > 1:
        return f"strides {problem.stride}: neighbouring results share tiles where strides are 1"
    taps = problem.filter_spatial
    if max(taps) == 1:
        return "each result has a single tap: there are no multiplications to save"
    if max(taps) + 1 > MAX_ALPHA:
        return f"{max(taps)} taps along an axis: at most {MAX_ALPHA - 1} fit a tile"
    extents = (*problem.spatial, *problem.output_spatial)
    channels, reach = max(problem.c, problem.k), max(problem.dilation) * MAX_ALPHA
    if problem.n * (max(extents) + reach) >= 2**30:
        return (
            f"{problem.n} images of extents {extents} have more rows of tiles than fit the kernel's indices"
        )
    if max(extents) * channels >= 2**31 or max(*extents, reach, *map(max, problem.padding)) >= 2**28:
        return (
            f"extents {extents} with {channels} channels, dilation {problem.dilation} and padding {problem.padding} do "
            "not fit the kernel's indices"
        )
    return None


def plan_of(problem: Convolution, max_m: int) -> Plan:
    """The tiles of a problem that is not refused: of `max_m` results where the points allow it."""
    axes = [_axis(problem, axis, max_m) for axis in range(len(problem.spatial))]
    if len(axes) == 1:
        axes.insert(0, Axis(1, 1, 1, 1, 0, 1))
    return Plan(problem, (axes[0], axes[1]))


def _axis(problem: Convolution, axis: int, max_m: int) -> Axis:
    r, dilation, before = problem.filter_spatial[axis], problem.dilation[axis], problem.padding[axis][0]
    dilation = dilation if r > 1 else 1
    m = min(max_m, MAX_ALPHA + 1 - r) if r > 1 else 1
    x, y = problem.spatial[axis], problem.output_spatial[axis]
    if problem.direction == "bwd_data":
        return Axis(x, y, m, r, before - dilation * (r - 1), dilation)
    return Axis(y, x, m, r, -before, dilation)
