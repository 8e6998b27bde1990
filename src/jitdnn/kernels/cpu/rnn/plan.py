"""The frozen sizes that the code of recurrent layers is generated from.

A layer has two kinds of matrix products: of all steps at once with weight_ih, and of each step's states with weight_hh,
after which the cell is applied to the sums while these are in L1. H units (``hidden``) have G gates each. Steps, batch
and layers are run-time integers.

    product over all steps of a layer (gemm.trace_rows_product)

        for chunk of ROWS_PER_TASK rows, for share of the panels       one task; the rows stay in L2
            for panel [depth][layer_vectors]                           stays in L1 while the rows are read
                for tile of layer_rows x layer_vectors vectors         sums in registers

    product of a step (gemm.step_sums)

        for share of the blocks of units, back and forth               one task; its panels stay in L2
            for block of step_vectors vectors of units                 forward with all G gates of a unit
                for group of TILES_PER_GROUP tiles of sequences        the sums of a group are in L1
                    for chunk of the depth                             a chunk of a panel stays in L1
                        for tile of step_rows x vectors                sums in registers
                    the cell for each sequence of the group

The gradients of the weights are products over rows (``WeightsPlan``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.problems.rnn import KEPT, PAD, Recurrent
from jitdnn.rtcg.isa import Isa
from jitdnn.tensor import compute_dtype

ROWS_PER_TASK = 96  # of a product over all steps
STEPS_PER_TASK = 4  # of the copies between tensors and rows
TILES_PER_GROUP = 12  # of a step: their sums stay in L1
DROPOUT_GROUPS_PER_TASK = 4

# of the gradients of the weights
PANEL_GATES = 48  # gates of a panel: an integer number of cache lines and of tiles
TILE_GATES = 6  # gates of a register tile
ROWS_PER_CHUNK = 256  # summed at once, so that both panels stay in L2
ROWS_PER_COPY = 64

SEQUENCES = ("x", "y", "dy", "dx")
STATES = ("hx", "cx", "hn", "cn", "dhn", "dcn", "dhx", "dcx")
_DROPOUT_SLOTS = ("drop.threshold", "drop.factor", "drop.groups")
_SLOTS = (
    "steps", "batch", "rows", "layers", "shares", "base.counters", "base.counts", "base.starts", "base.order",
    "base.tiles", *_DROPOUT_SLOTS,
)  # fmt: skip
_STEP_SLOTS = (
    "tile", "step.blocks", "step.each", "step.chunk", "second.chunk", "base.input_panels", "base.state_panels",
    "base.projection_panels",
)  # fmt: skip


@dataclass(frozen=True)
class Product:
    """rows (``pitch`` apart) times panels of ``vectors``; the depth is a nest of (extent, step in a row)."""

    rows: int
    pitch: int
    vectors: int
    nest: tuple[tuple[int, int], ...]

    @property
    def depth(self) -> int:
        depth = 1
        for extent, _ in self.nest:
            depth *= extent
        return depth

    def panel(self, lanes: int) -> int:
        """Elements of one panel."""
        return self.depth * self.vectors * lanes

    def tile(self, lanes: int) -> int:
        """Elements of the sums of one tile."""
        return self.rows * self.vectors * lanes

    def group(self, lanes: int) -> int:
        """Elements of the sums of a group of tiles."""
        return TILES_PER_GROUP * self.tile(lanes)

    def chunk(self, batch: int, lanes: int, bytes_each: int, chunk_bytes: int) -> int:
        """How much of the innermost loop to sum at once: all of it where a panel is read only once."""
        inner = self.nest[-1][0]
        if batch <= self.rows:
            return inner
        return min(inner, max(16, chunk_bytes // (self.vectors * lanes * bytes_each)))


@dataclass(frozen=True)
class RecurrentPlan:
    """What all recurrent kernels are generated from. ``p`` is the problem with one step, one sequence and one row.

    A tile of a step has ``step_rows`` sequences by ``step_vectors`` vectors of units (of each gate), a tile of the
    products over all steps of a layer ``layer_rows`` rows by ``layer_vectors`` vectors. ``strided``: operands whose
    units are not neighbours in memory.
    """

    own_slots: ClassVar[tuple[str, ...]] = ()

    p: Recurrent
    lanes: int
    step_rows: int
    step_vectors: int
    layer_rows: int
    layer_vectors: int
    strided: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """The type of the arithmetic and of the workspace."""
        return compute_dtype(self.p.element)

    @property
    def pointers(self) -> int:
        return len(self.p.operands)

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the run-time integers."""
        return tuple(sorted((*_SLOTS, *self.own_slots, *stride_names(self.p))))

    @cached_property
    def first_weight(self) -> int:
        return next(i for i, operand in enumerate(self.p.operands) if operand.name.endswith("weight_ih_l0"))

    @cached_property
    def weight_names(self) -> tuple[str, ...]:
        """The weights of one layer and direction among the operands."""
        biases = () if self.p.direction == "bwd_data" else self.p.biases
        return ("weight_ih", "weight_hh", *biases, *(("weight_hr",) if self.p.projection else ()))

    @property
    def layer_width(self) -> int:
        """Columns of a panel of the products over all steps."""
        return self.layer_vectors * self.lanes

    @property
    def padded_inputs(self) -> int:
        return ceil_div(self.p.inputs_size, PAD) * PAD

    def tile_elements(self, layer: Product, steps: Sequence[Product]) -> int:
        """Elements of the sums of a thread, enough for each of the products."""
        used = steps if self.p.projection else steps[:1]
        return max(layer.tile(self.lanes), *(product.group(self.lanes) for product in used))


@dataclass(frozen=True)
class ForwardPlan(RecurrentPlan):
    own_slots: ClassVar[tuple[str, ...]] = (
        *_STEP_SLOTS, "h.size", "out.size", "base.x", "base.out", "base.gates", "base.bias", "base.new_bias", "base.h",
        "base.c", "base.full", "base.dropped",
    )  # fmt: skip

    @property
    def columns(self) -> int:
        """Of the product over all steps: (direction, gate, unit)."""
        p = self.p
        return p.directions * p.gates * p.padded

    @property
    def saves_gates(self) -> bool:
        """Whether the sums are stored where the gates are saved."""
        return self.p.is_training and KEPT[self.p.cell] > 0

    @property
    def gates_width(self) -> int:
        """Elements of a row and direction of the sums of all steps."""
        p = self.p
        return (KEPT[p.cell] if self.saves_gates else p.gates) * p.padded

    @property
    def blocks(self) -> int:
        """Blocks of units of a direction."""
        return ceil_div(self.p.padded, self.step_vectors * self.lanes)

    @property
    def projection_blocks(self) -> int:
        return ceil_div(self.p.padded_size, self.layer_width)

    @property
    def first_product(self) -> Product:
        """x of all steps times weight_ih of the first layer."""
        return Product(self.layer_rows, self.padded_inputs, self.layer_vectors, ((self.p.inputs_size, 1),))

    @property
    def next_product(self) -> Product:
        """Outputs of the layer below, of all steps, times weight_ih."""
        p = self.p
        nest = ((p.directions, p.padded_size), (p.size, 1))
        return Product(self.layer_rows, p.directions * p.padded_size, self.layer_vectors, nest)

    @property
    def recurrent_product(self) -> Product:
        """States times weight_hh."""
        p = self.p
        return Product(self.step_rows, p.padded_size, p.gates * self.step_vectors, ((p.size, 1),))

    @property
    def projection_product(self) -> Product:
        """Outputs of the cells times weight_hr."""
        return Product(self.step_rows, self.p.padded, self.layer_vectors, ((self.p.hidden, 1),))

    @property
    def tile(self) -> int:
        """Elements of the sums of a thread."""
        return self.tile_elements(self.first_product, (self.recurrent_product, self.projection_product))

    @property
    def input_panels(self) -> int:
        """Elements of the panels of weight_ih of a layer, the deepest one."""
        products = [self.first_product] + [self.next_product] * (self.p.layers > 1)
        return max(
            ceil_div(self.columns, self.layer_width) * product.panel(self.lanes) for product in products
        )


@dataclass(frozen=True)
class BackwardPlan(RecurrentPlan):
    """Of the gradients of the data."""

    own_slots: ClassVar[tuple[str, ...]] = (
        *_STEP_SLOTS, "dy.size", "slopes.size", "base.dy", "base.dx", "base.carry", "base.dc", "base.dr", "base.slopes",
    )  # fmt: skip

    @property
    def slopes(self) -> int:
        """Runs of ``padded`` elements of a row and direction of `dgates`."""
        return self.p.slopes["gates"] // self.p.padded

    @property
    def blocks(self) -> int:
        """Blocks of units of a direction."""
        return ceil_div(self.p.padded_size, self.step_vectors * self.lanes)

    @property
    def projection_blocks(self) -> int:
        return ceil_div(self.p.padded, self.layer_width)

    @property
    def recurrent_product(self) -> Product:
        """Gradients of the gates times weight_hh."""
        p = self.p
        nest = ((p.gates, p.padded), (p.hidden, 1))
        return Product(self.step_rows, p.gates * p.padded, self.step_vectors, nest)

    @property
    def projection_product(self) -> Product:
        """Gradients of the projected outputs times weight_hr."""
        return Product(self.step_rows, self.p.padded_size, self.layer_vectors, ((self.p.size, 1),))

    @property
    def input_product(self) -> Product:
        """Gradients of the gates of all steps times weight_ih."""
        p = self.p
        each = self.slopes * p.padded
        nest = ((p.directions, each), (p.gates, p.padded), (p.hidden, 1))
        return Product(self.layer_rows, p.directions * each, self.layer_vectors, nest)

    def columns(self, first: bool) -> int:
        """Of the gradient of the input of the first layer or another one."""
        p = self.p
        return self.padded_inputs if first else p.directions * p.padded_size

    @property
    def most_columns(self) -> int:
        return max(self.columns(True), self.columns(False) if self.p.layers > 1 else 0)

    @property
    def tile(self) -> int:
        """Elements of the sums of a thread."""
        return self.tile_elements(self.input_product, (self.recurrent_product, self.projection_product))


@dataclass(frozen=True)
class WeightsPlan(RecurrentPlan):
    """Of the gradients of the weights: gradients of the gates, transposed, times the inputs, summed over rows.

    for panel of PANEL_GATES gates, for share of the panels of inputs          one task
        for panel of layer_vectors vectors of inputs
            for chunk of ROWS_PER_CHUNK rows                                   both panels' rows stay in L2
                for tile of TILE_GATES gates x layer_vectors vectors           sums in registers
            store the PANEL_GATES x layer_vectors vectors of sums              in L1 until here
    """

    own_slots: ClassVar[tuple[str, ...]] = (
        "base.x", "base.next", "base.before", "base.full", "base.gates", "base.out", "base.dropped",
    )  # fmt: skip

    @property
    def slopes(self) -> int:
        """Columns of the gates' gradients of a direction."""
        return self.p.slopes["gates"]

    def columns(self, source: str) -> int:
        """Columns of a source, padded: x, next (the layer below), before (the states), full."""
        p = self.p
        return {
            "x": self.padded_inputs,
            "next": p.directions * p.padded_size,
            "before": p.padded_size,
            "full": p.padded,
        }[source]

    def input_panels(self, source: str) -> int:
        """Panels of a source."""
        return ceil_div(self.columns(source), self.layer_width)

    def gate_panels(self, source: str) -> int:
        """Panels of a direction's gradients: of the gates, or of the projection's output."""
        return ceil_div(self.slopes if source == "gates" else self.p.padded_size, PANEL_GATES)

    @property
    def tile(self) -> int:
        """Elements of the sums of one panel of gradients by one of inputs."""
        return PANEL_GATES * self.layer_width


def fields_of(p: Recurrent, isa: Isa) -> dict[str, object]:
    """The fields of a plan without those of a step's tile."""
    vectors = 4 if isa.registers >= 32 else 2
    strided = tuple(
        operand.name
        for operand in p.operands
        if operand.name in (*SEQUENCES, *STATES) and operand.descriptor.strides[-1] != 1
    )
    return {
        "p": replace(p, steps=1, batch=1, rows=1, dropout=0.5 if p.dropout else 0.0, orders=()),
        "lanes": isa.lanes(compute_dtype(p.element)),
        "layer_rows": min((isa.registers - 1 - vectors) // vectors, p.rows),
        "layer_vectors": vectors,
        "strided": strided,
    }


def stride_names(p: Recurrent) -> list[str]:
    """Run-time integers of the operands: strides of (t, sequence, unit) or (layer, sequence, unit)."""
    names = [o.name for o in p.operands]
    found = [f"{name}.{axis}" for name in names if name in SEQUENCES for axis in "tnu"]
    found += [f"{name}.{axis}" for name in names if name in STATES for axis in "lnu"]
    return found + ["lengths.u"] * ("lengths" in names)
