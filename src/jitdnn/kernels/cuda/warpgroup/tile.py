"""Tiles of matrix products by warpgroups, and the bytes of a stage of one. See the drawing in mainloop.cuh."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

STAGE_ROW = 128
"""Bytes of K in a stage, but where few channels want more or less: what a row of shared memory has under the swizzle
that all operands use."""
MAX_STAGES = 8
_BARRIER_BYTES = 16  # of a stage
_EXCHANGE_BARRIER_BYTES = 16
_SHARED_BYTES = 227 << 10  # of a thread block, at most
_CHUNK_ROWS = 64
_CHUNKS = (128, 64, 96, 32)
"""Bytes of a row of a chunk; 96 and 32 where results leave column by column."""
_CONSUMER_REGISTERS = {1: 232, 2: 232, 3: 160}
"""Of a thread, by consumers; as in sizes.cuh."""
_REGISTERS_BESIDE_DIVIDERS = {1: 232, 2: 200}
"""The same where one warpgroup divides, or two beside one consumer."""
_HALVES = 32
"""Of a thread, of 64 rows that are divided in registers."""
_FRAGMENTS = 16
"""The same of f32 that it brings from shared memory."""


@dataclass(frozen=True)
class Lines:
    """Taps of a line of the filter that read the same rows of A, `step` rows apart.

    `classes`: where windows begin so many pixels apart, every so manyth tap reads the same rows; of as many stages the
    first `long` have all taps, the others one less. Or `pixels`, as many, that are neighbours are one row of A, and the
    first tap reads the `first` of them.
    """

    taps: int = 1
    step: int = 0
    classes: int = 1
    long: int = 1
    pixels: int = 1
    first: int = 0

    @cached_property
    def reach(self) -> int:
        """Rows of the product behind the results of each line."""
        if self.pixels > 1:
            return (self.first + self.taps - 1) // self.pixels
        return (self.taps - 1) * self.step

    @cached_property
    def mean_taps(self) -> float:
        """Of a stage."""
        return self.taps - (self.classes - self.long) / self.classes

    @cached_property
    def further(self) -> int:
        """Rows of A that are copied beside those of a tile."""
        return -(-self.reach // 8) * 8


NO_LINES = Lines()


def _whole_kilobytes(kept_bytes: int) -> int:
    """With what lies in front of it, where all of B stays in shared memory: it begins at a multiple of 1024."""
    return 1024 + kept_bytes if kept_bytes else 0


@dataclass(frozen=True)
class Tile:
    """Of a thread block: `down` by `across` consumers, each with `rows` slabs of 64 rows by `wn` columns.

    `cluster`: thread blocks that share the K of a tile, and add their sums in shared memory. `dividers`: warpgroups
    that divide f32 into halves and multiply nothing. `swaps`: the operands of f32 change places, so that these rows are
    channels of the result and these columns its pixels; `m` counts pixels still. See swapped.cuh.
    """

    down: int
    across: int
    rows: int
    wn: int
    cluster: int = 1
    dividers: int = 0
    swaps: bool = False

    def __eq__(self, other: object) -> bool:
        # most that are not equal differ in this already: lists of tiles are compared again and again
        return self is other or (
            isinstance(other, Tile) and self._hash == other._hash and self._sizes == other._sizes
        )

    def __hash__(self) -> int:
        return self._hash

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.down, self.across, self.rows, self.wn, self.cluster, self.dividers, self.swaps

    @cached_property  # tiles are few, and part of what is asked of caches again and again
    def _hash(self) -> int:
        return hash(self._sizes)

    def __str__(self) -> str:
        blocks = f", clusters of {self.cluster}" if self.cluster > 1 else ""
        dividers = f", {self.dividers} that divide" if self.dividers else ""
        swapped = ", operands swapped" if self.swaps else ""
        return f"{self.m}x{self.n} by {self.down}x{self.across} warpgroups{dividers}{blocks}{swapped}"

    @cached_property  # asked for many times by every plan
    def m(self) -> int:
        return self.wn * self.across if self.swaps else 64 * self.rows * self.down

    @cached_property
    def n(self) -> int:
        return 64 * self.rows * self.down if self.swaps else self.wn * self.across

    @cached_property
    def block(self) -> int:
        """Columns of a block of B where it is MN-major."""
        return 32 if self.n == 32 or self.swaps else 64

    def brought(self, is_across: bool) -> int:
        """Columns of B that are copied: whole blocks where they lie across."""
        return -(-self.n // self.block) * self.block if is_across else self.n

    @cached_property
    def warpgroups(self) -> int:
        return self.down * self.across

    @cached_property
    def threads(self) -> int:
        return 128 * (self.warpgroups + self.dividers + 1)

    @cached_property
    def sums(self) -> int:
        """Registers of a consumer's thread for the sums."""
        return self.rows * self.wn // 2

    def stage_bytes(
        self, parts: int, row: int = STAGE_ROW, lines: Lines = NO_LINES, is_across: bool = False
    ) -> int:
        return self.a_bytes(parts, row, lines) + self.b_bytes(parts, row, lines, is_across)

    def a_bytes(self, parts: int, row: int, lines: Lines) -> int:
        """Of a stage."""
        return parts * -(-(self.m + lines.further) * lines.pixels * row // 1024) * 1024

    def b_bytes(self, parts: int, row: int, lines: Lines, is_across: bool) -> int:
        """Of a stage; `is_across`: an MN-major operand comes in whole blocks of columns."""
        return parts * lines.taps * self.brought(is_across) * row

    @cache  # noqa: B019  # of the tiles of this module
    def chunk_bytes(self, result_bytes: int) -> int:
        """Of a row of the chunks in which results leave."""
        return next(size for size in _CHUNKS if self.wn * result_bytes % size == 0)

    @cache  # noqa: B019  # of the tiles of this module
    def other_bytes(self, is_split: bool, result_bytes: int) -> int:
        """Shared memory beside the stages, without their barriers: rows, and chunks of results of each consumer."""
        is_part = is_split or self.cluster > 1
        if self.swaps:  # threads store what they have
            return 8 * self.wn * self.warpgroups + _EXCHANGE_BARRIER_BYTES
        staging = 0 if is_part else self.buffers(result_bytes) * self._chunks_bytes(result_bytes)
        return 8 * 64 * self.rows * self.warpgroups + staging + _EXCHANGE_BARRIER_BYTES

    def _chunks_bytes(self, result_bytes: int) -> int:
        """Of a chunk of results of each consumer."""
        return self.warpgroups * _CHUNK_ROWS * self.chunk_bytes(result_bytes)

    @cache  # noqa: B019  # of the tiles of this module
    def buffers(self, result_bytes: int) -> int:
        """Chunks of results on their way out, of each consumer: two, or one where they leave before the products of the
        next tile, and the room of the other one is that of a stage."""
        rest = _SHARED_BYTES % self.stage_bytes(1)
        least = 8 * 64 * self.rows * self.warpgroups + _EXCHANGE_BARRIER_BYTES + MAX_STAGES * _BARRIER_BYTES
        least += self._chunks_bytes(result_bytes)
        is_short = least <= rest < least + self._chunks_bytes(result_bytes)
        return 1 if result_bytes == 2 and self.leaves_at_once(result_bytes) and is_short else 2

    @lru_cache(1 << 14)  # noqa: B019  # of the tiles of this module
    def stages(
        self, shared_bytes: int, parts: int, is_split: bool, result_bytes: int, row: int = STAGE_ROW,
        lines: Lines = NO_LINES, kept_bytes: int = 0, is_across: bool = False,
    ) -> int:  # fmt: skip
        """Stages of `row` bytes of K that fit into a multiprocessor's shared memory, beside `kept_bytes` of B if all of
        it stays there."""
        room = shared_bytes - self.other_bytes(is_split, result_bytes) - _whole_kilobytes(kept_bytes)
        most = MAX_STAGES if row >= STAGE_ROW else 2 * MAX_STAGES
        return min(most, room // self._of_stage(parts, row, lines, kept_bytes, is_across))

    def shared(
        self, stages: int, parts: int, is_split: bool, result_bytes: int, row: int = STAGE_ROW,
        lines: Lines = NO_LINES, kept_bytes: int = 0, is_across: bool = False,
    ) -> int:  # fmt: skip
        own = stages * self._of_stage(parts, row, lines, kept_bytes, is_across)
        return own + self.other_bytes(is_split, result_bytes) + _whole_kilobytes(kept_bytes)

    def _of_stage(self, parts: int, row: int, lines: Lines, kept_bytes: int, is_across: bool) -> int:
        b_bytes = 0 if kept_bytes else self.b_bytes(parts, row, lines, is_across)
        return self.a_bytes(parts, row, lines) + b_bytes + _BARRIER_BYTES

    @cache  # noqa: B019  # of the tiles of this module
    def has_registers(
        self, is_promoted: bool, result_bytes: int, is_split: bool, divides_rows: bool = False
    ) -> bool:
        """Whether a thread has the registers for the sums (twice where those of a stage are moved to others), and for
        results on their way out or (`divides_rows`) the halves of a stage."""
        words = 0 if is_split or self.cluster > 1 else self.sums * result_bytes // 4
        if divides_rows:
            words = _HALVES * self.rows
        if self.swaps:
            words = _FRAGMENTS * self.rows
        elif not (is_promoted or divides_rows) and self.leaves_at_once(result_bytes):
            words = 0
        return self.sums * (2 if is_promoted else 1) + words <= self._registers

    @cached_property
    def _registers(self) -> int:
        """Of a consumer's thread, but those for all else."""
        of_consumer = _REGISTERS_BESIDE_DIVIDERS if self.dividers else _CONSUMER_REGISTERS
        return of_consumer[self.warpgroups] - (56 if self.warpgroups == 3 else 40)

    @cache  # noqa: B019  # of the tiles of this module
    def leaves_at_once(self, result_bytes: int) -> bool:
        """Whether a thread has no room for results of two or four bytes on their way out beside the sums of the next
        tile."""
        words = self.sums * result_bytes // 4
        return (
            result_bytes > 1 and self.cluster == 1 and not self.swaps and self.sums + words > self._registers
        )

    @cache  # noqa: B019  # of the tiles of this module
    def has_chunks(self, result_bytes: int, has_row_boxes: bool = False) -> bool:
        """Whether results leave in whole chunks; `has_row_boxes`: see `Products`."""
        if self.swaps:
            return True
        return self.wn % 16 == 0 if has_row_boxes else self.wn * result_bytes % 64 == 0


TILES = (
    Tile(2, 1, 1, 256),
    Tile(2, 1, 2, 128),
    Tile(2, 1, 1, 128),
    Tile(2, 1, 1, 64),
    Tile(2, 1, 1, 160),
    Tile(3, 1, 1, 128),
    Tile(2, 1, 2, 64),
    Tile(3, 1, 1, 96),
    Tile(2, 1, 1, 192),
    Tile(2, 1, 2, 96),
    Tile(2, 1, 1, 96),
    Tile(3, 1, 1, 64),
    Tile(1, 2, 1, 128),
    Tile(1, 1, 1, 192),
    Tile(1, 1, 1, 128),
    Tile(2, 1, 2, 32),
    Tile(1, 1, 1, 64),
    Tile(1, 1, 1, 32),
    Tile(2, 1, 1, 144),
    Tile(2, 1, 1, 224),
    Tile(1, 1, 1, 96),
    Tile(1, 1, 1, 160),
    Tile(1, 1, 1, 144),
)
"""Tiles worth trying, those first that are best for many problems."""
WHOLE = (
    Tile(3, 1, 1, 192),
    Tile(2, 1, 2, 192),
    Tile(3, 1, 1, 160),
    Tile(2, 1, 2, 160),
    Tile(1, 2, 2, 160),
)
"""Those of products of two bytes whose results leave before the products of the next tile: large ones, or such as fill
the multiprocessors evenly."""
SHARED = frozenset((Tile(2, 1, 2, 128), Tile(2, 1, 1, 128), Tile(1, 1, 1, 64)))
SHARED_PRODUCTS = frozenset(
    (
        Tile(2, 1, 2, 128),
        Tile(2, 1, 1, 128),
        Tile(2, 1, 1, 256),
        Tile(3, 1, 1, 128),
        Tile(2, 1, 1, 192),
    )
)
"""The same forward and of the data."""
SHARED_IN_LINES = frozenset((Tile(1, 1, 1, 192), Tile(2, 1, 1, 192)))
"""Those of filter gradients, and of such in lines, of which thread blocks may have equal parts of the K of all."""
SPLIT = (Tile(3, 1, 1, 160), Tile(3, 1, 1, 192), Tile(2, 1, 2, 192))
"""Those of filter gradients whose K is split: with results on their way out there are no registers for them."""
DIVIDED = tuple(
    replace(Tile(*shape), dividers=dividers)
    for shape, dividers in (
        ((2, 1, 1, 128), 1),
        ((2, 1, 1, 64), 1),
        ((1, 1, 1, 128), 1),
        ((1, 1, 1, 64), 1),
        ((1, 1, 1, 192), 2),
    )
)
"""Those of gradients whose f32 is divided where it is multiplied, with warpgroups that do nothing else."""
SWAPPED = tuple(
    replace(Tile(*shape), swaps=True)
    for shape in (
        (2, 1, 1, 256),
        (2, 1, 2, 128),
        (2, 1, 1, 128),
        (2, 1, 1, 192),
        (2, 1, 2, 64),
        (2, 1, 1, 96),
        (2, 1, 1, 64),
        (3, 1, 1, 128),
        (3, 1, 1, 160),
        (2, 1, 2, 96),
        (2, 1, 1, 224),
        (2, 1, 1, 144),
        (1, 2, 1, 128),
        (1, 1, 1, 128),
        (1, 1, 1, 64),
        (1, 1, 1, 32),
    )
)
"""Those whose operands change places."""
SCALED = tuple(
    Tile(*shape)
    for shape in (
        (2, 1, 1, 256),
        (2, 1, 2, 128),
        (2, 1, 1, 128),
        (3, 1, 1, 128),
        (2, 1, 1, 160),
        (2, 1, 1, 192),
        (2, 1, 1, 144),
        (1, 2, 1, 128),
        (1, 1, 1, 192),
        (1, 1, 1, 160),
        (1, 1, 1, 128),
        (1, 1, 1, 96),
        (1, 1, 1, 64),
    )
)
"""Those of f32 that is copied as scaled numbers of half precision, forward and to the data: what so much work
precedes is a large product, or another algorithm is faster."""
CLUSTERS = tuple(
    replace(Tile(*shape), cluster=cluster)
    for shape, clusters in (
        ((2, 1, 1, 128), (2, 3, 5)),
        ((2, 1, 1, 64), (2, 3)),
        ((1, 1, 1, 128), (2, 3, 4, 8)),
        ((1, 1, 1, 64), (2, 3, 4, 5, 6, 8)),
        ((2, 1, 2, 128), (2, 3, 4)),
        ((2, 1, 1, 192), (2, 3, 4)),
        ((1, 1, 1, 192), (3,)),
        ((1, 1, 1, 32), (2, 3)),
    )
    for cluster in clusters
)
"""Those that are best for some problem of few tiles."""
