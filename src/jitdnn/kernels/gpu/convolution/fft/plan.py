"""Frozen sizes of convolutions by fast Fourier transforms on GPUs: pieces of images, and their layout in a transform.

x[u], y[q] and w[v] meet where u = q + v, along each axis with stride, padding and dilation as formulas/overlap_save.py
has them. A piece has `size` results along each axis and what they read; `length` points hold it modulo their number. A
piece of several axes is one row of points, the last axis innermost: point (i, j) is at i * length of the last axis + j.
Differences of positions are less than the lengths, so those of points are less than their product, and the row is
convolved modulo any number of points from that product on. Zeros between lines are shared: padding after one is before
the next.

A filter that is too long for a transform is split along the last axis. Part n of t taps reads as a filter of t taps
does where the padding is n * t * dilation less.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod

from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.kernels.formulas.overlap_save import FftAxis, axes_of, ceil_div
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

NUMBERS = 16
"""Complex numbers of a thread."""
POINTS = (256, 512, 1024, 2048, 4096, 8192)
"""Of the transforms that are tried."""
_THREADS = 128
"""Of a thread block at least: several short transforms share one."""
_TILES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Pieces along every axis but the last that are tried."""
TILE = 8
"""Rows and columns of a product of matrices that a thread block has."""
_MOST = 2**28
_NUMBER_BYTES = 8


@dataclass(frozen=True)
class Tiling:
    """An axis in pieces: `size` results each (of x for the data's gradient, of y otherwise), `length` points."""

    axis: FftAxis
    extent: int
    size: int
    length: int

    @property
    def tiles(self) -> int:
        return ceil_div(self.extent, self.size)


@dataclass(frozen=True)
class Plan:
    """A problem in pieces, transforms of `points`, and the units of each result: `shares` of its pieces.

    The filter is in so many `parts`, whose taps the last of the tilings has. `is_prepared`: of sums, the spectra of all
    filters are made before, and lie in the workspace. `is_product`: those of both operands and of the result do, and a
    line of a thread block makes `rounds` spectra one after the other.
    """

    problem: Convolution
    tilings: tuple[Tiling, ...]
    points: int
    shares: int
    parts: int = 1
    is_prepared: bool = False
    is_product: bool = False
    rounds: int = 1

    @property
    def is_wgrad(self) -> bool:
        return self.problem.direction == "bwd_filter"

    @property
    def is_data(self) -> bool:
        return self.problem.direction == "bwd_data"

    @property
    def results(self) -> int:
        """Channels of the result, or pairs of a channel of x and one of dy, which have a filter."""
        p = self.problem
        return p.c if self.is_data else p.k * p.w.shape[1] if self.is_wgrad else p.k

    @property
    def terms(self) -> int:
        """Channels that a result is a sum over."""
        p = self.problem
        return p.k // p.groups if self.is_data else 1 if self.is_wgrad else p.w.shape[1]

    @property
    def filters(self) -> int:
        return self.problem.k * self.problem.w.shape[1]

    @property
    def is_sum(self) -> bool:
        """Whether spectra are added up before they are transformed back: of channels, or of parts of the filter."""
        return not self.is_wgrad and self.terms * self.parts > 1

    @property
    def pieces_of_image(self) -> int:
        return prod(tiling.tiles for tiling in self.tilings)

    @property
    def pieces(self) -> int:
        """Of one channel."""
        return self.problem.n * self.pieces_of_image

    @property
    def pairs(self) -> int:
        """Pairs of pieces of one channel, which are transformed at once."""
        return ceil_div(self.pieces, 2)

    @property
    def spectra(self) -> tuple[int, int, int]:
        """Of both operands and of the result, where channels meet by products of matrices: see products.c."""
        p, pairs = self.problem, self.pairs
        if self.is_wgrad:
            return pairs * p.k, pairs * p.c, self.filters
        return self.filters, pairs * (p.k if self.is_data else p.c), pairs * (p.c if self.is_data else p.k)

    @property
    def matrices(self) -> tuple[int, int, int]:
        """Rows, columns and terms of the products of a group at each point."""
        group_c, group_k = self.problem.w.shape[1], self.problem.k // self.problem.groups
        if self.is_wgrad:
            return group_k, group_c, self.pairs
        return (group_c, self.pairs, group_k) if self.is_data else (group_k, self.pairs, group_c)

    @property
    def tiles(self) -> int:
        """Thread blocks that share the product of a group at one point, with its neighbours."""
        rows, columns, _ = self.matrices
        return ceil_div(rows, TILE) * ceil_div(columns, TILE)

    @property
    def pairs_of_share(self) -> int:
        return ceil_div(self.pairs, self.shares)

    @property
    def line_threads(self) -> int:
        """Of one transform."""
        return self.points // NUMBERS

    @property
    def threads(self) -> int:
        return max(_THREADS, self.line_threads)

    @property
    def lines(self) -> int:
        """Units of a thread block."""
        return self.threads // self.line_threads

    @property
    def blocks(self) -> int:
        return ceil_div(self.units, self.lines)

    @property
    def units(self) -> int:
        return self.results * self.shares * (self.parts if self.is_wgrad else 1)

    @property
    def stage_of_line(self) -> int:
        """Complex numbers in shared memory for each unit: those that change hands, and a spectrum that is kept, x's in
        the filter's gradient and the filter's otherwise."""
        return (1 if self.is_prepared or self.is_product else 2) * self.points

    @property
    def first_radix(self) -> int:
        """The points without powers of 16: 2 to 16."""
        radix: int = self.points
        while radix > 16:
            radix //= 16
        return radix

    @property
    def passes(self) -> int:
        passes = 1
        while self.first_radix * 16 ** (passes - 1) < self.points:
            passes += 1
        return passes

    @property
    def root_bytes(self) -> int:
        """Shared memory of roots of one, as transform.c declares it."""
        steps = [self.line_threads]
        steps += [self.points // self.first_radix >> 4 * number for number in range(1, self.passes - 1)]
        return 4 * sum(steps) * _NUMBER_BYTES

    @property
    def shared(self) -> int:
        """Bytes of a thread block, beside the roots."""
        return self.lines * self.stage_of_line * _NUMBER_BYTES

    @property
    def workspace(self) -> int:
        """Bytes: of several shares of a filter's gradient their spectra, or those of filters, or of all."""
        if self.is_product:
            return sum(self.spectra) * self.points * _NUMBER_BYTES
        if self.is_prepared:
            return self.filters * self.parts * self.points * _NUMBER_BYTES
        if not self.is_wgrad or self.shares == 1:
            return 0
        return self.units * self.points * _NUMBER_BYTES


def refuse_shape(problem: Convolution) -> str | None:
    """Why there are no pieces at all; None if there may be."""
    if problem.is_integer or problem.has_float8 or compute_dtype(problem.dtype) != "f32":
        return f"its transforms are of reals of 16 or 32 bits, not {problem.x.dtype}"
    if 0 in problem.x.shape or 0 in problem.y.shape or 0 in problem.w.shape:
        return "there is nothing to compute"
    for axis in axes_of(problem):
        if max(axis.x, axis.y * axis.stride, axis.span) + axis.padding + axis.span >= _MOST:
            return f"extents {problem.spatial} and {problem.output_spatial} do not fit the kernel's indices"
    if problem.n * max(prod(problem.spatial), prod(problem.output_spatial)) * problem.k >= 2**42:
        return f"{problem.n} images of {problem.spatial} with {problem.k} channels do not fit the kernel's indices"
    return None


@lru_cache(maxsize=1024)
def plan_of(
    problem: Convolution, facts: GpuFacts, is_prepared: bool = False, most_threads: int = 1024
) -> Plan | None:
    """The fastest plan by the estimate; None if the filter's taps do not fit a transform.

    `is_prepared`: of those whose filters' spectra lie in the workspace, where results are sums. `most_threads`: of a
    thread block.
    """
    wholes = [
        plan
        for points, parts, tilings in _all_tilings(problem, POINTS)
        for plan in [Plan(problem, tilings, points, 1, parts, is_prepared)]
        if plan.threads <= most_threads and (plan.is_sum or not is_prepared)
        if plan.shared + plan.root_bytes <= facts.shared_bytes
    ]
    times = [_Times(plan, facts) for plan in wholes]
    found = inf, 0, 0
    # those first that may take the least, until none can be faster than what was found; the first of equals
    for least, number in sorted((own.least, number) for number, own in enumerate(times)):
        if least > found[0]:
            break
        for shares in _counts_of_shares(wholes[number], facts):
            found = min(found, (times[number].of(shares), number, shares))
    return replace(wholes[found[1]], shares=found[2]) if wholes else None


@lru_cache(maxsize=64)  # asked for by each of the algorithms
def _all_tilings(problem: Convolution, lengths: tuple[int, ...]) -> list[tuple[int, int, tuple[Tiling, ...]]]:
    """Points of a transform, one of the `lengths`, parts of the filter, and tilings."""
    return [
        (points, parts, tilings)
        for points in lengths
        for parts in sorted(_counts_of_parts(problem, points))
        for tilings in _tilings(problem, points, parts)
    ]


@lru_cache(maxsize=1024)
def product_plan_of(problem: Convolution, facts: GpuFacts, most_threads: int = 1024) -> Plan | None:
    """The fastest plan of products of matrices; None if the taps do not fit a transform, or there is one term each."""
    found = [
        plan
        for points, parts, tilings in _all_tilings(problem, POINTS)
        if parts == 1
        for plan in [_in_rounds(Plan(problem, tilings, points, 1, is_product=True), facts)]
        if plan.threads <= most_threads and plan.shared + plan.root_bytes <= facts.shared_bytes
    ]
    return min(found, key=lambda plan: product_seconds(plan, facts), default=None)


def _in_rounds(plan: Plan, facts: GpuFacts) -> Plan:
    """The plan with as many spectra for each line as keep all multiprocessors busy: roots of one are made once."""
    at_once = 2 * facts.multiprocessors * max(1, _RESIDENT_THREADS // plan.threads) * plan.lines
    return replace(plan, rounds=max(1, min(8, max(plan.spectra) // at_once)))


def _counts_of_parts(problem: Convolution, points: int) -> set[int]:
    """The filter at once, or in parts that take a half or three quarters of a transform."""
    reach = axes_of(problem)[-1].span + 1
    counts = {1, ceil_div(2 * reach, points), ceil_div(4 * reach, 3 * points)}
    taps = problem.w.shape[-1]
    return {ceil_div(taps, ceil_div(taps, count)) for count in counts if count <= taps}


def _tilings(problem: Convolution, points: int, parts: int) -> list[tuple[Tiling, ...]]:
    is_of_x = problem.direction == "bwd_data"
    *outer, last = axes_of(problem)
    taps = ceil_div(last.w, parts)
    cut = [replace(last, w=taps, padding=last.padding - n * taps * last.dilation) for n in range(parts)]
    found = []
    for counts in itertools.product(_TILES, repeat=len(outer)):
        chosen = [_tiling([axis], is_of_x, count) for axis, count in zip(outer, counts, strict=True)]
        if any(tiling.tiles != count for tiling, count in zip(chosen, counts, strict=True)):
            continue  # the same as with fewer
        room = points // prod(tiling.length for tiling in chosen)
        if room <= cut[0].span:
            continue
        whole = _tiling(cut, is_of_x, 1)
        if whole.length > room:
            step = 1 if is_of_x else last.stride
            whole = _tiling(cut, is_of_x, ceil_div(whole.extent, (room - cut[0].span - 1) // step + 1))
        found.append((*chosen, whole))
    return found


def _tiling(parts: Sequence[FftAxis], is_of_x: bool, count: int) -> Tiling:
    """An axis in about so many pieces, for all parts of the filter."""
    axis = parts[0]
    extent, step = (axis.x, 1) if is_of_x else (axis.y, axis.stride)
    size = ceil_div(extent, count)
    if size == extent and not (is_of_x and len(parts) > 1):  # whose results lie at the same points
        length = max(part.shortest(is_of_x) for part in parts)
    else:
        length = (size - 1) * step + axis.span + 1
    return Tiling(axis, extent, size, length)


def _counts_of_shares(plan: Plan, facts: GpuFacts) -> list[int]:
    """Into how many shares a unit's pieces may be cut."""
    pairs = plan.pairs
    most = min(pairs, max(1, 16 * facts.multiprocessors * plan.lines // plan.units))
    counts = {ceil_div(pairs, ceil_div(pairs, shares)) for shares in range(1, min(most, 64) + 1)}
    return sorted(counts | {most})


# ---- cost, fitted to an H200

_PASS_CYCLES, _POINT_CYCLES = 0.25, 0.3
"""Of a multiprocessor, for each point and pass of a transform, and for each that is loaded, multiplied or stored."""
_PASS_LATENCY, _LATENCY = 900, 1800
"""Cycles of a pass, and of what is around all of them, that a thread block takes though nobody else is there."""
_SPECTRUM_CYCLES, _SPECTRUM_LATENCY = 0.2, 2400
"""The same for a point of a spectrum that comes from the workspace, and for all of them."""
_RESIDENT_THREADS = 512
"""Of a multiprocessor, by their registers."""
_MEMORY_SHARE = 0.8
"""Of the bandwidth of copies."""
_CACHE_RATE = 1.2
"""Times as fast do bytes come from the cache that thread blocks share."""
_SECTOR = 32
"""Bytes of it that move for one number whose neighbours lie apart."""
_LAUNCH_SECONDS = 3e-6


def seconds(plan: Plan, facts: GpuFacts) -> float:
    """Of a call."""
    return _Times(plan, facts).of(plan.shares)


class _Times:
    """Seconds of a plan by its number of shares, of which the given plan has one; `least`: of any number of them."""

    def __init__(self, plan: Plan, facts: GpuFacts) -> None:
        p = plan.problem
        self._facts, self._plan = facts, plan
        self._lines, self._points, self._pairs = plan.lines, plan.points, plan.pairs
        self._units = plan.units // plan.shares
        resident = min(facts.resident(plan.shared + plan.root_bytes), _RESIDENT_THREADS // plan.threads)
        self._resident = max(1, resident)
        self._for_point = _PASS_CYCLES * plan.passes + _POINT_CYCLES + plan.is_prepared * _SPECTRUM_CYCLES
        self._latency = _PASS_LATENCY * plan.passes + _LATENCY + plan.is_prepared * _SPECTRUM_LATENCY
        # transforms of a unit, one after the other: of a pair of pieces, and of all of them once
        self._of_pair, self._once = 2, 1
        if plan.is_sum:
            self._of_pair, self._once = (1 if plan.is_prepared else 2) * plan.parts * plan.terms + 1, 0
        self._of_filters = 0
        if plan.is_prepared:
            self._of_filters = ceil_div(plan.filters * plan.parts, facts.multiprocessors) * plan.points
        self._size, self._moved = DTYPES[p.x.dtype], p.x.nbytes + p.w.nbytes + p.y.nbytes
        self._cached = _CACHE_RATE * facts.bandwidth
        # elements of x, w and y that all thread blocks read or write, those of w for each pair, or share, or once
        of_x = of_y = plan.results * plan.terms * plan.parts * plan.pieces
        if plan.is_data:
            of_x, of_y = p.x.size, of_y * prod(min(t.length, t.axis.y) for t in plan.tilings)
        else:
            of_x, of_y = of_x * prod(min(t.length, t.axis.x) for t in plan.tilings), p.y.size
        of_w = plan.results * plan.terms * prod(p.filter_spatial)
        if plan.is_wgrad:
            of_w, of_y = p.w.size, plan.results * plan.parts * (p.y.size // p.k)
        self._x_and_y, self._w = of_x + of_y, of_w
        # of them those whose neighbours along the last axis lie apart
        self._apart = sum(n for n, tensor in ((of_x, p.x), (of_y, p.y)) if _lies_apart(tensor))
        self._w_is_apart = _lies_apart(p.w)
        self._spectra = plan.points * plan.parts * _NUMBER_BYTES * plan.results * plan.terms
        self.least = self._bound()

    def of(self, shares: int) -> float:
        """Of a call."""
        plan, facts = self._plan, self._facts
        units, pairs = self._units * shares, ceil_div(self._pairs, shares)
        blocks = ceil_div(ceil_div(units, self._lines), facts.multiprocessors)
        transforms = self._of_pair * pairs + self._once
        points = blocks * self._lines * transforms * self._points + self._of_filters
        cycles = max(points * self._for_point, ceil_div(blocks, self._resident) * transforms * self._latency)
        workspace = 0
        if plan.is_prepared:
            workspace = plan.workspace
        elif plan.is_wgrad and shares > 1:
            workspace = units * self._points * _NUMBER_BYTES
        return self._seconds(cycles, shares, pairs * shares, workspace)

    def _bound(self) -> float:
        """What no number of shares comes below, but for rounding."""
        transforms = self._units * (self._of_pair * self._pairs + self._once)
        points = transforms * self._points / self._facts.multiprocessors + self._of_filters
        waits = transforms / (self._lines * self._facts.multiprocessors * self._resident) * self._latency
        workspace = self._plan.workspace if self._plan.is_prepared else 0
        return (1 - 1e-9) * self._seconds(max(points * self._for_point, waits), 1, self._pairs, workspace)

    def _seconds(self, cycles: float, shares: int, pairs: int, workspace: int) -> float:
        """Of so many cycles of a multiprocessor, and of bytes."""
        plan, facts = self._plan, self._facts
        of_w = self._w
        if not plan.is_wgrad and not plan.is_prepared:  # whose units read spectra
            of_w *= pairs if plan.is_sum else shares
        loaded = self._size * (self._x_and_y + of_w)
        if plan.is_prepared:
            loaded += self._spectra * pairs
        scattered = self._apart + (of_w if self._w_is_apart else 0)
        moved = self._moved + 2 * workspace
        total = max(cycles / facts.clock, moved / (_MEMORY_SHARE * facts.bandwidth), loaded / self._cached)
        return total + scattered * _SECTOR / self._cached + (2 if workspace else 1) * _LAUNCH_SECONDS


def _lies_apart(tensor: TensorDescriptor) -> bool:
    """Whether neighbours along the last axis are no neighbours in memory."""
    return abs(tensor.strides[-1]) != 1 and tensor.shape[-1] > 1


_SPECTRUM_SHARE = 0.3
"""Of a multiprocessor's rate, of products of matrices of spectra."""


def product_seconds(plan: Plan, facts: GpuFacts) -> float:
    """The same where channels meet by products of matrices: of transforms, products, and transforms back."""
    problem, rate = plan.problem, _MEMORY_SHARE * facts.bandwidth
    number_bytes, result = plan.points * _NUMBER_BYTES, problem.output.nbytes
    given = problem.x.nbytes + problem.w.nbytes + problem.y.nbytes - result
    *operands, products = plan.spectra
    launches = [(count, given if n == 0 else 0) for n, count in enumerate(operands)] + [(products, result)]
    total = 0.0
    for count, moved in launches:
        blocks = ceil_div(ceil_div(count, plan.lines), facts.multiprocessors)
        cycles = (
            blocks
            * plan.lines
            * plan.points
            * (_PASS_CYCLES * plan.passes + _POINT_CYCLES + _SPECTRUM_CYCLES)
        )
        cycles = max(cycles, _PASS_LATENCY * plan.passes + _LATENCY)
        total += max(cycles / facts.clock, (moved + count * number_bytes) / rate) + _LAUNCH_SECONDS
    padded = TILE**2 * plan.tiles * problem.groups
    multiplied = (
        4
        * padded
        * plan.matrices[2]
        * plan.points
        / (facts.f32_rate / 2 * facts.multiprocessors * facts.clock)
    )
    total += max(multiplied / _SPECTRUM_SHARE, sum(plan.spectra) * number_bytes / rate) + _LAUNCH_SECONDS
    scattered = [t for t in (problem.x, problem.w, problem.y) if _lies_apart(t)]
    return total + sum(t.size for t in scattered) * _SECTOR / (_CACHE_RATE * facts.bandwidth)
