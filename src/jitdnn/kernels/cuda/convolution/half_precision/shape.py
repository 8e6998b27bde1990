"""A convolution as macros: extents, taps, strides along three axes of space, and how wide tensors may be accessed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jitdnn.kernels.cuda.gemm.plan import three
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor

HALVES = ("bf16", "f16")
"""The types of half precision."""
Defines = dict[str, object]
"""Macros by name."""

# macros that say how wide an operand is accessed: the operand's number, bytes of the macro's unit where elements have
# two, and its value for operands at any address
_WIDTHS: dict[str, tuple[int, int, int]] = {
    "X_BYTES": (0, 1, 2),
    "X_IS_EVEN": (0, 4, 0),
    "Y_IS_EVEN": (1, 4, 0),
    "SOURCE_PIECE": (0, 2, 0),
    "RESULT_VECTOR": (2, 2, 1),
    "X_PAIRS": (2, 4, 0),
}


@dataclass(frozen=True)
class Shape:
    """A convolution in three dimensions, those that the problem lacks in front, of extent 1.

    `in_halves`: x and w are read in half precision whatever the problem says, and y is f32.
    """

    problem: Convolution
    in_halves: bool = False

    @cached_property
    def spatial(self) -> tuple[int, int, int]:
        return three(self.problem.spatial, 1)

    @cached_property
    def taps(self) -> tuple[int, int, int]:
        return three(self.problem.filter_spatial, 1)

    @cached_property
    def out(self) -> tuple[int, int, int]:
        return three(self.problem.output_spatial, 1)

    @cached_property
    def stride(self) -> tuple[int, int, int]:
        return three(self.problem.stride, 1)

    @cached_property
    def before(self) -> tuple[int, int, int]:
        """Padding in front of each axis."""
        return three(tuple(b for b, _ in self.problem.padding), 0)

    @cached_property
    def dilation(self) -> tuple[int, int, int]:
        """1 along axes of one tap."""
        own = three(self.problem.dilation, 1)
        d, h, w = (n if taps > 1 else 1 for n, taps in zip(own, self.taps, strict=True))
        return d, h, w

    @cached_property
    def size(self) -> int:
        """Bytes of an element, of y where it is not what `y_size` says."""
        return 2 if self.in_halves else DTYPES[self.problem.x.dtype]

    @cached_property
    def y_size(self) -> int:
        """Bytes of an element of y."""
        return 4 if self.in_halves else self.size

    @cached_property
    def y_vector(self) -> int:
        """Neighbouring channels of y that can be stored at once: as many as fit in 16 bytes, or fewer."""
        n, c, d, h, w = strides_of(self.problem.y)
        return power_of_two((n, d, h, w), 16 // self.y_size) if c == 1 else 1

    def defines(self) -> Defines:
        """The macros of the shape and of all strides."""
        return dict(self._defines)

    @cached_property
    def _defines(self) -> Defines:
        problem = self.problem
        dtype = problem.x.dtype
        names: Defines = {
            "IS_BF16": int(dtype == "bf16"),
            "IS_F32": int(dtype == "f32" and not self.in_halves),
        }
        if self.in_halves:
            names["RESULT_IS_F32"] = 1
        names["PER_WORD"] = 4 // self.size
        reach = max(farthest(tensor) for tensor in (problem.x, problem.w, problem.y))
        names["INDEX"] = "i32" if reach < 1 << 30 else "i64"
        names |= {"IMAGES": problem.n, "CHANNELS": problem.w.shape[1], "FILTERS": problem.k}
        names |= _axes(("DEPTH", "HEIGHT", "WIDTH"), self.spatial)
        names |= _axes(("TAPS_T", "TAPS_R", "TAPS_S"), self.taps)
        names |= _axes(("OUT_O", "OUT_P", "OUT_Q"), self.out)
        names |= _axes(("STRIDE_D", "STRIDE_H", "STRIDE_W"), self.stride)
        names |= _axes(("PAD_D", "PAD_H", "PAD_W"), self.before)
        names |= _axes(("DILATION_D", "DILATION_H", "DILATION_W"), self.dilation)
        for tensor, letter in ((problem.x, "X"), (problem.y, "Y")):
            names |= _axes([f"{letter}_{axis}" for axis in "NCDHW"], strides_of(tensor))
        k, c, *taps = strides_of(problem.w)
        base = 0
        if problem.mode == "convolution":
            base = sum(s * (e - 1) for s, e in zip(taps, self.taps, strict=True))
            taps = [-s for s in taps]
        names |= _axes(["W_BASE", "W_K", "W_C", "W_T", "W_R", "W_S"], (base, k, c, *taps))
        _, y_c, *y_space = strides_of(problem.y)
        closest = min((abs(s) for s in y_space if s), default=1 << 62)
        names["Y_IS_PLANAR"] = int(y_c != 1 and closest < abs(y_c))
        return names


def strides_of(tensor: TensorDescriptor) -> tuple[int, int, int, int, int]:
    """Strides along (n, channel, d, h, w), 0 for axes of one element."""
    own = tuple(s if e > 1 else 0 for e, s in zip(tensor.shape, tensor.strides, strict=True))
    d, h, w = three(own[2:], 0)
    return own[0], own[1], d, h, w


def power_of_two(numbers: Sequence[int], most: int) -> int:
    """The largest power of two, up to `most`, that divides all numbers."""
    return math.gcd(most, *numbers)


def farthest(tensor: TensorDescriptor) -> int:
    """The largest distance of an element from that at index 0."""
    reaches = [(e - 1) * s for e, s in zip(tensor.shape, tensor.strides, strict=True)]
    return max(sum(r for r in reaches if r > 0), -sum(r for r in reaches if r < 0))


def _axes(names: Sequence[str], values: Sequence[int]) -> Defines:
    return dict(zip(names, values, strict=True))


def alignments_of(names: Defines) -> tuple[int, int, int]:
    """What the addresses of the operands must be multiples of, in bytes."""
    size = 4 if names["IS_F32"] else 2
    found = [size] * 3
    for name, (operand, unit, _) in _WIDTHS.items():
        own = 4 if operand == 2 and names.get("RESULT_IS_F32") else size
        width = unit if name == "X_BYTES" else unit * own // 2
        found[operand] = max(found[operand], width * int(str(names.get(name, 0))))
    if names.get("Y_VECTOR") == 16 // size:  # dy is the first operand of dgrad, the second of wgrad
        found[0 if "STEP_W" in names else 1] = 16
    if names.get("X_IS_SECOND"):
        found[:2] = found[1], found[0]
    return found[0], found[1], found[2]


def unaligned(defines: Sequence[tuple[str, object]]) -> tuple[tuple[str, object], ...]:
    """The macros for operands at any address."""
    least = {name: value for name, (_, _, value) in _WIDTHS.items()} | {"Y_VECTOR": 1}
    if dict(defines)["IS_F32"]:
        least["X_BYTES"] = 4
    return tuple((name, least.get(name, value)) for name, value in defines)
