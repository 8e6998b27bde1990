"""The algorithms of CUDA devices, best first."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cuda.attention.algorithm import Flash, FlashInThree
from jitdnn.kernels.cuda.convolution.boxes.algorithm import (
    WarpgroupFusedInBoxes,
    WarpgroupGemmInBoxes,
    WarpgroupWgradInBoxes,
    summed_convolution,
)
from jitdnn.kernels.cuda.convolution.channels_last import ChannelsLast, FewChannelsLast
from jitdnn.kernels.cuda.convolution.depthwise.algorithm import DepthwiseBanded, DepthwiseSliding
from jitdnn.kernels.cuda.convolution.few_channels.algorithm import (
    FewChannels,
    FewChannelsF32,
    FewChannelsTf32,
)
from jitdnn.kernels.cuda.convolution.few_channels.halves import FewChannelsHalves
from jitdnn.kernels.cuda.convolution.few_channels.summed import FewChannelsSummed
from jitdnn.kernels.cuda.convolution.few_pixels.algorithm import FewPixels
from jitdnn.kernels.cuda.convolution.grouped.algorithm import Grouped, GroupedF32, GroupedTf32
from jitdnn.kernels.cuda.convolution.implicit_gemm.algorithm import (
    ImplicitGemm,
    ImplicitGemmFma,
    ImplicitGemmFmaWgrad,
    ImplicitGemmInPlace,
    ImplicitGemmWgrad,
    ImplicitGemmWgradInPlace,
)
from jitdnn.kernels.cuda.convolution.merged_groups import MergedGroups, MergedGroupsTf32
from jitdnn.kernels.cuda.convolution.patch import Patch, PatchF32, PatchTf32
from jitdnn.kernels.cuda.convolution.patch_copied import PatchCopied
from jitdnn.kernels.cuda.convolution.patches.algorithm import WarpgroupPatches
from jitdnn.kernels.cuda.convolution.planar.algorithm import Planar
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemm,
    WarpgroupGemmInLines,
    WarpgroupGemmInPlace,
    WarpgroupGemmSwapped,
    WarpgroupGemmSwappedInLines,
    WarpgroupWgrad,
    WarpgroupWgradInLines,
    WarpgroupWgradInPlace,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fused import WarpgroupFused
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import (
    WarpgroupGemmDivided,
    WarpgroupGemmHalves,
    WarpgroupGemmThirds,
    WarpgroupWgradBlockwise,
    WarpgroupWgradDivided,
    WarpgroupWgradDividedInLines,
    WarpgroupWgradDividedRows,
    WarpgroupWgradHalves,
    WarpgroupWgradRows,
    WarpgroupWgradThirds,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.scaled import (
    WarpgroupGemmScaled,
    WarpgroupWgradScaled,
    WarpgroupWgradScaledBlockwise,
    WarpgroupWgradScaledDivided,
    WarpgroupWgradScaledDividedInLines,
)
from jitdnn.kernels.cuda.convolution.winograd.algorithm import (
    Winograd2Halves,
    Winograd4Halves,
    WinogradWgrad2Halves,
    WinogradWgrad4Halves,
)
from jitdnn.kernels.cuda.convolution.winograd.multiply_adds import (
    Winograd2Fma,
    Winograd4Fma,
    WinogradWgrad2Fma,
    WinogradWgrad4Fma,
)
from jitdnn.kernels.cuda.matmul import MatmulFma, TensorCoreMatmul, TensorCoreMatmulInPlace
from jitdnn.kernels.cuda.rnn.algorithm import PersistentSteps, PersistentStepsTensorCores, PersistentStepsTf32
from jitdnn.kernels.cuda.warpgroup_matmul import (
    WarpgroupMatmul,
    WarpgroupMatmulDivided,
    WarpgroupMatmulHalves,
    WarpgroupMatmulInPlace,
    WarpgroupMatmulThirds,
)
from jitdnn.kernels.gpu.elementwise.generator import ElementwiseLoops
from jitdnn.kernels.gpu.table import (
    ELEMENTWISE,
    IMAGE_TRANSFORM,
    MULTI_TENSOR,
    PLAIN,
    REDUCTION,
    ROWS,
    SCAN,
    separate_kernels,
)
from jitdnn.kernels.reference import REFERENCE
from jitdnn.problems.attention import Attention
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_fused import FusedConvolution
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.problem import Problem
from jitdnn.problems.rnn import DIRECTIONS, Recurrent

__all__ = [
    "ALGORITHMS",
    "ELEMENTWISE",
    "IMAGE_TRANSFORM",
    "MULTI_TENSOR",
    "REDUCTION",
    "ROWS",
    "SCAN",
    "SUMMED_CONVOLUTION",
]

_ELEMENTWISE = ElementwiseLoops()
_CORRELATION: tuple[Algorithm, ...] = (
    DepthwiseSliding(),
    DepthwiseBanded(),
    WarpgroupGemm(),
    WarpgroupGemmInLines(),
    WarpgroupGemmInBoxes(),
    WarpgroupGemmSwapped(),
    WarpgroupGemmSwappedInLines(),
    WarpgroupGemmInPlace(),
    WarpgroupGemmScaled(),
    WarpgroupGemmHalves(),
    WarpgroupGemmThirds(),
    WarpgroupGemmDivided(),
    FewPixels(),
    Winograd4Halves(),
    Winograd2Halves(),
    ImplicitGemm(),
    ImplicitGemmInPlace(),
    ImplicitGemmFma(),
    FewChannels(),
    FewChannelsF32(),
    FewChannelsTf32(),
    FewChannelsHalves(),
    Grouped(),
    GroupedF32(),
    GroupedTf32(),
    Planar(),
)
_WGRAD: tuple[Algorithm, ...] = (
    DepthwiseSliding(),
    DepthwiseBanded(),
    WarpgroupWgrad(),
    WarpgroupWgradInLines(),
    WarpgroupWgradInBoxes(),
    WarpgroupWgradInPlace(),
    WarpgroupWgradScaled(),
    WarpgroupWgradScaledBlockwise(),
    WarpgroupWgradScaledDivided(),
    WarpgroupWgradScaledDividedInLines(),
    WarpgroupWgradHalves(),
    WarpgroupWgradThirds(),
    WarpgroupWgradBlockwise(),
    WarpgroupWgradDivided(),
    WarpgroupWgradDividedRows(),
    WarpgroupWgradDividedInLines(),
    WarpgroupWgradRows(),
    WinogradWgrad4Halves(),
    WinogradWgrad2Halves(),
    ImplicitGemmWgrad(),
    ImplicitGemmWgradInPlace(),
    ImplicitGemmFmaWgrad(),
    FewChannels(),
    FewChannelsF32(),
    FewChannelsTf32(),
    FewChannelsHalves(),
    Grouped(),
)


# those of plain C whose products have tiles of their own here
_REPLACED: dict[str, Algorithm] = {
    one.name: one(MatmulFma()) for one in (Winograd4Fma, Winograd2Fma, WinogradWgrad4Fma, WinogradWgrad2Fma)
}


def _with_patch(direction: str, own: tuple[Algorithm, ...]) -> tuple[Algorithm, ...]:
    plain = tuple(_REPLACED.get(one.name, one) for one in PLAIN[Convolution, direction])
    others = (*own, *(other for other in plain if other is not REFERENCE))
    on_tensor_cores = [one for one in own if one.name.startswith("implicit_gemm") and "fma" not in one.name]
    products = [one for one in on_tensor_cores if "in_place" not in one.name]
    if direction != "bwd_filter":
        own += tuple(ChannelsLast(_ELEMENTWISE, one) for one in (Grouped(), DepthwiseBanded()))
        own += tuple(
            FewChannelsLast(_ELEMENTWISE, one)
            for one in (FewChannels(), FewChannelsF32(), FewChannelsTf32(), FewChannelsHalves())
        )
    else:
        own += tuple(merged(_ELEMENTWISE, *on_tensor_cores) for merged in (MergedGroups, MergedGroupsTf32))
    # an error bound holds for all that may run, and those of transforms would have others refused
    sums = [one for one in others if not one.name.startswith(("fft", "winograd"))]
    patches = (Patch(*others), PatchF32(*sums), PatchTf32(*sums))
    return (*own, *patches, PatchCopied(_ELEMENTWISE, *products), *plain)


_FORWARD, _FILTER = _with_patch("fwd", _CORRELATION), _with_patch("bwd_filter", _WGRAD)
_SEPARATE = separate_kernels({"fwd": _FORWARD, "bwd_filter": _FILTER}, is_tensor=True)
_FUSED = (
    WarpgroupFused(_SEPARATE[0]),
    WarpgroupFusedInBoxes(_SEPARATE[0]),
    FewChannelsSummed(_SEPARATE[0]),
    *_SEPARATE,
)

SUMMED_CONVOLUTION = summed_convolution

_MATMUL: tuple[Algorithm, ...] = (
    WarpgroupMatmul(),
    WarpgroupMatmulInPlace(),
    WarpgroupMatmulHalves(),
    WarpgroupMatmulThirds(),
    WarpgroupMatmulDivided(),
    TensorCoreMatmul(),
    TensorCoreMatmulInPlace(),
    MatmulFma(),
    *PLAIN[MatMul, None],
)
_RECURRENT = (PersistentStepsTensorCores(_MATMUL), PersistentStepsTf32(_MATMUL), PersistentSteps(_MATMUL))
_FLASH: tuple[Algorithm, ...] = (Flash(), FlashInThree())

# (problem class, direction or None for problems that have only one)
ALGORITHMS: dict[tuple[type[Problem], str | None], tuple[Algorithm, ...]] = {
    **PLAIN,
    (Convolution, "fwd"): _FORWARD,
    (Convolution, "bwd_data"): (WarpgroupPatches(), *_with_patch("bwd_data", _CORRELATION)),
    (Convolution, "bwd_filter"): _FILTER,
    (Attention, "fwd"): (*_FLASH, *PLAIN[Attention, "fwd"]),
    (Attention, "bwd"): (*_FLASH, *PLAIN[Attention, "bwd"]),
    (FusedConvolution, "fwd"): _FUSED,
    (FusedConvolution, "bwd_filter"): _FUSED,
    (MatMul, None): _MATMUL,
    **{(Recurrent, direction): _RECURRENT for direction in DIRECTIONS},
}
