"""Sizes of a matrix product by warpgroups: stages of its tiles, and how K is split. See the drawing in mainloop.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

from jitdnn.kernels.cuda.warpgroup.tile import MAX_STAGES, NO_LINES, STAGE_ROW, Lines, Tile

_NEIGHBOURS = 16
"""Thread blocks that run next to each other, of which L2 takes requests for the same lines together."""
_L2_SHARE, _AGAIN = 0.75, 0.43
"""That stays from one tap to another; of the data, that memory is asked for once more where they do not (`ncu`)."""


@dataclass(frozen=True)
class Finish:
    """What threads do between the products of a tile and those of the next: instructions for each element of the
    result, and the bytes that an epilogue reads in all. `read`: of the instructions those by which threads read the one
    operand that lies as the results do, of their type, and that the copy engine may bring; see brought.cuh."""

    instructions: float = 0.0
    nbytes: int = 0
    read: float = 0.0


NO_FINISH = Finish()


@dataclass(frozen=True)
class Products:
    """What a launch computes, `groups` times: `n` columns of products of `rows` by `blocks` stages of K.

    `is_across`: B is MN-major, and comes in whole blocks of columns. `is_strided`: rows of A lie some rows apart.
    `breaks_sectors`: rows of A, and of B, lie across and begin inside of a sector.
    `has_row_boxes`: neighbours in memory are rows of the result, 64 of which the copy engine stores of some columns at
    once. `padding`: share of the rows of A, of all stages, that lie outside of the data. `is_uneven`: rows of A, and of
    B, begin inside of a line of L2. `is_volume`: pixels have three axes, and
    there are no stride phases. `takes_turns`: stride phases do, some tiles of each. `pixels_are_columns`: rows are
    those of the filter, and columns pixels, which `padding` and `is_strided` are about. `data_bytes`, `window_bytes`:
    of the data, and of those from one window to the next along all axes, where windows of taps are some pixels apart.
    `half_stages`: the share of stages that have half of the columns. `skips_padding`: phases have no taps that read
    padding alone. `bytes_moved`: from and to memory, those of an epilogue aside.
    """

    rows: tuple[int, ...]
    blocks: tuple[int, ...]
    n: int
    groups: int
    is_across: bool = False
    is_strided: bool = False
    has_row_boxes: bool = False
    padding: float = 0.0
    is_uneven: tuple[bool, bool] = (False, False)
    breaks_sectors: tuple[bool, bool] = (False, False)
    is_volume: bool = False
    takes_turns: bool = False
    pixels_are_columns: bool = False
    data_bytes: int = 0
    window_bytes: int = 0
    half_stages: float = 0.0
    skips_padding: bool = False
    bytes_moved: int = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows, of the phase that has most, and columns."""
        return max(self.rows), self.n

    def in_stages(self, depth: int) -> Products:
        """The same in stages of `depth` times as much of K."""
        return (
            self if depth == 1 else replace(self, blocks=tuple(-(-blocks // depth) for blocks in self.blocks))
        )

    def tiles_m(self, tile: Tile) -> int:
        if len(self.rows) == 1:
            return -(-self.rows[0] // tile.m)
        return sum(-(-rows // tile.m) for rows in self.rows)

    def tiles_n(self, tile: Tile) -> int:
        return -(-self.n // tile.n)

    def stages_down(self, tile: Tile) -> int:
        """Of all tiles down."""
        return sum(-(-rows // tile.m) * blocks for rows, blocks in zip(self.rows, self.blocks, strict=True))

    def outside(self, tile: Tile) -> float:
        """Columns that a tile's copies bring of B and that are not there, on average."""
        last = (self.tiles_n(tile) - 1) * tile.n
        return max(0, last + tile.brought(self.is_across) - self.n) / self.tiles_n(tile)

    def outside_rows(self, tile: Tile) -> int:
        """Rows of A that the copies of the last tile down bring and that are not there."""
        return self.tiles_m(tile) * tile.m - self.rows[0]

    def read_share(self, tile: Tile, in_step: int = 0) -> float:
        """Of the rows of both operands that neighbours ask for, those that differ, where tiles are numbered along the
        shorter axis of their grid. `in_step`: how many are at the same place of K, if not all tiles."""
        down, across, brought = self.tiles_m(tile), self.tiles_n(tile), tile.brought(is_across=True)
        count = min(_NEIGHBOURS, in_step or self.tiles(tile))
        shorter = min(down, across, count)
        rows, columns = (shorter, count / shorter) if down <= across else (count / shorter, shorter)
        return min(1.0, (rows * tile.m + columns * brought) / (count * (tile.m + brought)))

    def read_again(self, tile: Tile, multiprocessors: int, l2_bytes: int) -> int:
        """Bytes of the data that memory is asked for once more: those of all windows at work exceed what L2 holds from
        one tap to another that reads the same pixels."""
        pixels, others = (
            (tile.n, self.tiles_m(tile)) if self.pixels_are_columns else (tile.m, self.tiles_n(tile))
        )
        at_work = min(
            multiprocessors // min(others, multiprocessors) * pixels * self.window_bytes, self.data_bytes
        )
        return int(_AGAIN * self.data_bytes) if at_work > _L2_SHARE * l2_bytes else 0

    def filled(self, tile: Tile) -> float:
        """The share of the tiles' columns that are there."""
        return self.n / (self.tiles_n(tile) * tile.n)

    def tiles(self, tile: Tile) -> int:
        if len(self.rows) == 1:  # asked for by every estimate several times
            return self.groups * -(-self.rows[0] // tile.m) * -(-self.n // tile.n)
        return self.groups * self.tiles_m(tile) * self.tiles_n(tile)

    @cached_property
    def longest(self) -> int:
        return max(self.blocks)

    @cached_property  # of the clock, by which all tiles are estimated
    def products_of_rows(self) -> int:
        """Of rows of A and columns of B, a stage of K each."""
        return (
            self.n
            * self.groups
            * sum(rows * blocks for rows, blocks in zip(self.rows, self.blocks, strict=True))
        )

    def strip(self, tile: Tile) -> int:
        """How many tiles are numbered across before those below them: all, or one.

        Thread blocks that run next to each other ask for the same lines at the same time, which then come once: so
        those of few different rows and columns follow each other, and where these are as many either way, along the
        shorter operand. Stride phases follow each other down.
        """
        down, across = self.tiles_m(tile), self.tiles_n(tile)
        if len(self.rows) > 1:
            return across

        def asked(length: int, size: int, other: int, size_of_other: int) -> tuple[int, int]:
            rows_and_columns = (
                min(length, _NEIGHBOURS) * size + min(other, -(-_NEIGHBOURS // length)) * size_of_other
            )
            return rows_and_columns, length * size

        return 1 if asked(down, tile.m, across, tile.n) <= asked(across, tile.n, down, tile.m) else across


@dataclass(frozen=True)
class Boxes:
    """What a wgrad's copies of A and of B bring. `is_whole`: all blocks of 64 channels of a tile at once. `is_uneven`:
    pixels begin inside of a sector. `has_windows`: B comes as windows of pixels.
    """

    is_whole: tuple[bool, bool] = (False, False)
    is_uneven: tuple[bool, bool] = (False, False)
    has_windows: bool = False


NO_BOXES = Boxes()


@dataclass(frozen=True)
class SharedRows:
    """Rows of B that the columns of a warpgroup share, of a stage: so many boxes of so many rows."""

    boxes: int
    rows: int

    @property
    def count(self) -> int:
        return self.boxes * self.rows


@dataclass(frozen=True)
class KernelTraits:
    """How a kernel computes products, whatever its blocking is.

    `parts`: numbers that each factor is the sum of, 2 of halves. `result_bytes`: of an element of the result.
    `row_bytes`: of K in the rows that are copied. `is_promoted`: the sums of each stage are moved to other registers.
    `is_rewritten`: threads read and write B before it is multiplied. `is_divided`: threads divide numbers into halves
    first, in shared memory; what is divided is split. `divides_rows`, `is_rough`: see `Blocking`. `lines`: taps that
    share rows of A. `shared_rows`: of B, which the columns of a warpgroup share. `boxes`: of a wgrad.
    """

    parts: int
    result_bytes: int
    row_bytes: int = STAGE_ROW
    is_wgrad: bool = False
    is_promoted: bool = False
    is_rewritten: bool = False
    is_divided: bool = False
    divides_rows: bool = False
    is_rough: bool = False
    lines: Lines = NO_LINES
    shared_rows: SharedRows | None = None
    boxes: Boxes = NO_BOXES
    finish: Finish = NO_FINISH


@dataclass(frozen=True)
class Blocking:
    """A tile, its stages, and the splits of K, of `blocks_of_split` stages each.

    `parts`: 2 with halves. `result_bytes`: of an element of the result. `divides_rows`: those of A, in registers.
    `is_rough`: of the halves only the first ones are multiplied, which have the bits of tf32. `row`: bytes of K of a
    stage. `kept_bytes`: of all of B, which a thread block brings once for all of its tiles, or 0. `lines`: taps that
    share rows of A. `is_across`: see `Products`. `sharers`: thread blocks that have equal parts of the K of all tiles,
    one behind the other, or 0; `in_step`: how many of them are at the same place of K at the same time, of different
    tiles. See stream_k.cuh. `shared_rows`: of B in a stage that taps share, for which there is no room of their own.
    `kept_across`: tiles across of which a thread block has one, with all below it, if it keeps B.
    """

    tile: Tile
    stages: int
    splits: int
    blocks_of_split: int
    parts: int
    result_bytes: int
    divides_rows: bool = False
    is_rough: bool = False
    row: int = STAGE_ROW
    kept_bytes: int = 0
    lines: Lines = NO_LINES
    is_across: bool = False
    sharers: int = 0
    in_step: int = 1
    shared_rows: int = 0
    kept_across: int = 1

    @property
    def keeps_b(self) -> bool:
        """Whether a thread block brings B once."""
        return self.kept_bytes > 0

    @property
    def ring(self) -> tuple[int, int, int, int]:
        """Stages, whether all of B is kept, and from which bytes of shared memory on B lies, and what is behind it; as
        the `Tables` of products take them."""
        a_bytes = self.stages * self.tile.a_bytes(self.parts, self.row, self.lines)
        b_bytes = self.stages * self.tile.b_bytes(self.parts, self.row, self.lines, self.is_across)
        behind = -(-(a_bytes + self.kept_bytes) // 1024) * 1024 if self.keeps_b else a_bytes + b_bytes
        return self.stages, int(self.keeps_b), a_bytes, behind

    @property
    def is_split(self) -> bool:
        """Whether partial sums go through memory."""
        return self.splits > 1 and self.tile.cluster == 1

    @property
    def is_whole(self) -> bool:
        """Whether results leave behind the products of a thread block."""
        return self.splits == 1

    @property
    def shared(self) -> int:
        shared = self.tile.shared(
            self.stages, self.parts, self.is_split, self.result_bytes, self.row, self.lines, self.kept_bytes,
            self.is_across,
        )  # fmt: skip
        return shared - self.stages * self.parts * self.shared_rows * self.row

    def sharing(self, rows: int, shared_bytes: int) -> Blocking:
        """The same with as many stages as fit where taps share so many rows of B."""
        one = replace(self, shared_rows=rows, stages=1)
        of_stage = replace(one, stages=2).shared - one.shared
        return replace(one, stages=min(MAX_STAGES, 1 + (shared_bytes - one.shared) // of_stage))

    def brings(self, finish: Finish, products: Products) -> bool:
        """Whether the copy engine brings an operand of the epilogue."""
        has_ring = self.is_whole and not (self.sharers or self.divides_rows or self.tile.swaps)
        return finish.read > 0 and has_ring and self.lines.taps == len(products.rows) == 1

    @property
    def leaves_at_once(self) -> bool:
        """Whether results leave before the products of the next tile, which have no registers beside them."""
        return self.is_whole and self.tile.leaves_at_once(self.result_bytes)

    @property
    def rows_of_b(self) -> float:
        """Rows of B that are brought for a stage, on average."""
        return 0 if self.keeps_b else self.lines.mean_taps * self.tile.brought(self.is_across)

    def thread_blocks(self, works: int, multiprocessors: int) -> int:
        """Of the launch, for so many pieces of work."""
        if self.tile.cluster > 1:
            return works
        at_once = min(multiprocessors, works)
        return self.sharers or at_once // self.kept_across * self.kept_across

    def works(self, products: Products) -> int:
        if self.sharers:
            return self.sharers * self.pieces(products)
        return products.tiles(self.tile) * self.splits

    def pieces(self, products: Products) -> int:
        """Tiles of which a thread block has a part, at most, where all have equal parts of K."""
        return _pieces(*self._parts(products), products.longest)

    def others(self, products: Products) -> int:
        """Thread blocks that leave sums of a tile to the one that stores its results, at most."""
        return _others(*self._parts(products), products.longest)

    def _parts(self, products: Products) -> tuple[int, int]:
        return self.sharers // self.in_step, products.tiles(self.tile) // self.in_step * products.longest

    def partial_bytes(self, products: Products) -> int:
        """Of the partial sums and, where thread blocks wait for those of others, of what these signal."""
        if self.sharers:
            return self.sharers * (4 * self.tile.m * self.tile.n + 4)
        return 4 * self.works(products) * self.tile.m * self.tile.n if self.is_split else 0


@lru_cache(1 << 12)  # asked for several times by each estimate
def _pieces(parts: int, stages: int, length: int) -> int:
    """Tiles of `length` stages of which one of so many equal parts of all `stages` has some, at most."""
    bounds = [part * stages // parts for part in range(parts + 1)]
    return max(-(-end // length) - begin // length for begin, end in pairwise(bounds))


@lru_cache(1 << 12)
def _others(parts: int, stages: int, length: int) -> int:
    """Such parts that have stages of the same tile, beside the last of them, at most."""

    def part_of(stage: int) -> int:
        return ((stage + 1) * parts - 1) // stages

    return max(part_of(first + length - 1) - part_of(first) for first in range(0, stages, length))


def longest_load(products: Products, tile: Tile, multiprocessors: int, cycles: Sequence[float]) -> float:
    """Cycles of the thread block that has most to do: tiles of each stride phase, which follow each other, take
    `cycles`, and every thread block has one of each turn of all tiles, in every second turn the last one the first."""
    last = multiprocessors - 1
    # how many turns of all thread blocks lie before the first tile of each phase, and how many tiles of the next one
    bounds, first = [(0, 0)], 0
    for rows in products.rows:
        first += -(-rows // tile.m) * products.tiles_n(tile) * products.groups
        bounds.append(divmod(first, multiprocessors))

    def load(number: int) -> float:
        before = [turns + ((last - number if turns % 2 else number) < more) for turns, more in bounds]
        return sum(one * (end - begin) for one, (begin, end) in zip(cycles, pairwise(before), strict=True))

    # from one thread block to the next the load changes only where a turn begins or ends with another phase
    blocks = {0, last}
    for turns, more in bounds:
        at = last - more if turns % 2 else more - 1
        blocks |= {max(0, at), min(last, at + 1)}
    return max(map(load, blocks))
