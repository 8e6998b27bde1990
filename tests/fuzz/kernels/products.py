"""Convolutions by each algorithm of CUDA devices that is asked for by name, in any of its plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from convolution_cases import fused
from fuzz.draw import Draw
from fuzz.kernels.check import KernelProblem
from fuzz.kernels.layers import FEW, Wish, layer, with_sums
from fuzz.problem import operation
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import algorithm as by_warpgroups
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of, unplannable
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.exchanged import exchanged
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.finish import finish_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING, Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pointwise import of_pixels, transposed
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.problems import Convolution, FusedConvolution

_W = ("bwd_filter",)
_WARPGROUP_OPERATIONS, _FILTER_OPERATIONS = 20_000_000, 40_000_000
_MULTIPROCESSORS = (4, 132, 2, 16, 3, 1, 8)
_SHARERS = (2, 3, 4, 5)


class _As(by_warpgroups.WarpgroupGemm):
    """Products by warpgroups in one way, where the algorithm takes the fastest of several."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self._how = how

    def sizes(self, problem: Convolution, device: Any, epilogue: Any = None) -> Plan | str:
        fusion = Fusion(finish=finish_of(epilogue, problem.output.dtype)) if epilogue else NOTHING
        uses_workspace = not (self._how.get("is_paired") or self._how.get("pixels_are_columns"))
        if epilogue and not uses_workspace:
            return "it takes no epilogue here"
        return plan_of(problem, device, self._tiles, uses_workspace, fusion=fusion, **self._how)


class _Transposed(by_warpgroups.WarpgroupGemm):
    def sizes(self, problem: Convolution, device: Any, epilogue: Any = None) -> Plan | str:
        other = transposed(problem)
        if other is None or unplannable(other) or epilogue:
            return "it is no product of the filter and pixels"
        plan = plan_of(other, device, self._tiles, False)
        return plan if isinstance(plan, str) else of_pixels(plan)


class _Exchanged(by_warpgroups.WarpgroupWgrad):
    def sizes(self, problem: Convolution, device: Any, epilogue: Any = None) -> Plan | str:
        other = exchanged(problem)
        if other is None or unplannable(other):
            return "x and dy do not change places"
        plan = plan_of(other, device, self._tiles, True)
        if isinstance(plan, Plan) and any(plan.packs):
            return "an operand is packed"
        return plan if isinstance(plan, str) else of_pixels(plan)


class _Plain(by_warpgroups.WarpgroupWgrad):
    def sizes(self, problem: Convolution, device: Any, epilogue: Any = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, True)


@dataclass(frozen=True)
class Kind:
    """A kernel by its name, how often it is drawn, and what problems and devices it is made for."""

    name: str
    weight: int
    make: Callable[[str], Any]
    wish: Wish
    has_epilogue: bool = False
    is_exact: bool = True
    multiprocessors: tuple[int, ...] = _MULTIPROCESSORS

    @property
    def wanted(self) -> Wish:
        """The wish, larger of products by warpgroups, which are quick to emulate: small images have few stages."""
        if not self.name.startswith("wgmma"):
            return self.wish
        is_filter = self.wish.directions == _W
        extents = (7, 12, 17, 9, 33, 5, 20, 64, 3, 1) if is_filter else self.wish.extents
        return replace(
            self.wish, extents=extents, operations=_FILTER_OPERATIONS if is_filter else _WARPGROUP_OPERATIONS
        )


def _named(name: str, problem: Any = Convolution) -> Callable[[str], Any]:
    def make(direction: str) -> Algorithm | None:
        found = ALGORITHMS.get((problem, direction), ())
        return next((one for one in found if one.name == name), None)

    return make


def _of(**how: Any) -> Callable[[str], Any]:
    return lambda _: _As(**how)


_HALF = ("bf16", "f16")
_FIRST, _LAST = ("nchw",), ("nhwc",)
_WIDE = (64, 72, 40, 128, 96, 136, 8, 16, 24, 32, 256)
_ALL = ("bf16", "f16", "f32", "i8", "f8e4m3")
_CLOSE = ((3, 2, 5, 4, 7), (1,), (1,))
_W_F32 = Wish(_W, ("f32",))

_FEW_OPERATIONS = 1_000_000
_EACH = ("fwd", "bwd_data", "bwd_filter")
_GROUPED = Wish(
    _EACH,
    channels=(16, 32, 64, 48, 8, 96),
    outputs=(16, 32, 64, 48, 96),
    groups=(2, 4, 8, 16, 3, 1),
    ranks=(2, 1, 2, 2, 3),
)
_DEPTHWISE = Wish(
    _EACH,
    ("f32", "bf16", "f16"),
    operations=_FEW_OPERATIONS,
    channels=(8, 32, 16, 64, 5, 40, 33, 72),
    groups=(-1,),
    ranks=(2, 1, 2),
)
_TILES = Wish(
    dtypes=("f32",), operations=_FEW_OPERATIONS, channels=(32, 16, 33, 8, 40, 3, 64, 5), outputs=(32, 16, 8, 33, 64,
    40, 5), stride=(1,),
    taps=(3, 2, 3, 5, 1, 4), ranks=(2, 2, 1), dilation=(1, 1, 1, 2, 3), extents=(9, 14, 7, 4, 12, 1, 17, 28, 5, 33),
)  # fmt: skip
_BOXES = Wish(
    _EACH, channels=(32, 16, 64, 8, 40, 24, 96), outputs=(32, 64, 16, 8, 40, 96, 128), groups=(1,), stride=(1,),
    taps=(3, 1, 2, 3, 5), dilation=(1, 1, 2, 3),
)  # fmt: skip

KINDS = (
    # what changed most of late has the most turns
    Kind("wgmma plain", 6, _of(), Wish(dtypes=("bf16", "f16", "bf16", "f32", "i8", "f8e4m3", "f8e5m2")), True),
    # long sums of few tiles, which thread blocks share evenly, and few columns of tiles with many rows
    Kind("wgmma shared evenly", 4, _of(), Wish(channels=(256, 192, 320), outputs=(128, 136, 72, 192), groups=(1,),
        ranks=(2,), taps=(3, 5, 4), stride=(1,), extents=(4, 5, 7, 3, 9), layouts=_LAST),
        multiprocessors=_SHARERS),
    Kind("wgmma kept across", 4, _of(), Wish(channels=(64, 128, 72), outputs=(256, 192, 136, 128), groups=(1,),
        ranks=(2,), taps=(1,), stride=(1,), extents=(33, 20, 17, 40, 28), layouts=_LAST), multiprocessors=(2, 3, 4)),
    Kind("wgmma inside", 10, _of(skips_padding=1), Wish(
        dtypes=("bf16", "f16", "bf16", "f32", "i8", "f8e4m3"), channels=_WIDE, taps=(3, 5, 2, 4, 7), stride=(1, 1, 1,
        2), extents=(4, 3, 5, 7, 2, 1, 9, 12, 6),
    ), True),
    Kind("wgmma inside of two", 10, _of(skips_padding=2), Wish(
        channels=_WIDE, ranks=(2, 3), taps=(3, 5, 2, 4, 7), stride=(1, 1, 1, 2), extents=(4, 3, 5, 7, 2, 1, 9, 12, 6),
    ), True),
    Kind("wgmma inside lines", 6, _of(skips_padding=1, is_in_lines=True), Wish(
        channels=(32, 64, 16, 8, 40, 24, 4), outputs=_WIDE, ranks=(2, 3), taps=(3, 5, 2, 4), stride=(1, 1, 2),
        last=(*_CLOSE[:1], (1, 1, 2), (1,)), extents=(4, 3, 5, 7, 2, 9, 12, 6, 20),
    ), True),
    Kind("wgmma pairs", 10, _of(is_paired=True), Wish(
        ("bwd_data",), channels=(64, 128), outputs=(64, 72, 128, 96, 136, 192), groups=(1,), taps=(3, 2, 4, 5),
        stride=(2, 1, 3), dilation=(1, 1, 1, 2), last=((3, 5, 2, 4), (2,), (1,)), padding=(1, 0, 2),
        extents=(8, 6, 10, 4, 12, 18, 5, 2),
    )),
    Kind("wgmma pixels as columns", 4, _of(pixels_are_columns=True), Wish(channels=_WIDE, outputs=(64, 128, 192),
        groups=(1,), stride=(1, 1, 2))),
    Kind("wgmma transposed", 3, lambda _: _Transposed(), Wish(channels=_WIDE, outputs=_WIDE, groups=(1,), taps=(1,),
        stride=(1,), padding=(0,))),
    Kind("wgmma lines", 5, _of(is_in_lines=True), Wish(dtypes=("bf16", "f16", "f32", "i8"), channels=(32, 64, 16, 8,
        40, 24, 4), last=((3, 5, 2, 7), (1, 1, 2), (1, 1, 2))), True),
    Kind("wgmma in place", 2, _named("implicit_gemm_wgmma_in_place"), Wish(_EACH, channels=_WIDE, outputs=_WIDE)),
    Kind("wgmma swapped", 3, _named("implicit_gemm_wgmma_swapped"), Wish(("bwd_data",), ("f32",))),
    Kind("wgmma swapped in lines", 3, _named("implicit_gemm_wgmma_swapped_in_lines"), Wish(("bwd_data",), ("f32",),
        last=_CLOSE)),
    Kind("wgmma scaled", 2, _named("implicit_gemm_scaled_f16"), Wish(_EACH, ("f32",)), True),
    Kind("wgmma halves", 5, _named("implicit_gemm_3xf16"), Wish(_EACH, ("f32",)), True),
    Kind("wgmma thirds", 2, _named("implicit_gemm_6xbf16"), Wish(_EACH, ("f32",)), True),
    Kind("wgmma divided", 4, _named("implicit_gemm_3xf16_divided"), Wish(_EACH, ("f32",)), True),
    Kind("wgmma divided mixed", 2, _named("implicit_gemm_3xf16_divided_mixed"), _W_F32),
    Kind("wgmma divided in lines", 2, _named("implicit_gemm_3xf16_divided_in_lines"), Wish(_W, ("f32",), last=_CLOSE)),
    Kind("wgmma divided dy", 2, _named("implicit_gemm_3xf16_divided_dy"), _W_F32),
    Kind("wgmma blockwise", 2, _named("implicit_gemm_3xf16_blockwise"), Wish(_W, ("f32",), taps=(1,), stride=(1,),
        padding=(0,), groups=(1,))),
    Kind("wgmma scaled blockwise", 1, _named("implicit_gemm_scaled_f16_blockwise"), Wish(_W, ("f32",), taps=(1,),
        stride=(1,), padding=(0,), groups=(1,))),
    Kind("wgmma scaled divided", 1, _named("implicit_gemm_scaled_f16_divided"), _W_F32),
    Kind("wgmma scaled divided in lines", 1, _named("implicit_gemm_scaled_f16_divided_in_lines"), Wish(_W, ("f32",),
        last=_CLOSE)),
    Kind("wgmma filter", 10, lambda _: _Plain(), Wish(_W, dtypes=("bf16", "f16", "bf16", "f8e4m3"))),
    Kind("wgmma filter shared evenly", 4, lambda _: _Plain(), Wish(_W, channels=(64, 72, 40), outputs=(64, 128, 40),
        groups=(1,), ranks=(2,), taps=(1, 3, 2), stride=(1,), layouts=_LAST), multiprocessors=_SHARERS),
    Kind("wgmma filter exchanged", 3, lambda _: _Exchanged(), Wish(_W, channels=(64, 40, 128, 72), outputs=(32, 16, 8,
        24), groups=(1,), stride=(1,))),
    Kind("wgmma filter in lines", 5, _named("implicit_gemm_wgmma_in_lines"), Wish(_W, last=_CLOSE)),
    Kind("boxes", 6, _named("implicit_gemm_wgmma_in_boxes"), _BOXES),
    Kind("patches", 6, _named("patch_wgmma"), Wish(("bwd_data",), channels=(32, 64, 16, 8, 40, 96), outputs=(64, 32,
        8, 40, 128, 136), groups=(1,), taps=(2, 1, 3, 4), has_patches=True), True),
    Kind("mma", 4, _named("implicit_gemm"), Wish(_EACH, ("bf16", "f16", "f32", "i8")), True),
    Kind("mma in place", 2, _named("implicit_gemm_in_place"), Wish(_EACH, ("bf16", "f16", "f32", "i8")), True),
    Kind("fma", 6, _named("implicit_gemm_fma"), Wish(_EACH, ("f32",), operations=_FEW_OPERATIONS), True),
    Kind("few channels", 5, _named("stem"), Wish(_EACH, channels=FEW, groups=(1,)), True),
    Kind("few channels 3xtf32", 2, _named("stem_3xtf32"), Wish(_EACH, ("f32",), channels=FEW, groups=(1,)), True),
    Kind("few channels tf32", 2, _named("stem_tf32"), Wish(_EACH, ("f32",), channels=FEW, groups=(1,)), True),
    Kind("few channels 3xf16", 2, _named("stem_3xf16"), Wish(_EACH, ("f32",), channels=FEW, groups=(1,)), True),
    Kind("few channels copied", 1, _named("stem_copied"), Wish(("bwd_data",), channels=FEW, groups=(1,),
        layouts=_FIRST), True),
    Kind("grouped", 4, _named("grouped"), _GROUPED, True),
    Kind("grouped 3xtf32", 1, _named("grouped_3xtf32"), replace(_GROUPED, dtypes=("f32",)), True),
    Kind("grouped tf32", 1, _named("grouped_tf32"), replace(_GROUPED, dtypes=("f32",)), True),
    Kind("grouped copied", 1, _named("grouped_copied"), replace(_GROUPED, directions=("fwd", "bwd_data"),
        layouts=_FIRST), True),
    Kind("groups merged", 1, _named("groups_merged"), replace(_GROUPED, directions=_W, dtypes=("f32",))),
    Kind("depthwise sliding", 3, _named("depthwise_sliding"), _DEPTHWISE, True),
    Kind("depthwise banded", 3, _named("depthwise_banded"), replace(_DEPTHWISE, dtypes=_HALF), True),
    Kind("few pixels", 2, _named("few_pixels_3xf16"), Wish(dtypes=("f32",), extents=(1, 2, 3, 4)), True),
    Kind("planar", 2, _named("planar"), Wish(dtypes=("f32", "bf16"), channels=FEW, outputs=FEW,
        ranks=(2, 1, 2), operations=_FEW_OPERATIONS, layouts=_FIRST), True),
    Kind("patch", 1, _named("patch"), Wish(_EACH, has_patches=True), True),
    Kind("patch f32", 1, _named("patch_f32"), Wish(_EACH, ("f32",), has_patches=True), True),
    Kind("patch copied", 1, _named("patch_copied"), Wish(_EACH, has_patches=True)),
    Kind("winograd 4", 3, _named("winograd_4"), _TILES, True, False),
    Kind("winograd 2", 3, _named("winograd_2"), _TILES, True, False),
    Kind("winograd filter 4", 3, _named("winograd_filter_4"), replace(_TILES, directions=_W), False, False),
    Kind("winograd filter 2", 2, _named("winograd_filter_2"), replace(_TILES, directions=_W), False, False),
    Kind("winograd 4 of halves", 1, _named("winograd_4_3xf16"), _TILES, True, False),
    Kind("winograd 2 of halves", 1, _named("winograd_2_3xf16"), _TILES, True, False),
    Kind("winograd filter of halves", 1, _named("winograd_filter_4_3xf16"), replace(_TILES, directions=_W), False,
        False),
    Kind("direct", 2, _named("direct"), Wish(_EACH, ("f32", "bf16", "f16", "i8", "f8e4m3"),
        operations=_FEW_OPERATIONS), True),
)  # fmt: skip

FUSED = (
    Kind("wgmma fused", 4, _named("implicit_gemm_wgmma", FusedConvolution), Wish(("fwd", "fwd", "bwd_filter"),
        ("bf16", "f16", "f32"))),
    Kind("boxes with sums", 4, _named("implicit_gemm_wgmma_in_boxes", FusedConvolution), replace(_BOXES,
        directions=("fwd",))),
    Kind("few channels with sums", 4, _named("stem", FusedConvolution), Wish(("fwd",), channels=FEW, groups=(1,))),
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Problems for one kernel whose plans have one number, so that they share most of their code."""

    kind: Kind
    wish: Wish
    plan: int
    fusion: str | None

    def one(self, draw: Draw) -> KernelProblem:
        """A problem of it."""
        own = next(filter(None, (layer(draw, self.wish) for _ in range(20))), None) or _small(self.wish)
        algorithm = self.kind.make(own.direction)
        assert algorithm is not None, (self.kind.name, own.direction)
        problem, epilogue, is_exact = own, None, self.kind.is_exact
        if self.kind in FUSED:
            problem = with_sums(draw, own, "prologue" in str(self.fusion), "sums" in str(self.fusion))
            is_exact = problem.activation in ("relu", "identity")
        elif self.fusion:
            epilogue = fused(own, self.fusion)
        return KernelProblem(
            self.kind.name, algorithm, problem, epilogue, draw.pick(self.kind.multiprocessors), self.plan,
            draw.pick((1.0, 0.5, -0.7, 1.7)), draw.pick((0.0, 1.0, 0.3, -2.0)), draw.below(1 << 20), is_exact,
            not draw.chance(0.03), l2_bytes=4096 if draw.chance(0.5) else None,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.kind.name}, plan {self.plan}"


def _small(wish: Wish) -> Convolution:
    return Convolution.make(wish.directions[0], (1, 8, 4), (8, 8, 3), dtype="bf16", layout="nhwc")


def _family(draw: Draw, kinds: tuple[Kind, ...]) -> tuple[Kind, Wish, int]:
    kind = draw.weighted(*((one.weight, one) for one in kinds))
    wish = kind.wanted.narrowed(draw)
    while kind.make(wish.directions[0]) is None:  # some have no filter gradients
        wish = kind.wanted.narrowed(draw)
    if wish.dtypes == ("f32",) and kind.name.startswith("wgmma"):  # three or six products for one, mostly
        wish = replace(wish, operations=wish.operations // 4)
    return kind, wish, draw.below(1 << 20)


@operation("kernels_of_convolutions", 10, functions=(), targets=("emulated",))
def _convolutions(draw: Draw) -> Family:
    kind, wish, plan = _family(draw, KINDS)
    is_plain = wish.dtypes[0] in ("f32", "f16", "bf16") and wish.directions[0] != "bwd_filter"
    fusion = None
    if kind.has_epilogue and is_plain and draw.chance(0.25):
        fusion = "bias" if kind.name == "patches" else draw.pick(("activation", "bias", "residual", "scalar"))
    return Family(kind, wish, plan, fusion)


@operation("kernels_of_fused_convolutions", 3, functions=(), targets=("emulated",))
def _fused(draw: Draw) -> Family:
    kind, wish, plan = _family(draw, FUSED)
    fusion = draw.pick(("prologue and sums", "sums", "prologue"))
    if wish.directions[0] == "bwd_filter":
        fusion = "prologue"
    elif "sums" in kind.name:
        fusion = "sums"
    return Family(kind, wish, plan, fusion)
