"""Seconds of a convolution by fast Fourier transforms, and the transforms and sizes that take the fewest."""

from __future__ import annotations

import math

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.convolution.fft.plan import SHARED_POINTS, FftPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.formulas.overlap_save import (
    Block,
    FftAxis,
    Transforms,
    axes_of,
    smooth_length,
)
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.processor import Processor
from jitdnn.tensor import compute_dtype

_FEWEST_SIGNALS = 16  # of one call: SciPy transforms several in the lanes of a vector
_LENGTHS_IN_SPANS = (2, 3, 4, 6, 8, 12, 16)  # lengths of transforms that are tried, in spans of the filter
_LONG = 1.5  # times as long does the transform of a signal take that does not stay in the L2 cache

# Of SciPy, by the operations that multiply-adds in registers make in the same time: along one axis, and along several.
_ROW_EFFICIENCY, _PLANE_EFFICIENCY = 1 / 6.5, 1 / 13
_SHORT_POINTS = 1 << 12  # shorter transforms take as long for each point as one of so many
_PRODUCT_EFFICIENCY = 0.35  # of product.py, the same
_COPIES = 4.0  # of each signal: cleared, filled, and copied as a spectrum
_SCATTERED = 3.6  # cycles for each element of a tensor whose last axis is strided
_SECONDS_A_CALL = 1.5e-5  # Python around a call of SciPy or of a product


def choose_plan(problem: Convolution, processor: Processor) -> FftPlan:
    """The cheapest transforms, then as many groups and images as have spectra that the L3 cache holds, one at least."""
    transforms = _choose_transforms(problem, processor)
    one = FftPlan(problem, transforms, 1, 1, 1, processor.line_bytes)
    c, k = one.channels
    most = max(1, processor.l3(cost.FFT_SPECTRA_AT_ONCE_L3) // one.spectrum_bytes)
    images = max(1, min(problem.n, (most - c * k) // (c + k)))
    groups = max(1, min(problem.groups, most // (c * k + images * (c + k))))
    signals = max(_FEWEST_SIGNALS, processor.l2(cost.FFT_SIGNALS_L2) // (one.item * transforms.points))
    return FftPlan(problem, transforms, groups, images, signals, processor.line_bytes)


def most_points(problem: Convolution) -> int:
    """Points of the longest transforms that are chosen for any processor: those that hold every axis at once."""
    is_of_x = problem.direction == "bwd_data"
    return math.prod(smooth_length(axis.shortest(is_of_x)) for axis in axes_of(problem))


def _choose_transforms(problem: Convolution, processor: Processor) -> Transforms:
    item = ITEM_BYTES[compute_dtype(problem.dtype)]
    is_of_x = problem.direction == "bwd_data"
    long_points = processor.l2(cost.FFT_LONG_SIGNAL_L2) // item
    lengths, blocks = zip(
        *(_choose_length(axis, is_of_x, long_points) for axis in axes_of(problem)), strict=True
    )
    return Transforms(lengths, blocks)


def _choose_length(axis: FftAxis, is_of_x: bool, long_points: int) -> tuple[int, tuple[Block, ...]]:
    """The length of the transforms along an axis, and its blocks: one block, or overlapping ones.

    Transforms of more than ``long_points`` do not stay in the L2 cache.
    """
    whole = axis.shortest(is_of_x)
    candidates: list[tuple[int, int | None]] = [(smooth_length(whole), None)]
    for multiple in _LENGTHS_IN_SPANS:
        if multiple * (axis.span + 1) < whole:
            length = smooth_length(multiple * (axis.span + 1))
            candidates.append((length, length))

    def operations(candidate: tuple[int, int | None]) -> float:
        length, block_length = candidate
        factor = _LONG if length > long_points else 1.0
        return len(axis.blocks(block_length, is_of_x)) * _operations(length) * factor

    length, block_length = min(candidates, key=operations)
    return length, tuple(axis.blocks(block_length, is_of_x))


def _operations(points: int) -> float:
    """Operations of a transform of real numbers, as they are counted: 2.5 n log2 n."""
    return 2.5 * points * math.log2(max(2, points))


def seconds(plan: FftPlan, device: CpuDevice) -> float:
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
    processor = device.isa.processor
    total += _spectra_seconds(plan, processor)
    copy_rate = cost.FFT_COPY_RATE * (processor.memory_rate * processor.clock)
    total += _COPIES * signals * transforms.points * plan.item / copy_rate
    scattered = sum(t.size for t in (p.x, p.w, p.y) if abs(t.strides[-1]) != 1)
    total += scattered * (_SCATTERED / processor.clock)
    image_turns = ceil_div(p.n, plan.images_at_once) * blocks
    calls = ceil_div(p.groups, plan.groups_at_once) * (1 + 3 * image_turns)
    calls += signals // plan.signals_at_once
    return total + calls * _SECONDS_A_CALL


def _spectra_seconds(plan: FftPlan, processor: Processor) -> float:
    """Seconds in which the spectra come to the products: a filter's once for every few images."""
    p, (c, k), blocks = plan.problem, plan.channels, plan.transforms.count
    resident = sum(plan.spectra_at_once) * plan.spectrum_bytes
    if resident <= processor.l2(cost.FFT_SPECTRA_L2):
        return 0.0
    turns = ceil_div(p.n, plan.images_at_once) * blocks
    filter_turns = turns * (
        2 if p.direction == "bwd_filter" else 1
    )  # a filter's gradient is read and written
    moved = p.groups * plan.spectrum_bytes * (filter_turns * c * k + blocks * p.n * (c + k))
    if resident <= processor.l3(cost.FFT_SPECTRA_L3):
        return moved / (cost.FFT_L3_RATE * (processor.l3_rate * processor.clock))
    return moved / (cost.FFT_MEMORY_RATE * (processor.memory_rate * processor.clock))
