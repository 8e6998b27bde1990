"""The frozen sizes that the code of CTC loss is generated from, its run-time integers and its workspace."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.ctc_loss import CtcLoss
from jitdnn.rtcg.isa import ITEM_BYTES, Isa
from jitdnn.tensor import compute_dtype

# rows of a thread without those of alpha: logarithms, skips, two times two of beta, two of alpha + beta
FIXED_ROWS = 8


@dataclass(frozen=True)
class CtcPlan:
    """What the code is generated from; sizes and strides are given at run time."""

    direction: str
    reduction: str
    inputs: str
    dtype: str
    dtypes: tuple[str, ...]  # of all operands
    names: tuple[str, ...]
    is_padded: bool
    zero_infinity: bool
    is_contiguous: bool  # symbols are neighbours in memory, in x and dx

    @property
    def real(self) -> str:
        """The type of the arithmetic."""
        return compute_dtype(self.dtype)

    @property
    def is_reduced(self) -> bool:
        """Whether the losses of all sequences are added up."""
        return self.reduction != "none"


def plan_ctc(problem: CtcLoss) -> CtcPlan:
    operands = problem.operands
    contiguous = all(t is None or t.strides[2] == 1 or t.shape[2] == 1 for t in (problem.x, problem.dx))
    return CtcPlan(
        problem.direction, problem.reduction, problem.inputs_are, problem.dtype,
        tuple(o.descriptor.dtype for o in operands), tuple(o.name for o in operands), problem.is_padded,
        problem.zero_infinity, contiguous,
    )  # fmt: skip


def row_elements(problem: CtcLoss, isa: Isa) -> int:
    """Elements of a row of labels or blanks, with one more vector at each end."""
    lanes = isa.lanes(compute_dtype(problem.dtype))
    return (ceil_div(problem.longest + 1, lanes) + 2) * lanes


def thread_bytes(problem: CtcLoss, isa: Isa) -> int:
    """Bytes of the workspace of a thread, of which code.py makes buffers."""
    real = compute_dtype(problem.dtype)
    lanes, row = isa.lanes(real), row_elements(problem, isa)
    times, _, symbols = problem.x.shape
    alphas = times if problem.direction == "bwd" else 2
    elements = (2 + FIXED_ROWS + 2 * alphas) * row + times + (ceil_div(symbols, lanes) + 1) * lanes
    return ceil_div(elements * ITEM_BYTES[real], 128) * 128 + 128


def losses_bytes(problem: CtcLoss) -> int:
    """Bytes of the losses of all sequences, where they are added up."""
    is_added = problem.direction == "fwd" and problem.reduction != "none"
    return ceil_div(problem.x.shape[1] * 8, 128) * 128 if is_added else 0


def make_slots(problem: CtcLoss) -> Slots:
    """The integers that the code takes at run time."""
    names = ["times", "batch", "symbols", "longest", "labels", "blank", "row", "thread_bytes", "losses_bytes"]
    for operand in problem.operands:
        names += [f"{operand.name}{axis}" for axis in range(len(operand.descriptor.shape))]
    return Slots(*names)


def slot_values(problem: CtcLoss, isa: Isa) -> dict[str, int]:
    """Their values."""
    times, n, symbols = problem.x.shape
    values = {
        "times": times, "batch": n, "symbols": symbols, "longest": problem.longest,
        "labels": problem.targets.shape[0], "blank": problem.blank, "row": row_elements(problem, isa),
        "thread_bytes": thread_bytes(problem, isa), "losses_bytes": losses_bytes(problem),
    }  # fmt: skip
    for operand in problem.operands:
        values |= {f"{operand.name}{axis}": s for axis, s in enumerate(operand.descriptor.strides)}
    return values
