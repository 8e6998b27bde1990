"""The plan of the least cost for 8-bit integers, and what packing its filter costs."""

from __future__ import annotations

from dataclasses import fields, replace

from jitdnn.kernels.cpu.convolution.implicit_gemm.cost import make_plan
from jitdnn.kernels.cpu.convolution.implicit_gemm.plan import Geometry
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.plan import WORD_CHANNELS, VnniPlan
from jitdnn.kernels.cpu.correlation import Correlation, InterleavedPhases, View
from jitdnn.kernels.cpu.lowering import stored_dtype
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.rtcg.isa import Isa

_PACK = 1.3  # cycles to pack a word of the filter


def make_vnni_plan(c: Correlation, isa: Isa) -> VnniPlan:
    """The plan for a correlation of 8-bit integers, which is stated in single channels and reals.

    Padding takes part in all sums, so that those of all pixels begin with the same values: no taps are clipped. An
    input tile always has all channels."""
    stored = c.x.dtype.partition(":")[0]
    in_words = replace(
        c,
        dtype="i32",
        depth=ceil_div(c.depth, WORD_CHANNELS),
        x=replace(c.x, dtype=stored),
        w=replace(c.w, dtype="i8"),
    )
    geometry = Geometry(in_words, isa, InterleavedPhases.single(in_words), clips_taps=False, may_spill=False)
    plan = make_plan(geometry, prepacks=True)
    sizes = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return VnniPlan(**sizes, channels_read=c.depth, computing=c.dtype, is_shifted=stored == "i8")


def computed_in(c: Correlation, dtype: str) -> Correlation:
    """The same with its results computed, and operands of its epilogue loaded, as another real type."""

    def restated(view: View) -> View:
        return replace(view, dtype=stored_dtype(view.dtype.partition(":")[0], dtype))

    return replace(c, dtype=dtype, y=restated(c.y), operands=tuple(map(restated, c.operands)))


def pack_cycles(plan: VnniPlan) -> float:
    return _PACK * plan.c.group_count * plan.panels.count * plan.panels.panel_size
