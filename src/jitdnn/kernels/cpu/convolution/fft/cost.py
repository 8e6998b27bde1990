"""Seconds of a convolution by fast Fourier transforms, and the transforms and sizes that take the fewest."""

from __future__ import annotations

import math

from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu.convolution.fft.overlap_save import (
    Block,
    FftAxis,
    Transforms,
    axes_of,
    smooth_length,
)
from jitdnn.kernels.cpu.convolution.fft.plan import SHARED_POINTS, FftPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

_SIGNALS_BYTES = 512 << 10  # signals of one call of SciPy
_FEWEST_SIGNALS = 16  # of one call: SciPy transforms several in the lanes of a vector
_SPECTRA_BYTES = 4 << 20  # in memory at once, if one group of one image needs no more
_LENGTHS_IN_SPANS = (2, 3, 4, 6, 8, 12, 16)  # lengths of transforms that are tried, in spans of the filter
_LONG_BYTES = 512 << 10  # a longer signal does not stay in the L2 cache while it is transformed
_LONG = 1.5  # times as long does its transform take

# Of SciPy, by the operations that multiply-adds in registers make in the same time: along one axis, and along several.
_ROW_EFFICIENCY, _PLANE_EFFICIENCY = 1 / 6.5, 1 / 13
_SHORT_POINTS = 1 << 12  # shorter transforms take as long for each point as one of so many
_PRODUCT_EFFICIENCY = 0.35  # of product.py, the same
_COPY_BYTES_A_SECOND = 2e10  # NumPy
_COPIES = 4.0  # of each signal: cleared, filled, and copied as a spectrum
# Spectra that products read come from the L2 cache at no cost, else from the L3 cache or from memory.
_L2_BYTES, _L3_BYTES = 768 << 10, 16 << 20
_L3_BYTES_A_SECOND, _MEMORY_BYTES_A_SECOND = 8e10, 3.6e10
_SECONDS_A_SCATTERED = 1.2e-9  # for each element of a tensor whose last axis is strided
_SECONDS_A_CALL = 1.5e-5  # Python around a call of SciPy or of a product


def choose_plan(problem: Convolution) -> FftPlan:
    """The cheapest transforms, then as many groups and images as there is memory for."""
    transforms = _choose_transforms(problem)
    one = FftPlan(problem, transforms, 1, 1, 1)
    c, k = one.channels
    most = max(1, _SPECTRA_BYTES // one.spectrum_bytes)
    images = max(1, min(problem.n, (most - c * k) // (c + k)))
    groups = max(1, min(problem.groups, most // (c * k + images * (c + k))))
    signals = max(_FEWEST_SIGNALS, _SIGNALS_BYTES // (one.item * transforms.points))
    return FftPlan(problem, transforms, groups, images, signals)


def _choose_transforms(problem: Convolution) -> Transforms:
    item = ITEM_BYTES[compute_dtype(problem.dtype)]
    is_of_x = problem.direction == "bwd_data"
    lengths, blocks = zip(*(_choose_length(axis, is_of_x, item) for axis in axes_of(problem)), strict=True)
    return Transforms(lengths, blocks)


def _choose_length(axis: FftAxis, is_of_x: bool, item: int) -> tuple[int, tuple[Block, ...]]:
    """The length of the transforms along an axis, and its blocks: one block, or overlapping ones."""
    whole = axis.shortest(is_of_x)
    candidates: list[tuple[int, int | None]] = [(smooth_length(whole), None)]
    for multiple in _LENGTHS_IN_SPANS:
        if multiple * (axis.span + 1) < whole:
            length = smooth_length(multiple * (axis.span + 1))
            candidates.append((length, length))

    def cost(candidate: tuple[int, int | None]) -> float:
        length, block_length = candidate
        factor = _LONG if length * item > _LONG_BYTES else 1.0
        return len(axis.blocks(block_length, is_of_x)) * _operations(length) * factor

    length, block_length = min(candidates, key=cost)
    return length, tuple(axis.blocks(block_length, is_of_x))


def _operations(points: int) -> float:
    """Operations of a transform of real numbers, as they are counted: 2.5 n log2 n."""
    return 2.5 * points * math.log2(max(2, points))


def seconds(plan: FftPlan, device: Device) -> float:
    """Seconds of a call: transforms, products, copies, and the Python around them."""
    p, (c, k), transforms = plan.problem, plan.channels, plan.transforms
    blocks = transforms.count
    signals = p.groups * c * k + blocks * p.n * (p.c + p.k)
    rate = device.peak_flops(plan.dtype)
    shortness = max(1.0, math.log(_SHORT_POINTS, max(2, transforms.points)))
    is_row = sum(length > 1 for length in transforms.lengths) < 2
    is_shared = plan.signals_at_once * transforms.points >= SHARED_POINTS
    idle = 1 if is_shared else device.threads  # the rate is that of all threads, and small calls run on one
    efficiency = _ROW_EFFICIENCY if is_row else _PLANE_EFFICIENCY
    total = idle * signals * (_operations(transforms.points) * shortness) / (rate * efficiency)
    products = blocks * p.n * p.groups * c * k * transforms.frequencies
    total += 8.0 * products / (rate * _PRODUCT_EFFICIENCY)
    total += _spectra_seconds(plan)
    total += _COPIES * signals * transforms.points * plan.item / _COPY_BYTES_A_SECOND
    scattered = sum(t.size for t in (p.x, p.w, p.y) if abs(t.strides[-1]) != 1)
    total += scattered * _SECONDS_A_SCATTERED
    image_turns = ceil_div(p.n, plan.images_at_once) * blocks
    calls = ceil_div(p.groups, plan.groups_at_once) * (1 + 3 * image_turns)
    calls += signals // plan.signals_at_once
    return total + calls * _SECONDS_A_CALL


def _spectra_seconds(plan: FftPlan) -> float:
    """Seconds in which the spectra come to the products: a filter's once for every few images."""
    p, (c, k), blocks = plan.problem, plan.channels, plan.transforms.count
    resident = sum(plan.spectra_at_once) * plan.spectrum_bytes
    if resident <= _L2_BYTES:
        return 0.0
    turns = ceil_div(p.n, plan.images_at_once) * blocks
    filter_turns = turns * (
        2 if p.direction == "bwd_filter" else 1
    )  # a filter's gradient is read and written
    moved = p.groups * plan.spectrum_bytes * (filter_turns * c * k + blocks * p.n * (c + k))
    return moved / (_L3_BYTES_A_SECOND if resident <= _L3_BYTES else _MEMORY_BYTES_A_SECOND)
