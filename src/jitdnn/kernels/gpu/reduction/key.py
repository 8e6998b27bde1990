"""Programs over rows: what of them is compiled in, and the numbers that a kernel takes."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.kernels.formulas.row_programs import Program
from jitdnn.kernels.gpu.reduction.layout import Layout
from jitdnn.kernels.gpu.reduction.split_rows import region_bytes


@dataclass(frozen=True)
class RowCode:
    """What is compiled in. Lists of tensors have the inputs first, then the outputs."""

    program: Program
    dtypes: tuple[str, ...]
    operands: tuple[int, ...]  # the number of each tensor's pointer
    pointers: int
    plain: tuple[int, ...]  # outputs, by position, that alpha and beta do not touch
    compute: str
    layout: Layout

    @property
    def inputs(self) -> int:
        return len(self.dtypes) - self.program.outputs

    @property
    def index(self) -> str:
        return "i64" if self.layout.wide else "i32"

    @property
    def is_split(self) -> bool:
        return self.layout.parts > 1

    @property
    def is_short(self) -> bool:
        """Whether all elements of rows are numbers of 16 bits."""
        axes = [*self.layout.reduced, self.layout.lanes]
        moving = {dtype for t, dtype in enumerate(self.dtypes) if any(steps[t] for _, steps in axes)}
        return self.compute == "f32" and moving <= {"f16", "bf16"}

    @property
    def extras(self) -> list[tuple[str, int]]:
        """The whole numbers that every function takes, by name."""
        layout, tensors = self.layout, range(len(self.dtypes))
        found = [
            ("rows", layout.rows),
            ("units", layout.units),
            ("n", layout.row),
            ("lanes", layout.lanes[0]),
        ]
        found += [("lane_blocks", layout.lane_blocks), ("parts", layout.parts), ("per_part", layout.per_part)]
        found += [("region", region_bytes(layout))]
        for name, axes in (("kept", layout.kept), ("reduced", layout.reduced), ("lane", (layout.lanes,))):
            for a, (extent, steps) in enumerate(axes):
                if name != "lane":
                    found.append((f"{name}{a}", extent))
                if name == "reduced" and a and not layout.wide:
                    magic, shift = magic_of(max(1, extent))
                    found += [(f"magic{a}", magic), (f"shift{a}", shift)]
                found += [(f"{name}{a}_{t}", steps[t]) for t in (*tensors, len(self.dtypes))]
        return found


def magic_of(divisor: int) -> tuple[int, int]:
    """What `quotient_u32` divides by a number with."""
    shift = (divisor - 1).bit_length()
    return (2**32 * (2**shift - divisor)) // divisor + 1, shift
