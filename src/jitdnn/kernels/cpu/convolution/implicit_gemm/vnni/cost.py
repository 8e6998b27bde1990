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
        x=_in_words(c) or replace(c.x, dtype=stored),
        w=replace(c.w, dtype="i8"),
    )
    geometry = Geometry(
        in_words,
        isa,
        InterleavedPhases.single(in_words),
        clips_taps=False,
        may_spill=False,
    )
    plan = make_plan(geometry, prepacks=True)
    if not plan.is_input_unpacked and in_words.x.dtype == "i32":  # it is packed by bytes
        in_words = replace(in_words, x=replace(c.x, dtype=stored))
        plan = replace(plan, c=in_words, interleaved=InterleavedPhases.single(in_words))
    sizes = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return VnniPlan(**sizes, channels_read=c.depth, computing=c.dtype, is_shifted=stored == "i8")


def _in_words(c: Correlation) -> View | None:
    """The strides of an image without a sign in words, where each is four channels as they lie; None elsewhere."""
    x = c.x
    strides = (x.batch, x.offset, *x.groups, *x.space)
    if x.dtype.partition(":")[0] != "u8" or x.channels != 1 or c.depth % WORD_CHANNELS:
        return None
    if any(stride % WORD_CHANNELS for stride in strides):
        return None
    words = [stride // WORD_CHANNELS for stride in strides]
    first, second, third = words[-3:]
    return View("i32", words[0], tuple(words[2:-3]), 1, (first, second, third), words[1])


def computed_in(c: Correlation, dtype: str) -> Correlation:
    """The same with its results computed, and operands of its epilogue loaded, as another real type."""

    def restated(view: View) -> View:
        return replace(view, dtype=stored_dtype(view.dtype.partition(":")[0], dtype))

    return replace(c, dtype=dtype, y=restated(c.y), operands=tuple(map(restated, c.operands)))


def pack_cycles(plan: VnniPlan) -> float:
    return _PACK * plan.c.group_count * plan.panels.count * plan.panels.panel_size
