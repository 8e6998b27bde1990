"""A pooling problem in a normal form: N x C planes of exactly three spatial axes, their windows, and strides.

Everything here is an integer of the problem; the same windows in traced code are in windows.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.pooling import ADAPTIVE, QUANTIZED, Pooling
from jitdnn.tensor import compute_dtype

AXES = 3
_AXIS_FIELDS = ("extent", "out", "window", "stride", "before", "after", "dilation")
_TRIVIAL = (1, 1, 1, 1, 0, 0)


@dataclass(frozen=True)
class Axis:
    """One spatial axis: extents of input and output, windows, and the padding ``before`` and ``after``."""

    extent: int
    out: int
    window: int
    stride: int
    before: int
    after: int
    dilation: int = 1
    is_adaptive: bool = False  # the windows are bins of unequal size, the largest of which is ``window``

    @property
    def span(self) -> int:
        """From the first to the last element of a window."""
        return (self.window - 1) * self.dilation + 1

    @property
    def reach(self) -> int:
        """Where the last window ends."""
        return (self.out - 1) * self.stride - self.before + self.span

    @property
    def is_clipped(self) -> bool:
        """True if some window reaches out of the image."""
        if self.is_adaptive:
            return False
        return self.before > 0 or self.reach > self.extent


@dataclass(frozen=True)
class Geometry:
    """A pooling problem over exactly three spatial axes.

    Axes of extent 1 are dropped, and two axes become one where every window covers all of the inner one: global
    pooling of a dense tensor has a single axis. Fewer than three axes are filled up by trivial ones before the
    last, so that axis 0 is a real one wherever there are two: backward passes add up windows row by row of axis 0.
    ``strides[tensor]`` are those of (n, c, axis 0, axis 1, axis 2) in elements, operands in order, output last.
    """

    images: int
    channels: int
    axes: tuple[Axis, Axis, Axis]
    strides: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(problem: Pooling) -> Geometry:
        tensors = [operand.descriptor for operand in problem.operands]
        axes: list[tuple[Axis, list[int]]] = []
        assert isinstance(problem.dilation, tuple)
        for a, (i, o, k, s, (before, after), d) in enumerate(
            zip(
                problem.spatial, problem.output_spatial, problem.window, problem.stride, problem.padding,
                problem.dilation, strict=True,
            )
        ):  # fmt: skip
            axis = Axis(i, o, k, s, before, after, d if k > 1 else 1)
            if problem.rounding == ADAPTIVE:
                # bins of one size are ordinary windows
                axis = replace(axis, stride=k) if i % o == 0 else replace(axis, is_adaptive=True)
            steps = [t.strides[2 + a] for t in tensors]
            if (i, o, k, before, after) == (1, 1, 1, 0, 0):
                continue
            if axes and (joined := _join(axes[-1], (axis, steps), [t.shape[2 + a] for t in tensors])):
                axes[-1] = joined
            else:
                axes.append((axis, steps))
        nothing = (Axis(*_TRIVIAL), [0] * len(tensors))
        first, rest = axes[: len(axes) - 1], axes[len(axes) - 1 :] or [nothing]
        full = [*first, *[nothing] * (AXES - len(first) - 1), *rest]
        spatial = [steps for _, steps in full]
        return Geometry(
            problem.x.shape[0], problem.x.shape[1], (full[0][0], full[1][0], full[2][0]),
            tuple(
                (*tensor.strides[:2], *(steps[t] for steps in spatial)) for t, tensor in enumerate(tensors)
            ),
        )  # fmt: skip

    @property
    def outputs(self) -> int:
        """Outputs of one plane."""
        return prod(axis.out for axis in self.axes)

    @property
    def inputs(self) -> int:
        """Elements of one plane of the input."""
        return prod(axis.extent for axis in self.axes)

    @property
    def taps(self) -> int:
        return prod(axis.window for axis in self.axes)

    @property
    def is_partition(self) -> bool:
        """True if every element of the input belongs to exactly one window."""
        return (
            not self.is_dilated
            and not self.is_adaptive
            and all(
                (axis.stride == axis.window or axis.out == 1) and axis.reach >= axis.extent
                for axis in self.axes
            )
        )

    @property
    def is_adaptive(self) -> bool:
        return any(axis.is_adaptive for axis in self.axes)

    @property
    def is_dilated(self) -> bool:
        return any(axis.dilation > 1 for axis in self.axes)

    @property
    def has_empty_windows(self) -> bool:
        """True if a window reads padding only, as Caffe's rounding or dilation may leave it."""
        return any(_has_empty_windows(axis) for axis in self.axes)

    @staticmethod
    def slots(tensors: int, *more: str) -> Slots:
        """The integers of a kernel over ``tensors`` tensors."""
        return Slots(
            "images", "channels",
            *(f"{name}{a}" for a in range(AXES) for name in _AXIS_FIELDS),
            *(f"step{t}.{a}" for t in range(tensors) for a in range(2 + AXES)), *more,
        )  # fmt: skip

    def values(self, **more: int) -> dict[str, int]:
        """The values of the slots, ``more`` included."""
        fields = {
            f"{name}{a}": int(getattr(axis, name))
            for a, axis in enumerate(self.axes)
            for name in _AXIS_FIELDS
        }
        steps = {f"step{t}.{a}": s for t, strides in enumerate(self.strides) for a, s in enumerate(strides)}
        return {"images": self.images, "channels": self.channels, **fields, **steps, **more}


def _has_empty_windows(axis: Axis) -> bool:
    if axis.is_adaptive:
        return False
    if axis.dilation == 1:
        return (axis.out - 1) * axis.stride - axis.before >= axis.extent
    # the first tap at or behind the start of the image is already behind its end
    starts = (o * axis.stride - axis.before for o in range(axis.out))
    return any((start if start >= 0 else start % axis.dilation) >= axis.extent for start in starts)


def _join(
    outer: tuple[Axis, list[int]], inner: tuple[Axis, list[int]], extents: Sequence[int]
) -> tuple[Axis, list[int]] | None:
    """Two axes as one, where every window covers all of the inner one and the strides allow it."""
    (a, steps), (b, inner_steps) = outer, inner
    if b.out != 1 or b.before or b.after or b.window != b.extent or a.dilation != 1 or b.dilation != 1:
        return None
    if a.is_adaptive or b.is_adaptive:
        return None
    # in tensors of the output's shape the inner axis has one element, and any stride will do
    w = b.extent
    tensors = list(zip(steps, inner_steps, extents, strict=True))
    if any(outer != w * inner for outer, inner, extent in tensors if extent == w):
        return None
    joined = Axis(a.extent * w, a.out, a.window * w, a.stride * w, a.before * w, a.after * w)
    return joined, [inner if extent == w else outer for outer, inner, extent in tensors]


def arithmetic_of(problem: Pooling) -> str:
    """The type of sums and maxima: f64 also where a sum of 8-bit integers may need more digits than f32 has."""
    is_long = problem.x.dtype in QUANTIZED and problem.mode == "avg" and prod(problem.window) >= 2**16
    return "f64" if is_long else compute_dtype(problem.dtype)
