"""The axes of space of a depthwise convolution as its kernels see them: without dilation, one form for all directions.

Rows that a dilated filter reads together are d apart: they form d dilation phases, each an undilated convolution over
every d-th row. With positions k of results and m of the input, both counted within a phase, an axis is

    gathered   m = stride * k + tap        fprop; dgrad of stride 1, with mirrored taps
    scattered  k = stride * m + tap        dgrad of a greater stride

Position k of phase f is element pitch * k + origin + slope * f of the output's axis, with the output's numbers
(`Line`); the same for m and the input. Elements outside of the extents are zero, or are not stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor


@dataclass(frozen=True)
class Line:
    """Where positions are on the axis of a tensor, which has `extent` elements, `step` apart in memory."""

    pitch: int
    origin: int
    slope: int
    extent: int
    step: int

    def positions(self, phases: int) -> tuple[int, int]:
        """The first position, and the one behind the last, that are within the extent in any phase."""
        last = self.origin + self.slope * (phases - 1)
        least, most = min(self.origin, last), max(self.origin, last)
        return -(most // self.pitch), (self.extent - 1 - least) // self.pitch + 1


@dataclass(frozen=True)
class Axis:
    """One axis of space. `tap_step`: elements from one tap to the next in w, negative where taps are mirrored."""

    taps: int
    tap_step: int
    tap_base: int
    stride: int
    is_scattered: bool
    phases: int
    input: Line
    output: Line

    @cached_property
    def start(self) -> int:
        """The first position that holds a result in some phase."""
        return self.output.positions(self.phases)[0]

    @cached_property
    def count(self) -> int:
        """Positions from `start` on that hold results."""
        start, end = self.output.positions(self.phases)
        return max(0, end - start)


@dataclass(frozen=True)
class Window:
    """A depthwise convolution: axes (depth, height, width) with those that a problem lacks in front, of extent 1.

    `input` is the tensor that the filter slides over, `output` the one that it does not: x and y forward and for the
    filter's gradient, dy and dx backward to the data. `multiplier`: results of each channel of the input.
    """

    direction: str
    input: TensorDescriptor
    output: TensorDescriptor
    filter: TensorDescriptor
    axes: tuple[Axis, Axis, Axis]
    multiplier: int

    @cached_property
    def n(self) -> int:
        return self.input.shape[0]

    @cached_property
    def channels(self) -> int:
        """Channels of y."""
        return self.filter.shape[0]

    @cached_property
    def dtype(self) -> str:
        return self.input.dtype

    @cached_property
    def taps(self) -> int:
        return math.prod(axis.taps for axis in self.axes)

    @cached_property
    def is_channels_last(self) -> bool:
        """Whether neighbouring channels are neighbours in memory, on both sides."""
        return self.multiplier == 1 and self.input.strides[1] == self.output.strides[1] == 1

    @cached_property
    def has_channel_lanes(self) -> bool:
        """Whether neighbouring threads take neighbouring channels: of several results of a channel, these."""
        return self.is_channels_last or (self.multiplier > 1 and self.output.strides[1] == 1)

    @cached_property
    def bytes_moved(self) -> int:
        return self.input.nbytes + self.output.nbytes

    def shift(self, span: int) -> str:
        """The C type of offsets within an image's `span` elements."""
        return "i32" if span < 2**31 else "i64"


def refuse(problem: Convolution) -> str | None:
    """Why a problem has no window, if it has none."""
    if problem.is_integer or problem.dtype == "f64":
        return f"it computes in f32: {problem.x.dtype} is for another algorithm"
    if problem.w.shape[1] != 1:
        channels = f"groups={problem.groups}, c={problem.c}"
        return f"each group must have one channel of x, not {problem.w.shape[1]}: {channels}"
    if 0 in problem.x.shape or 0 in problem.y.shape:
        return "a tensor is empty: use an algorithm without tiles"
    for stride, dilation in zip(problem.stride, problem.dilation, strict=True):
        if problem.direction == "bwd_data" and stride > 1 and math.gcd(stride, dilation) > 1:
            return f"stride {stride} and dilation {dilation} share a factor, which leaves holes between the results"
    return None


def lower(problem: Convolution) -> Window:
    """The window of a problem that `refuse` takes."""
    is_data = problem.direction == "bwd_data"
    source, result = (problem.y, problem.x) if is_data else (problem.x, problem.y)
    missing = 3 - len(problem.spatial)
    axes = [_trivial()] * missing
    for number, (stride, dilation, padding) in enumerate(
        zip(problem.stride, problem.dilation, problem.padding, strict=True)
    ):
        axes.append(
            _axis(
                is_data,
                problem.mode == "convolution",
                problem.filter_spatial[number],
                problem.w.strides[2 + number],
                stride,
                dilation,
                padding[0],
                (source.shape[2 + number], source.strides[2 + number]),
                (result.shape[2 + number], result.strides[2 + number]),
            )
        )
    multiplier = problem.k // problem.c
    return Window(problem.direction, source, result, problem.w, (axes[0], axes[1], axes[2]), multiplier)


def _trivial() -> Axis:
    one = Line(1, 0, 0, 1, 0)
    return Axis(1, 0, 0, 1, False, 1, one, one)


def _axis(
    is_data: bool, is_flipped: bool, taps: int, step: int, stride: int, dilation: int, before: int,
    source: tuple[int, int], result: tuple[int, int],
) -> Axis:  # fmt: skip
    if taps == 1:
        dilation = 1
    if is_data and stride > 1:
        # x[stride * o + dilation * tap - before] takes dy[o]: o = dilation * m + f
        base, tap_step = ((taps - 1) * step, -step) if is_flipped else (0, step)
        read = Line(dilation, 0, 1, *source)
        written = Line(dilation, -before, stride, *result)
        return Axis(taps, tap_step, base, stride, True, dilation, read, written)
    is_mirrored = is_flipped != is_data
    base, tap_step = ((taps - 1) * step, -step) if is_mirrored else (0, step)
    if is_data:
        before = dilation * (taps - 1) - before
    common = math.gcd(stride, dilation)
    phases = dilation // common
    read = Line(dilation, -before, stride, *source)
    written = Line(phases, 0, 1, *result)
    return Axis(taps, tap_step, base, stride // common, False, phases, read, written)
