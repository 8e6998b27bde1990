"""The frozen sizes that the code of attention is generated from.

Batch, heads, queries, keys and strides are run-time integers. Scores are computed in tiles of up to ``tile_keys`` keys
by a panel of ``panel_queries`` queries, transposed: a row for each key, with the queries in the lanes. A tile lies in
the workspace of a thread: no matrix of scores is ever stored.

    forward (softmax in one pass, Milakov and Gimelshein 2018; tiled as FlashAttention, Dao 2022)

        for sequence, head, block of PANELS panels of queries            one task; its queries and sums stay in L2
            for tile of tile_keys keys                                   keys and values packed for all panels: L2
                for panel of panel_queries queries                       scores[tile_keys][panel_queries] in L1
                    for register_keys keys x vectors vectors of queries  scores: sums in registers
                    for values.rows queries x values.vectors vectors     scores times values: sums in registers

    backward

        for sequence, key head, range of range_keys keys                 one task; keys, values, dk and dv stay in L2
            for query head of the group, panel of panel_queries queries  q, dy and dq of the panel in L1, L2
                for tile of tile_keys keys                               scores and ds[tile_keys][panel_queries] in L1
                    for register_keys keys x vectors vectors of queries  scores, values times dy
                    for rows x vectors of dv, of dk, of dq               sums in registers
"""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.attention import Attention
from jitdnn.rtcg.isa import ITEM_BYTES, Isa
from jitdnn.tensor import TensorDescriptor, compute_dtype

REGISTER_TILES = 16  # of keys in a tile of keys: about a hundred keys, so that all of it stays in the caches
ROWS_OF_A_SUM = 64  # queries of a task that adds up dq


@dataclass(frozen=True)
class Product:
    """Sums of ``rows`` rows by ``columns`` blocks of ``vectors`` vectors, stored [block][row][lanes of a block]."""

    rows: int
    vectors: int
    columns: int
    lanes: int

    @property
    def block(self) -> int:
        """Elements of a row of one block."""
        return self.vectors * self.lanes

    @property
    def pitch(self) -> int:
        """Elements of a row of the matrix that is multiplied, padded."""
        return self.columns * self.block

    def padded_rows(self, rows: int) -> int:
        """``rows`` rounded up to register tiles."""
        return ceil_div(rows, self.rows) * self.rows

    def elements(self, rows: int) -> int:
        return self.padded_rows(rows) * self.pitch


class ThreadWorkspace:
    """A thread's part of the workspace: buffers of an integer number of vectors."""

    def __init__(self, real: str) -> None:
        self._real, self.size = real, 0
        self.offsets: dict[str, int] = {}

    def add(self, name: str, elements: int) -> None:
        self.offsets[name] = self.size
        self.size += ceil_div(elements, 16) * 16

    @property
    def bytes(self) -> int:
        """Rounded so that threads share no cache line, and are not a power of two apart."""
        return ceil_div(self.size * ITEM_BYTES[self._real], 128) * 128 + 128


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """What both passes are generated from. ``contiguous`` names the tensors whose elements of a head are neighbours."""

    direction: str
    dtype: str
    size: int  # D
    value_size: int  # E
    lanes: int
    vectors: int  # of a panel of queries
    register_keys: int  # of a register tile of scores
    contiguous: tuple[str, ...]
    mask: str  # "", or its type
    mask_order: str  # "queries" (stride 0), "lanes", "keys" or "any": the axis that is contiguous in memory
    lengths: str
    lo: str
    hi: str
    is_left: bool
    is_right: bool
    is_saved: bool
    scale: float

    @property
    def real(self) -> str:
        """The type of the arithmetic."""
        return compute_dtype(self.dtype)

    @property
    def tile_keys(self) -> int:
        return self.register_keys * REGISTER_TILES

    @property
    def panel_queries(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True, kw_only=True)
class ForwardPlan(AttentionPlan):
    values: Product  # of scores and values
    panels: int

    @property
    def key_pitch(self) -> int:
        """Elements of a packed key."""
        return ceil_div(self.size, self.lanes) * self.lanes

    @property
    def block_queries(self) -> int:
        """Queries of a task."""
        return self.panels * self.panel_queries

    def workspace(self) -> ThreadWorkspace:
        """The buffers of a thread. Register tiles may reach beyond the ends of scores and sums."""
        buffers, width = ThreadWorkspace(self.real), self.panel_queries
        buffers.add("queries", self.panels * self.size * width)
        buffers.add("sums", self.panels * self.values.elements(width))
        buffers.add("maximum", self.panels * width)
        buffers.add("total", self.panels * width)
        buffers.add("factor", self.values.padded_rows(width))
        buffers.add("lo", self.panels * width)
        buffers.add("hi", self.panels * width)
        buffers.add("scores", self.tile_keys * width + self.values.rows)
        buffers.add("keys", self.tile_keys * self.key_pitch)
        buffers.add("values", self.tile_keys * self.values.pitch)
        return buffers


@dataclass(frozen=True, kw_only=True)
class BackwardPlan(AttentionPlan):
    dq: Product
    dk: Product
    dv: Product
    range_keys: int  # keys of a task
    splits: bool  # the keys of a head are several ranges, each with sums of dq of its own

    @property
    def value_pitch(self) -> int:
        """Elements of a packed value."""
        return ceil_div(self.value_size, self.lanes) * self.lanes

    @property
    def query_pitch(self) -> int:
        """Elements of a row of the sums of dq of a range."""
        return ceil_div(self.size, self.lanes) * self.lanes

    @property
    def padded_range(self) -> int:
        """``range_keys`` rounded up to register tiles."""
        return ceil_div(self.range_keys, self.register_keys) * self.register_keys

    def workspace(self) -> ThreadWorkspace:
        """The buffers of a thread. Register tiles may reach beyond the ends of the probabilities and of dq."""
        buffers, width, keys = ThreadWorkspace(self.real), self.panel_queries, self.padded_range
        buffers.add("keys", keys * self.dq.pitch)
        buffers.add("values", keys * self.value_pitch)
        buffers.add("dk", keys * self.dk.pitch)
        buffers.add("dv", keys * self.dv.pitch)
        buffers.add("transposed_q", self.size * width)
        buffers.add("transposed_dy", self.value_size * width)
        buffers.add("q", width * self.dk.pitch)
        buffers.add("dy", width * self.dv.pitch)
        buffers.add("dq", self.dq.elements(width))
        buffers.add("probabilities", self.tile_keys * width + self.dq.rows)
        buffers.add("ds", self.tile_keys * width + self.dq.rows)
        for name in ("lse", "delta", "lo", "hi"):
            buffers.add(name, width)
        return buffers


def common_fields(problem: Attention, isa: Isa) -> dict[str, object]:
    """The fields of a plan that the problem decides."""
    named = {operand.name: operand.descriptor for operand in problem.operands}
    tensors = ("q", "k", "v", "y", "dy", "dq", "dk", "dv")

    def type_of(name: str) -> str:
        return named[name].dtype if name in named else ""

    return {
        "direction": problem.direction,
        "dtype": problem.dtype,
        "size": problem.q.shape[3],
        "value_size": problem.v.shape[3],
        "lanes": isa.lanes(compute_dtype(problem.dtype)),
        "contiguous": tuple(name for name in tensors if _is_contiguous(named.get(name))),
        "mask": type_of("mask"),
        "mask_order": _order_of(problem.mask),
        "lengths": type_of("lengths"),
        "lo": type_of("lo"),
        "hi": type_of("hi"),
        "is_left": problem.left is not None,
        "is_right": problem.right is not None,
        "is_saved": "lse" in named,
        "scale": problem.scale,
    }


def _is_contiguous(tensor: TensorDescriptor | None) -> bool:
    return tensor is not None and (tensor.strides[3] == 1 or tensor.shape[3] == 1)


def _order_of(mask: TensorDescriptor | None) -> str:
    """The ``mask_order`` of a plan."""
    if mask is None:
        return ""
    query, key = mask.strides[2:]
    if query == 0:
        return "queries"
    if query == 1:
        return "lanes"
    return "keys" if key == 1 else "any"


def make_slots(problem: Attention, *more: str) -> Slots:
    """The integers of a problem that its code takes at run time."""
    names = ["heads", "group", "queries", "keys", "left", "right", "past", *more]
    for operand in problem.operands:
        names += [f"{operand.name}{axis}" for axis in range(len(operand.descriptor.shape))]
    return Slots(*names)


def slot_values(problem: Attention) -> dict[str, int]:
    """Their values, but for ``more``."""
    heads, key_heads = problem.q.shape[1], problem.k.shape[1]
    values = {
        "heads": heads, "group": heads // max(1, key_heads), "queries": problem.q.shape[2],
        "keys": problem.k.shape[2], "left": problem.left or 0, "right": problem.right or 0, "past": problem.past,
    }  # fmt: skip
    for operand in problem.operands:
        values |= {f"{operand.name}{axis}": s for axis, s in enumerate(operand.descriptor.strides)}
    return values


def operand_numbers(problem: Attention) -> dict[str, int]:
    """The position of each operand's pointer."""
    return {operand.name: i for i, operand in enumerate(problem.operands)}
