"""A convolution with few input channels as `common.cuh` sees it: three axes, staged rows, words of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor

MOST_CHANNELS = 8
HALVES = ("bf16", "f16")
_BANKS = 32

Defines = dict[str, object]


def three(values: Sequence[int], missing: int) -> tuple[int, int, int]:
    """The values of up to three spatial axes with those in front that are missing."""
    d, h, w = (missing,) * (3 - len(values)) + tuple(values)
    return d, h, w


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


@dataclass(frozen=True)
class Shape:
    """What all three directions share."""

    problem: Convolution

    @property
    def spatial(self) -> tuple[int, int, int]:
        return three(self.problem.spatial, 1)

    @property
    def taps(self) -> tuple[int, int, int]:
        return three(self.problem.filter_spatial, 1)

    @property
    def out(self) -> tuple[int, int, int]:
        return three(self.problem.output_spatial, 1)

    @property
    def stride(self) -> tuple[int, int, int]:
        return three(self.problem.stride, 1)

    @property
    def before(self) -> tuple[int, int, int]:
        """Padding in front of each axis."""
        return three(tuple(b for b, _ in self.problem.padding), 0)

    @property
    def dilation(self) -> tuple[int, int, int]:
        """1 along axes of one tap."""
        own = three(self.problem.dilation, 1)
        d, h, w = (n if taps > 1 else 1 for n, taps in zip(own, self.taps, strict=True))
        return d, h, w

    @property
    def y_vector(self) -> int:
        """Neighbouring channels of y that can be stored at once: 8, 4, 2 or 1."""
        n, c, d, h, w = strides_of(self.problem.y)
        return power_of_two((n, d, h, w), 8) if c == 1 else 1

    def defines(self) -> Defines:
        """The macros of the shape and of all strides."""
        problem = self.problem
        names: Defines = {"IS_BF16": int(problem.x.dtype == "bf16")}
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
        names["X_LOW"], names["X_HIGH"] = problem.x.span()
        _, y_c, *y_space = strides_of(problem.y)
        closest = min((abs(s) for s in y_space if s), default=1 << 62)
        names["Y_PLANES"] = int(y_c != 1 and closest < abs(y_c))
        return names


def _axes(names: Sequence[str], values: Sequence[int]) -> Defines:
    return dict(zip(names, values, strict=True))


@dataclass(frozen=True)
class Rows:
    """Staged rows of x for blocks of `down` x `across` outputs; see common.cuh."""

    shape: Shape
    down: int
    across: int

    @property
    def channels(self) -> int:
        return self.shape.problem.w.shape[1]

    @property
    def is_dense(self) -> bool:
        """Whether the pixels of a row of x follow each other, and the channels of a pixel."""
        _, c, _, _, w = strides_of(self.shape.problem.x)
        return (self.channels == 1 or c == 1) and (w == self.channels or self.shape.spatial[2] == 1)

    @property
    def x_bytes(self) -> int:
        """Bytes that a copy takes at once: 16, 8, 4, or 2 for an element at a time."""
        n, c, d, h, w = strides_of(self.shape.problem.x)
        width = self.shape.spatial[2]
        if self.is_dense:
            return max(2, 2 * power_of_two((n, d, h, width * self.channels), 8))
        if self.channels > 1 and w == 1 and power_of_two((n, c, d, h, width), 8) == 8:
            return 16
        return 2

    @property
    def is_planar(self) -> bool:
        """Whether neighbours in memory are columns and not channels."""
        _, c, _, _, w = strides_of(self.shape.problem.x)
        return self.channels > 1 and c != 1 and abs(w) < abs(c)

    @property
    def phases(self) -> int:
        return 1 + self.shape.stride[2] * self.channels % 2

    @property
    def shift(self) -> int:
        if self.is_planar:
            return -self.shape.before[2] % 8 * self.channels
        return -self.shape.before[2] * self.channels % 8

    @property
    def run_words(self) -> int:
        run = self.shape.taps[2] * self.channels
        lead = 1 if self.phases == 2 else self.shift % 2
        return (run + lead + 1) // 2

    @property
    def words(self) -> int:
        """Words of all runs of an output."""
        return self.shape.taps[0] * self.shape.taps[1] * self.run_words

    @property
    def halo(self) -> int:
        """Staged rows of one tap along d."""
        shape = self.shape
        return (self.down - 1) * shape.stride[1] + (shape.taps[1] - 1) * shape.dilation[1] + 1

    @property
    def rows(self) -> int:
        return self.shape.taps[0] * self.halo

    @property
    def span(self) -> int:
        """Columns of a staged row."""
        return (self.across - 1) * self.shape.stride[2] + self.shape.taps[2]

    @property
    def row_words(self) -> int:
        """Words of a staged row: such that the lanes of a read, which may be in two rows, meet few banks twice."""
        if self.is_planar:
            whole = -(-(self.shift // self.channels + self.span) // 8) * 8 * self.channels
        else:
            whole = -(-(self.shift + self.span * self.channels) // 8) * 8
        least = -(-(whole // 2 + 2) // 4) * 4
        column = self.phases * self.shape.stride[2] * self.channels // 2
        return _quiet(
            least, column, self.run_words, self.words, self.shape.taps[1], self.halo, self.shape.dilation[1]
        )

    @property
    def bytes(self) -> int:
        return 4 * self.rows * self.row_words

    @property
    def strips(self) -> int:
        o, p, q = self.shape.out
        return self.shape.problem.n * o * -(-p // self.down) * -(-q // self.across)

    @property
    def slots(self) -> int:
        """Outputs of a phase in a strip."""
        return self.down * self.across // self.phases

    def defines(self) -> Defines:
        return {
            "BLOCK_P": self.down, "BLOCK_Q": self.across, "HALO_H": self.halo, "ROW_WORDS": self.row_words,
            "SHIFT": self.shift, "PHASES": self.phases, "RUN_WORDS": self.run_words, "X_BYTES": self.x_bytes,
            "X_PLANES": int(self.is_planar), "X_IS_DENSE": int(self.is_dense), "STRIPS": self.strips,
        }  # fmt: skip

    def fetch_clocks(self) -> float:
        """Clocks of a multiprocessor to stage the rows of a strip, beside the wait for memory."""
        elements = self.rows * self.span * self.channels
        if self.is_dense and self.x_bytes == 2:  # copied 8 at a time, then moved
            return elements / 8 / 32 * 16 + 300
        return elements / (self.x_bytes / 2) / 32 * (4 if self.x_bytes > 2 else 8)


@lru_cache(4096)
def _quiet(least: int, column: int, run_words: int, words: int, taps: int, halo: int, dilation: int) -> int:
    def conflicts(row: int) -> int:
        total = 0
        for first in range(0, min(words, 48), 4):
            banks: dict[int, set[int]] = {}
            for kk in range(first, min(first + 4, words)):
                run, word = divmod(kk, run_words)
                place = (run // taps * halo + run % taps * dilation) * row + word
                for g in range(8):
                    banks.setdefault((place + g * column) % _BANKS, set()).add(place + g * column)
            total += max(map(len, banks.values()))
        return total

    return min(range(least, least + _BANKS, 4), key=lambda row: (conflicts(row), row))


# macros of how wide an operand is accessed: the operand's number, bytes of a unit, and the value that asks nothing
_WIDTHS: dict[str, tuple[int, int, int]] = {
    "X_BYTES": (0, 1, 2),
    "X_IS_EVEN": (0, 4, 0),
    "Y_IS_EVEN": (1, 4, 0),
    "SOURCE_PIECE": (0, 2, 0),
    "RESULT_VECTOR": (2, 2, 1),
    "X_PAIRS": (2, 4, 0),
}


def alignments_of(names: Defines) -> tuple[int, int, int]:
    """What the addresses of the operands must be multiples of, in bytes."""
    found = [2, 2, 2]
    for name, (operand, unit, _) in _WIDTHS.items():
        found[operand] = max(found[operand], unit * int(str(names.get(name, 0))))
    if (
        names.get("Y_VECTOR") == 8
    ):  # dy is the first operand of the data's gradient, the second of the filter's
        found[0 if "STEP_W" in names else 1] = 16
    return found[0], found[1], found[2]


def elementwise(defines: Sequence[tuple[str, object]]) -> tuple[tuple[str, object], ...]:
    """The macros for operands at any address."""
    least = {name: value for name, (_, _, value) in _WIDTHS.items()} | {"Y_VECTOR": 1}
    return tuple((name, least.get(name, value)) for name, value in defines)
