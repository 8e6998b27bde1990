"""What the programs of recurrent layers share: forward, gradients of the data, gradients of the weights.

Tensors become rows without gaps (rows.cu). For each layer the products of all rows with the input weights are one
matrix product a direction; the recurrent part is one launch (`plan.py`, forward.cu, backward.cu); a weight's gradient
is one matrix product over all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.rnn.plan import Product, StepPlan, state_type
from jitdnn.kernels.cuda.rnn.program import NOTHING, At, Program
from jitdnn.problems.dropout import Dropout
from jitdnn.problems.rnn import KEPT, Recurrent
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import TensorDescriptor, compute_dtype

_SEQUENCES = ("whole", "lengths", "packed")
_FEW_GROUPS = 512  # thread blocks whose warps all write to one number


def passes_of(p: Recurrent, precision: str) -> int:
    """Products on tensor cores to one of numbers.

    `precision`: "numbers" (products are of the numbers themselves, on CUDA cores), "parts" (of numbers of f32 in two
    parts of tf32 each; of halves as they are) or "rounded" (of f32 rounded to tf32).
    """
    return 3 if precision == "parts" and p.element == "f32" else 1


def step_source(p: Recurrent, name: str, precision: str, plan: StepPlan) -> Source:
    """The kernel of a layer's recurrent part, "forward" or "backward"."""
    sections = 4 if p.cell in ("lstm", "gru") else 1
    has_tensor_cores, passes = precision != "numbers", passes_of(p, precision)
    state = state_type(p, has_tensor_cores)
    if plan.cluster and name == "backward":  # whose exchange costs little
        state = compute_dtype(p.element)
    groups = plan.warpgroups
    cut: tuple[tuple[str, object], ...] = (("MT", plan.tiles),)
    if groups:
        cut = (
            ("ROW_GROUPS", groups.rows),
            ("K_GROUPS", groups.slabs),
            ("TOGETHER", groups.together),
            ("COLUMNS", 8 * plan.first.tiles),
            ("UNITS", plan.units),
            ("PARTS", plan.parts),
            ("PAIRED", int(plan.is_paired)),
        )
    elif plan.cluster:
        cut += (
            ("CLUSTER", plan.cluster),
            ("WARPS", plan.threads // 32),
            ("UNIT_TILES", plan.unit_tiles),
            ("STATE_BYTES", ITEM_BYTES[state]),
            ("WHOLE", int(p.sequences == "whole")),
        )
    defines = (
        ("REAL", compute_dtype(p.element)), ("ELEMENT", p.element), ("STATE", state),
        ("TENSOR", int(has_tensor_cores)), ("TF32", int(has_tensor_cores and passes == 1 and state == "f32")),
        ("PASSES", passes), *cut, (f"CELL_{p.cell.upper()}", 1), ("GATES", p.gates),
        ("BIASES", sections), ("SECTIONS", sections), ("SKIPPED", int(p.cell == "gru")),
        ("PROJECTED", int(bool(p.projection))), ("CLIPPED", int(p.clip is not None)),
        ("KEPT", int(p.is_training and KEPT[p.cell] > 0)),
        ("IN_PARTS", int(plan.parts > 1)), ("SENT", int(state != compute_dtype(p.element))),
        ("ITEMS", plan.items),
    )  # fmt: skip
    if plan.cluster:
        text = read_text("cuda/rnn", "product.cuh", "steps.cuh", "cluster.cuh", f"cluster_{name}.cu")
        return Source(f"rnn_cluster_{name}", text, defines, "hopper")
    product, dialect = ("warpgroup.cuh", "hopper") if groups else ("product.cuh", "cuda")
    text = read_text("cuda/rnn", product, "steps.cuh", f"{name}.cu")
    return Source(f"rnn_{name}", text, defines, dialect, spills=True)  # of a few bytes, outside of the loops


class Layers:
    """The steps of a problem as far as they are put together."""

    def __init__(
        self, p: Recurrent, device: GpuDevice, products: Sequence[Algorithm], precision: str
    ) -> None:
        self.p, self.device, self.precision = p, device, precision
        self.has_tensor_cores = precision != "numbers"
        self.steps = Program(p, device, products, precision, state_type(p, self.has_tensor_cores))
        self.passes = passes_of(p, precision)
        self.gates_kept = 4 if p.cell in ("lstm", "gru") else 1  # sections of `dgates`, and of biases
        self.tables = NOTHING

    # ---- what all directions begin with

    def make_tables(self, counters: int) -> At:
        """Tables of the sequences; the address of the barriers' counters behind them."""
        p, program = self.p, self.steps
        numbers = 2 * p.steps + 4 + 2 * p.batch
        self.tables = program.take(numbers + counters, 4)
        stride = program.strides("lengths")[0] if p.sequences != "whole" else 0
        program.launch(
            None, Launch("make_tables", 1, 1024), (self.tables, program.operand("lengths")),
            (_SEQUENCES.index(p.sequences), p.steps, p.batch, p.rows, stride, counters),
        )  # fmt: skip
        return self.tables + 4 * numbers

    def tensor_steps(self, name: str) -> tuple[int, int, int, int]:
        """(is packed, elements from a step to the next, a sequence to the next, a unit to the next)."""
        strides = self.steps.strides(name)
        if self.p.sequences == "packed":
            return 1, 0, strides[0], strides[1]
        t, n = (strides[1], strides[0]) if self.p.is_batch_major else strides[:2]
        return 0, t, n, strides[2]

    def gather(self, name: str, width: int, is_real: bool) -> At:
        """A tensor as rows without gaps, of elements or of what is computed with."""
        p, program = self.p, self.steps
        item = program.real_item if is_real else program.item
        rows = program.take(p.rows * width, item)
        program.rows(
            "gather_real" if is_real else "gather", p.rows * width, (self.tables, program.operand(name), rows),
            (p.steps, p.batch, p.rows, width, *self.tensor_steps(name)),
        )  # fmt: skip
        return rows

    def rows_in_place(self, name: str, width: int) -> TensorDescriptor | None:
        """A tensor that is rows already: each sequence is in its place, and one stride leads from row to row."""
        p = self.p
        if p.sequences == "lengths" or (p.sequences == "packed" and p.direction != "fwd"):
            return None
        _, t, n, unit = self.tensor_steps(name)
        step = t if p.batch == 1 and p.sequences == "whole" else n
        if p.sequences == "whole" and p.steps > 1 and p.batch > 1 and t != n * p.batch:
            return None
        return TensorDescriptor((p.rows, width), (step, unit), p.element)

    def compact(
        self, source: At, state_of: int, function: str, into: At | None = None, pitch: int = 0, factors: At = NOTHING
    ) -> At:  # fmt: skip
        """Outputs of layer `state_of`, or gradients of these, as rows without gaps, some of them dropped.

        `function`: "compact" from what is exchanged to elements, "compact_up" to what is computed with, "compact_real"
        from that, "compact_down" from that to elements.
        """
        p, program = self.p, self.steps
        width = p.directions * p.size
        is_real = function in ("compact_up", "compact_real")
        to = into or program.take(p.rows * width, program.real_item if is_real else program.item)
        rule = Dropout.make((1,), p.dropout)
        threshold = rule.threshold if p.dropout else -1
        program.rows(
            function, p.rows * width,
            (self.tables, source, factors, program.operand("state"), to),
            (p.steps, p.rows, p.directions, p.size, pitch or p.padded_size, p.padded_size, state_of, threshold),
            (rule.factor,),
        )  # fmt: skip
        return to

    def section(self, operand: str, sections: dict[str, int], layer: int, name: str) -> At:
        if name not in sections:
            return NOTHING
        return self.steps.operand(operand, self.p.section(sections, layer, name))

    def take_states(
        self, name: str, layer: int, size: int, padded: int, to: At, function: str = "take_states"
    ) -> None:
        p, program = self.p, self.steps
        strides = program.strides(name)
        source = program.operand(name, layer * p.directions * strides[0])
        count = p.directions * p.batch * padded
        program.rows(
            function, count, (self.tables, source, to), (p.steps, p.batch, p.directions, size, padded, *strides)
        )  # fmt: skip

    def give_states(
        self, function: str, sources: tuple[At, ...], name: str, layer: int, size: int, padded: int
    ) -> None:
        p, program = self.p, self.steps
        strides = program.strides(name)
        target = program.operand(name, layer * p.directions * strides[0])
        program.rows(
            function, p.directions * p.batch * size, (self.tables, *sources, target),
            (p.steps, p.batch, p.directions, size, padded, *strides),
        )  # fmt: skip

    def _zero_rows(self, operand: str, sections: dict[str, int], layer: int) -> None:
        """Behind the last row that a sequence has."""
        p = self.p
        if p.sequences == "whole":
            return
        for name, numbers in sections.items():
            width = numbers * p.directions
            self.steps.rows(
                "zero_rows", p.rows * width, (self.tables, self.section(operand, sections, layer, name)),
                (p.steps, p.rows, width),
            )  # fmt: skip

    def tails(self, layer: int) -> Iterator[tuple[int, str]]:
        for direction in range(self.p.directions):
            yield direction, f"_l{layer}" + ("_reverse" if direction else "")

    # ---- gradients in half precision

    def begin_factors(self, factors: At) -> None:
        """Factors of 1, and no largest number yet."""
        self.steps.launch(None, Launch("begin_factors", 1, 256), (factors,), ())

    def end_factors(
        self, factors: At, numbers: Sequence[tuple[At, int]], others: Sequence[tuple[At, int]], exponent: int
    ) -> None:
        """Factors that make the largest of some arrays of numbers 2^`exponent`; of bf16, which holds all numbers, 1.

        `others`: elements by which the numbers will be multiplied, of which a largest that is more than 1 counts too.
        """
        program = self.steps
        if self.p.element == "bf16":
            return
        for function, arrays, to in (
            ("find_largest", numbers, factors + 8), ("find_largest_element", others, factors + 12),
        ):  # fmt: skip
            for source, count in arrays:
                program.rows(function, count, (source, to), (count,), most_groups=_FEW_GROUPS)
        program.launch(None, Launch("end_factors", 1, 256), (factors,), (exponent,))

    # ---- the recurrent launch

    def pack(
        self, name: str, to: At, plan: StepPlan, product: Product, units: int, unit_count: int, k_count: int,
        padded: int, is_transposed: bool, parts: int = 1,
    ) -> None:  # fmt: skip
        program = self.steps
        count = plan.slices * product.slice_bytes // program.state_item
        gates = 1 if is_transposed or name.startswith("weight_hr") else self.p.gates
        program.rows(
            "pack_weights", count, (program.operand(name), to),
            (plan.slices, product.lines, 8 * product.tiles, units, unit_count, k_count, padded, int(is_transposed),
             parts, product.slabs, gates, plan.order, *program.strides(name)),
        )  # fmt: skip

    def pack_columns(self, name: str, to: At, plan: StepPlan) -> None:
        p, program, product = self.p, self.steps, plan.first
        program.rows(
            "pack_columns", plan.slices * product.slice_bytes // program.state_item, (program.operand(name), to),
            (plan.slices, product.slabs, 8 * product.tiles, plan.units, p.hidden, p.gates, *program.strides(name)),
        )  # fmt: skip

    def room_for(self, plan: StepPlan, product: Product | None) -> At:
        if product is None:
            return NOTHING
        return self.steps.take(self.p.directions * plan.slices * product.slice_bytes, 1)

    def launch(
        self, name: str, plan: StepPlan, pointers: Sequence[At], first: int, sizes: Sequence[int]
    ) -> None:
        p, program = self.p, self.steps
        second = plan.second or Product(0, 0)
        launch = Launch(
            name, (plan.slices, plan.groups, plan.directions), plan.threads, plan.shared,
            is_cooperative=self.device.cooperates,
        )  # fmt: skip
        numbers = (
            p.steps, p.batch, p.directions, first, plan.slices, plan.group_rows, *sizes,
            plan.units, 8 * plan.first.tiles, plan.first.lines, plan.first.slabs, plan.first.resident, plan.outputs,
            second.slabs, second.resident,
            *((plan.parts,) if name == "backward" else ()),
        )  # fmt: skip
        source = step_source(p, name, self.precision, plan)
        program.launch(source, launch, pointers, numbers, p.clip or (0.0, 0.0))
        program.seconds += p.steps * plan.cycles / self.device.facts.clock

    def launches(self, name: str, plan: StepPlan, pointers: Sequence[At], sizes: Sequence[int]) -> None:
        for first in range(0, self.p.directions, plan.directions):
            self.launch(name, plan, pointers, first, sizes)

    def cluster_launch(self, name: str, plan: StepPlan, pointers: Sequence[At], sizes: Sequence[int]) -> None:
        """The same by clusters of thread blocks, of both directions."""
        p, program = self.p, self.steps
        grid = plan.cluster, plan.groups, p.directions
        launch = Launch(f"cluster_{name}", grid, plan.threads, plan.shared, cluster=plan.cluster)
        numbers = (p.steps, p.batch, p.directions, *sizes, plan.first.tiles, plan.first.slabs)
        source = step_source(p, name, self.precision, plan)
        program.launch(source, launch, pointers, numbers, p.clip or (0.0, 0.0))
        program.seconds += p.steps * plan.cycles / self.device.facts.clock

    def program(self) -> Program | None:
        """All steps; None if the sums of a thread block do not fit shared memory."""
        raise NotImplementedError

    def scatter(
        self, name: str, source: At, parts: int, columns: int, pitch: int, factors: At = NOTHING
    ) -> None:
        p, program = self.p, self.steps
        program.rows(
            "scatter", p.rows * parts * columns, (self.tables, source, factors, program.operand(name)),
            (p.steps, p.batch, p.rows, parts, columns, pitch, *self.tensor_steps(name)), is_scaled=True,
        )  # fmt: skip
