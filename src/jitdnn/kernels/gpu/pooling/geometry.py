"""Windows and strides of a pooling problem, as arguments of the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from jitdnn.problems.pooling import ADAPTIVE, Pooling
from jitdnn.tensor import DTYPES, TensorDescriptor

AXES = 3
MOST_BLOCKS_OF_IMAGES = 65535


@dataclass(frozen=True)
class Axis:
    """One spatial axis: extents of input and output, windows, the padding, and the strides of each tensor."""

    extent: int
    out: int
    window: int
    stride: int
    before: int
    after: int
    dilation: int
    steps: tuple[int, ...]
    is_adaptive: bool = False  # windows are bins of unequal size, the largest of which is `window`

    @property
    def reach(self) -> int:
        """Where the last window ends."""
        return (self.out - 1) * self.stride - self.before + (self.window - 1) * self.dilation + 1

    @property
    def has_empty_windows(self) -> bool:
        return not self.is_adaptive and (self.out - 1) * self.stride - self.before >= self.extent

    @property
    def is_whole(self) -> bool:
        """The only window is the axis itself."""
        return self.out == 1 and self.window == self.extent and self.before == 0 and self.dilation == 1

    @property
    def is_plain(self) -> bool:
        """Windows of one size, whose elements are neighbours."""
        return not self.is_adaptive and self.dilation == 1


@dataclass(frozen=True)
class Geometry:
    """A pooling problem over exactly three spatial axes (d, h, w), the missing ones in front.

    `steps[t]` are the strides of tensor t, operands in order, along N and C, in elements.
    """

    images: int
    channels: int
    axes: tuple[Axis, Axis, Axis]
    steps: tuple[tuple[int, int], ...]
    tensors: tuple[TensorDescriptor, ...]

    @staticmethod
    def of(problem: Pooling) -> Geometry:
        tensors = tuple(operand.descriptor for operand in problem.operands)
        axes = [Axis(1, 1, 1, 1, 0, 0, 1, (0,) * len(tensors))] * (AXES - len(problem.spatial))
        assert isinstance(problem.dilation, tuple)
        for a, (i, o, k, s, (before, after), d) in enumerate(
            zip(
                problem.spatial, problem.output_spatial, problem.window, problem.stride, problem.padding,
                problem.dilation, strict=True,
            )
        ):  # fmt: skip
            axis = Axis(
                i, o, k, s, before, after, d if k > 1 else 1, tuple(t.strides[2 + a] for t in tensors)
            )
            if problem.rounding == ADAPTIVE:
                # bins of one size are ordinary windows
                axis = replace(axis, stride=k) if i % o == 0 else replace(axis, is_adaptive=True)
            axes.append(axis)
        steps = tuple((t.strides[0], t.strides[1]) for t in tensors)
        images, channels = problem.x.shape[:2]
        return Geometry(images, channels, (axes[0], axes[1], axes[2]), steps, tensors)

    @property
    def is_adaptive(self) -> bool:
        return any(axis.is_adaptive for axis in self.axes)

    @property
    def outputs(self) -> int:
        """Outputs of one plane."""
        return prod(axis.out for axis in self.axes)

    @property
    def inputs(self) -> int:
        """Elements of one plane of the input."""
        return prod(axis.extent for axis in self.axes)

    @property
    def offset_type(self) -> str:
        """The integers that hold the offset of any element within its image, and the number of any unit in it."""
        farthest = self.channels * max(self.inputs, self.outputs)
        for t in range(len(self.tensors)):
            extents = [(self.channels, self.steps[t][1])]
            extents += [(max(axis.extent, axis.out), axis.steps[t]) for axis in self.axes]
            farthest = max(farthest, sum(extent * abs(step) for extent, step in extents))
        for axis in self.axes:
            padded = axis.extent + axis.before + axis.after + axis.window * axis.dilation
            bins = (axis.extent + 1) * (axis.out + 1) if axis.is_adaptive else 0
            farthest = max(farthest, padded, bins)
        return "i32" if farthest < 2**30 else "i64"

    @property
    def position_type(self) -> str:
        """The integers that hold a place in a plane of x."""
        return "i32" if self.inputs < 2**31 else "i64"

    def is_channels_last(self, names: Sequence[int]) -> bool:
        """Channels lie closer together than columns do, in most of these tensors."""
        closer = [
            abs(self.steps[t][1]) < abs(self.axes[-1].steps[t]) or self.axes[-1].steps[t] == 0 for t in names
        ]
        return 2 * sum(closer) > len(closer)

    def lanes(self, names: Sequence[int]) -> int:
        """Channels of all these tensors that lie side by side in 16 bytes, or 1."""
        lanes = max(1, 16 // DTYPES[self.tensors[0].dtype])
        for t in names:
            others = self._strides(t, (0, *range(2, len(self.tensors[t].shape))))
            if self.steps[t][1] != 1 or any(step % lanes for step in others):
                return 1
        return lanes if self.channels % lanes == 0 else 1

    def columns(self, t: int, most: int) -> int:
        """Columns of tensor t, a power of two up to `most`, that any access may take at once."""
        width = self.tensors[t].shape[-1]
        if self.axes[-1].steps[t] != 1:
            return 1
        steps = self._strides(t, range(len(self.tensors[t].shape) - 1))
        while most > 1 and (width % most or any(step % most for step in steps)):
            most //= 2
        return most

    def _strides(self, t: int, axes: Iterable[int]) -> list[int]:
        """Those of some axes of tensor t; where there is one index only, the stride may be anything."""
        tensor = self.tensors[t]
        return [tensor.strides[axis] for axis in axes if tensor.shape[axis] > 1]

    def numbers(self) -> list[int]:
        """What kernels over `AXIS(d), AXIS(h), AXIS(w)` and the `STEPS` of all tensors take."""
        numbers = [self.images, self.channels]
        for a in self.axes:
            numbers += [a.extent, a.out, a.window, a.stride, a.before, a.after, a.dilation]
        for t, steps in enumerate(self.steps):
            numbers += [*steps, *(axis.steps[t] for axis in self.axes)]
        return numbers
