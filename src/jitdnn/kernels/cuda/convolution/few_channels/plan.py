"""Frozen sizes of the kernels with few channels: staged rows of x (fprop, wgrad), tilings (dgrad), and the plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from jitdnn.devices.gpu import Launch
from jitdnn.kernels.cuda.convolution.half_precision.axis import Axis
from jitdnn.kernels.cuda.convolution.half_precision.shape import (
    Defines,
    Shape,
    alignments_of,
    power_of_two,
    strides_of,
    unaligned,
)

_BANKS = 32


@dataclass(frozen=True)
class Plan:
    """Macros, `threads` and `shared` bytes of a thread block, the grid, and the expected time in seconds.

    `workspace`: bytes. `pack`: the launch that makes the fragments of the filter first; `reduction`: the one that adds
    partial sums behind.
    """

    defines: tuple[tuple[str, object], ...]
    threads: int
    grid: tuple[int, int]
    shared: int
    seconds: float
    workspace: int = 0
    pack: Launch | None = None
    reduction: Launch | None = None

    @cached_property
    def alignments(self) -> tuple[int, int, int]:
        """What the addresses of the operands must be multiples of, in bytes."""
        return alignments_of(dict(self.defines))

    @property
    def with_x_second(self) -> Plan:
        """The same of a filter's gradient whose operands are dy and x, in this order."""
        return replace(self, defines=tuple((n, 1 if n == "X_IS_SECOND" else v) for n, v in self.defines))

    @cached_property
    def unaligned(self) -> Plan:
        """The same for operands at any address."""
        return replace(self, defines=unaligned(self.defines))


@dataclass(frozen=True)
class Rows:
    """The staged rows of x of a strip of `down` x `across` outputs; see common.cuh."""

    shape: Shape
    down: int
    across: int

    @cached_property
    def channels(self) -> int:
        return self.shape.problem.w.shape[1]

    @cached_property
    def piece(self) -> int:
        """Elements of 16 bytes."""
        return 16 // self.shape.size

    @cached_property
    def per_word(self) -> int:
        """Elements of a word of 32 bits."""
        return 4 // self.shape.size

    @cached_property
    def is_dense(self) -> bool:
        """Whether a row of x is contiguous: its pixels, and the channels of each."""
        _, c, _, _, w = strides_of(self.shape.problem.x)
        return (self.channels == 1 or c == 1) and (w == self.channels or self.shape.spatial[2] == 1)

    @cached_property
    def x_bytes(self) -> int:
        """Bytes of a copy: 16, 8, 4, or those of an element."""
        size = self.shape.size
        n, c, d, h, w = strides_of(self.shape.problem.x)
        width = self.shape.spatial[2]
        if self.is_dense:
            return max(size, size * power_of_two((n, d, h, width * self.channels), self.piece))
        if size == 2 and self.is_planar and w == 1 and power_of_two((n, c, d, h, width), 8) == 8:
            return 16
        return size

    @cached_property
    def is_planar(self) -> bool:
        """Whether neighbours in memory are columns and not channels."""
        _, c, _, _, w = strides_of(self.shape.problem.x)
        return self.channels > 1 and c != 1 and abs(w) < abs(c)

    @cached_property
    def phases(self) -> int:
        """2 where the runs of neighbouring outputs begin an odd number of elements apart."""
        return 1 + self.shape.stride[2] * self.channels % self.per_word

    @cached_property
    def shift(self) -> int:
        """Elements of a staged row before its first column."""
        if self.is_planar:
            return -self.shape.before[2] % self.piece * self.channels
        return -self.shape.before[2] * self.channels % self.piece

    @cached_property
    def run_words(self) -> int:
        """Words that a run of a filter row covers."""
        run = self.shape.taps[2] * self.channels
        lead = 1 if self.phases == 2 else self.shift % self.per_word
        return -(-(run + lead) // self.per_word)

    @cached_property
    def words(self) -> int:
        """Words of all runs of an output."""
        return self.shape.taps[0] * self.shape.taps[1] * self.run_words

    @cached_property
    def halo(self) -> int:
        """Staged rows of one tap along d."""
        shape = self.shape
        return (self.down - 1) * shape.stride[1] + (shape.taps[1] - 1) * shape.dilation[1] + 1

    @cached_property
    def rows(self) -> int:
        return self.shape.taps[0] * self.halo

    @cached_property
    def span(self) -> int:
        """Columns of a staged row."""
        return (self.across - 1) * self.shape.stride[2] + self.shape.taps[2]

    @cached_property
    def least_words(self) -> int:
        """Words of a staged row without padding against bank conflicts."""
        if self.is_planar:
            whole = -(-(self.shift // self.channels + self.span) // self.piece) * self.piece * self.channels
        else:
            whole = -(-(self.shift + self.span * self.channels) // self.piece) * self.piece
        return -(-(whole // self.per_word + 2) // 4) * 4

    @cached_property
    def row_words(self) -> int:
        """Words of a staged row, with padding against bank conflicts of lanes that read two rows."""
        taps, dilation = self.shape.taps[1], self.shape.dilation[1]
        column = self.phases * self.shape.stride[2] * self.channels // self.per_word
        return _fewest_conflicts(
            self.least_words, column, self.run_words, self.words, taps, self.halo, dilation
        )

    @cached_property
    def bytes(self) -> int:
        return 4 * self.rows * self.row_words

    @cached_property
    def least_bytes(self) -> int:
        """Without padding against bank conflicts."""
        return 4 * self.rows * self.least_words

    @cached_property
    def strips(self) -> int:
        o, p, q = self.shape.out
        return self.shape.problem.n * o * -(-p // self.down) * -(-q // self.across)

    @cached_property
    def phase_outputs(self) -> int:
        """Outputs of a phase in a strip."""
        return self.down * self.across // self.phases

    def defines(self) -> Defines:
        low, high = self.shape.problem.x.span()
        return {
            "X_LOW": low, "X_HIGH": high,
            "BLOCK_P": self.down, "BLOCK_Q": self.across, "HALO_H": self.halo, "ROW_WORDS": self.row_words,
            "SHIFT": self.shift, "PHASES": self.phases, "RUN_WORDS": self.run_words, "X_BYTES": self.x_bytes,
            "X_IS_PLANAR": int(self.is_planar), "X_IS_DENSE": int(self.is_dense), "STRIPS": self.strips,
        }  # fmt: skip


@lru_cache(4096)
def _fewest_conflicts(
    least: int, column: int, run_words: int, words: int, taps: int, halo: int, dilation: int
) -> int:
    """The row length from `least` words on with the fewest bank conflicts of a lane's reads."""
    places = []  # of each word: its row, and the word in it
    for kk in range(min(words, 48)):
        run, word = divmod(kk, run_words)
        places.append((run // taps * halo + run % taps * dilation, word))
    fours = [places[first : first + 4] for first in range(0, len(places), 4)]

    def conflicts(row: int) -> int:
        total = 0
        for (first, word), *others in fours:
            start = first * row + word
            total += _most_of_a_bank(column, tuple(own * row + word - start for own, word in others))
        return total

    return min(range(least, least + _BANKS, 4), key=lambda row: (conflicts(row), row))


@lru_cache(4096)
def _most_of_a_bank(column: int, others: tuple[int, ...]) -> int:
    """How many different words a bank is asked for at most: of eight columns a word, and those so many words on."""
    asked = {start + g * column for start in (0, *others) for g in range(8)}
    return max(Counter(position % _BANKS for position in asked).values())


@dataclass(frozen=True)
class Tiling:
    """What a warp computes and a thread block stages in dgrad; see dgrad.cu.

    A warp has `planes` x `rows` rows of 16 blocks b, with `columns` results each; a thread block has `down` x `across`
    such warps, and `split_k_warps` that share the channels of each. `steps` times 32 bytes of channels are staged at a
    time. `size`: bytes of an element; `products`: see `Products`.
    """

    axes: tuple[Axis, Axis, Axis]
    columns: int
    planes: int
    rows: int
    down: int
    across: int
    split_k_warps: int
    steps: int
    size: int
    products: int

    @property
    def tiles(self) -> int:
        """Tiles of 8 columns."""
        return -(-self.columns // 8)

    @property
    def warps(self) -> int:
        return self.down * self.across * self.split_k_warps

    @property
    def registers(self) -> int:
        d, h, _ = self.axes
        fragments = 2 * min(self.planes, d.reach) * h.reach * self.tiles * self.products
        rest = 56 + 4 * self.tiles + (20 if self.size == 4 else 0)
        rest += 8 + 12 * self.rows if self.products == 3 else 0  # the compiler prepares rows ahead
        return 4 * self.planes * self.rows * self.tiles + fragments + rest

    @property
    def staged_planes(self) -> int:
        return self.planes + self.axes[0].reach - 1

    @property
    def staged_rows(self) -> int:
        h = self.axes[1]
        return h.step * (self.rows * self.down - 1) + h.reach

    @property
    def positions(self) -> int:
        w = self.axes[2]
        return w.step * (16 * self.across - 1) + w.reach

    @property
    def stage_bytes(self) -> int:
        step = self.axes[2].step
        return self.staged_rows * step * -(-self.positions // step) * ((2 * self.steps) | 1) * 16

    def work(self, images: int) -> int:
        """Tiles of the whole problem."""
        d, h, w = self.axes
        blocks = -(-h.blocks // (self.rows * self.down)) * -(-w.blocks // (16 * self.across))
        return blocks * -(-d.blocks // self.planes) * images

    def least_work(self, images: int) -> float:
        """Tiles of the whole problem if none of their results were outside of the image."""
        d, h, w = self.axes
        blocks = h.blocks / (self.rows * self.down) * w.blocks / (16 * self.across)
        return blocks * d.blocks / self.planes * images

    @property
    def sums_bytes(self) -> int:
        """Bytes of a warp's sums."""
        return 4 * self.planes * self.rows * self.tiles * 128

    def reads(self, steps: int) -> int:
        """Bytes of dy that a plane of a tile takes."""
        return self.staged_rows * self.positions * steps * 32

    @property
    def writes(self) -> int:
        return self.planes * 16 * self.across * self.rows * self.down * self.columns * self.size

    def defines(self) -> Defines:
        return {
            "BLOCK_THREADS": self.warps * 32, "TILE_ROWS": self.rows, "TILE_PLANES": self.planes,
            "WARPS_DOWN": self.down, "WARPS_ACROSS": self.across, "SPLIT_K_WARPS": self.split_k_warps,
            "CHANNEL_STEPS": self.steps,
            "STEP_H": self.axes[1].step, "STEP_W": self.axes[2].step,
            "UNROLL_STEPS": 2 if self.steps // self.split_k_warps % 2 == 0 and self.planes == 1 else 1,
        }  # fmt: skip
