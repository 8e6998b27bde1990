"""The map of the house: which algorithms run which problem on which target, best first, reference last.

The planner tries them all; the order only breaks ties and is the order in which `explain` prints them.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.algorithm import Algorithm, Device, Kernel
from jitdnn.kernels.cpu.activation import ElementwiseActivation
from jitdnn.kernels.cpu.affine_grid import AffineRows
from jitdnn.kernels.cpu.attention import TiledBackward, TiledForward
from jitdnn.kernels.cpu.convolution_bias import BiasChannels, BiasRows
from jitdnn.kernels.cpu.convolution_depthwise import Depthwise
from jitdnn.kernels.cpu.convolution_depthwise_filter import DepthwiseFilter
from jitdnn.kernels.cpu.convolution_direct import Direct
from jitdnn.kernels.cpu.convolution_fft import Fft
from jitdnn.kernels.cpu.convolution_grouped import Grouped
from jitdnn.kernels.cpu.convolution_grouped_filter import GroupedFilter
from jitdnn.kernels.cpu.convolution_im2col import Im2col
from jitdnn.kernels.cpu.convolution_implicit_gemm import ImplicitGemm
from jitdnn.kernels.cpu.convolution_implicit_gemm_filter import ImplicitGemmFilter
from jitdnn.kernels.cpu.convolution_vnni import Vnni
from jitdnn.kernels.cpu.convolution_winograd import Winograd2, Winograd4
from jitdnn.kernels.cpu.convolution_winograd_filter import WinogradFilterGradient
from jitdnn.kernels.cpu.cross_entropy import SweptCrossEntropy
from jitdnn.kernels.cpu.cross_entropy_rows import CrossEntropyRows
from jitdnn.kernels.cpu.ctc_loss import SequenceRecursion
from jitdnn.kernels.cpu.dropout import PhiloxDropout
from jitdnn.kernels.cpu.elementwise import build_elementwise
from jitdnn.kernels.cpu.embedding import EmbeddingRows
from jitdnn.kernels.cpu.grid_sample_channels import GridSampleChannels
from jitdnn.kernels.cpu.grid_sample_pixels import GridSamplePixels
from jitdnn.kernels.cpu.layer_norm import LayerNormRows
from jitdnn.kernels.cpu.lrn import DivisiveNormAlong, DivisiveNormBeside, LRNAlong, LRNBeside
from jitdnn.kernels.cpu.matmul import PackedGemm
from jitdnn.kernels.cpu.normalization import SweepsNormalization
from jitdnn.kernels.cpu.pooling_channels import PoolingChannels, PoolingStrided
from jitdnn.kernels.cpu.pooling_rows import PoolingRows
from jitdnn.kernels.cpu.pooling_window import PoolingWindow
from jitdnn.kernels.cpu.prelu import PReluBackward, PReluForward
from jitdnn.kernels.cpu.random import PhiloxFill
from jitdnn.kernels.cpu.reduce import SweptReduce, build_reduction
from jitdnn.kernels.cpu.resize_channels import ResizeChannels
from jitdnn.kernels.cpu.resize_rows import ResizeRows
from jitdnn.kernels.cpu.rnn import FusedSteps
from jitdnn.kernels.cpu.scan import build_scan
from jitdnn.kernels.cpu.softmax import SweptSoftmax
from jitdnn.kernels.cpu.tensor_ops import ElementwiseAdd, ElementwiseFill, ElementwiseOp
from jitdnn.kernels.cpu.transform import CopyConcatenate, CopyTransform
from jitdnn.kernels.cpu.unpooling import ScatterUnpooling
from jitdnn.kernels.reference import Reference
from jitdnn.problems.activation import Activation
from jitdnn.problems.attention import Attention
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.problems.cross_entropy import CrossEntropy
from jitdnn.problems.ctc_loss import CtcLoss
from jitdnn.problems.divisive_norm import DivisiveNorm
from jitdnn.problems.dropout import Dropout
from jitdnn.problems.embedding import Embedding
from jitdnn.problems.group_norm import GroupNorm
from jitdnn.problems.layer_norm import LayerNorm
from jitdnn.problems.lrn import LRN
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.pooling import Pooling
from jitdnn.problems.prelu import PRelu
from jitdnn.problems.problem import Problem
from jitdnn.problems.random import Random
from jitdnn.problems.reduce import Reduce
from jitdnn.problems.resize import Resize
from jitdnn.problems.rnn import Recurrent
from jitdnn.problems.softmax import Softmax
from jitdnn.problems.spatial_transformer import AffineGrid, GridSample
from jitdnn.problems.tensor_ops import AddTensor, Fill, OpTensor
from jitdnn.problems.transform import Concatenate, Transform
from jitdnn.problems.unpooling import Unpooling
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Reduction
from jitdnn.tensor import TensorDescriptor

REFERENCE = Reference()
_UNPOOLING = (ScatterUnpooling(), REFERENCE)
_POOLING = (PoolingRows(), PoolingChannels(), PoolingWindow(), PoolingStrided(), REFERENCE)
_SOFTMAX = (SweptSoftmax(), REFERENCE)
_LRN = (LRNAlong(), LRNBeside(), REFERENCE)
_DIVISIVE_NORM = (DivisiveNormAlong(), DivisiveNormBeside(), REFERENCE)
_RESIZE = (ResizeChannels(), ResizeRows(), REFERENCE)
_SAMPLE = (GridSampleChannels(), GridSamplePixels(), REFERENCE)
_ACTIVATION = (ElementwiseActivation(), REFERENCE)

_NORMALIZATION = (SweepsNormalization(), REFERENCE)

# (target, problem class, direction or None for problems that have only one)
ALGORITHMS: dict[tuple[str, type[Problem], str | None], tuple[Algorithm, ...]] = {
    ("cpu", Convolution, "fwd"): (
        Winograd4(),
        Winograd2(),
        Vnni(),
        Depthwise(),
        Grouped(),
        ImplicitGemm(),
        Direct(),
        Fft(),
        Im2col(),
        REFERENCE,
    ),
    ("cpu", Convolution, "bwd_data"): (
        Winograd4(),
        Winograd2(),
        Depthwise(),
        Grouped(),
        ImplicitGemm(),
        Direct(),
        Fft(),
        Im2col(),
        REFERENCE,
    ),
    ("cpu", Convolution, "bwd_filter"): (
        DepthwiseFilter(),
        GroupedFilter(),
        WinogradFilterGradient(),
        ImplicitGemmFilter(),
        Direct(),
        Fft(),
        Im2col(),
        REFERENCE,
    ),
    ("cpu", BiasGradient, None): (BiasRows(), BiasChannels(), REFERENCE),
    ("cpu", BatchNorm, "fwd"): _NORMALIZATION,
    ("cpu", BatchNorm, "inference"): _NORMALIZATION,
    ("cpu", BatchNorm, "bwd"): _NORMALIZATION,
    ("cpu", LayerNorm, "fwd"): _NORMALIZATION,
    ("cpu", LayerNorm, "bwd"): (LayerNormRows(), *_NORMALIZATION),
    ("cpu", GroupNorm, "fwd"): _NORMALIZATION,
    ("cpu", GroupNorm, "bwd"): _NORMALIZATION,
    ("cpu", MatMul, None): (PackedGemm(), REFERENCE),
    ("cpu", Pooling, "fwd"): _POOLING,
    ("cpu", Pooling, "bwd"): _POOLING,
    ("cpu", Reduce, None): (SweptReduce(), REFERENCE),
    ("cpu", Recurrent, "fwd"): (FusedSteps(), REFERENCE),
    ("cpu", Recurrent, "bwd_data"): (FusedSteps(), REFERENCE),
    ("cpu", Recurrent, "bwd_weights"): (FusedSteps(), REFERENCE),
    ("cpu", Softmax, "fwd"): _SOFTMAX,
    ("cpu", Softmax, "bwd"): _SOFTMAX,
    ("cpu", Unpooling, "fwd"): _UNPOOLING,
    ("cpu", Unpooling, "bwd"): _UNPOOLING,
    ("cpu", LRN, "fwd"): _LRN,
    ("cpu", LRN, "bwd"): _LRN,
    ("cpu", DivisiveNorm, "fwd"): _DIVISIVE_NORM,
    ("cpu", DivisiveNorm, "bwd"): _DIVISIVE_NORM,
    ("cpu", Activation, "fwd"): _ACTIVATION,
    ("cpu", Activation, "bwd"): _ACTIVATION,
    ("cpu", Dropout, None): (PhiloxDropout(), REFERENCE),
    ("cpu", Resize, "fwd"): _RESIZE,
    ("cpu", Resize, "bwd"): _RESIZE,
    ("cpu", Embedding, "fwd"): (EmbeddingRows(), REFERENCE),
    ("cpu", Embedding, "bwd"): (EmbeddingRows(), REFERENCE),
    ("cpu", AffineGrid, "fwd"): (AffineRows(), REFERENCE),
    ("cpu", AffineGrid, "bwd"): (AffineRows(), REFERENCE),
    ("cpu", GridSample, "fwd"): _SAMPLE,
    ("cpu", GridSample, "bwd_data"): _SAMPLE,
    ("cpu", GridSample, "bwd_grid"): _SAMPLE,
    ("cpu", Random, None): (PhiloxFill(), REFERENCE),
    ("cpu", Attention, "fwd"): (TiledForward(), REFERENCE),
    ("cpu", Attention, "bwd"): (TiledBackward(), REFERENCE),
    ("cpu", CrossEntropy, "fwd"): (CrossEntropyRows(), SweptCrossEntropy(), REFERENCE),
    ("cpu", CrossEntropy, "bwd"): (SweptCrossEntropy(), REFERENCE),
    ("cpu", CtcLoss, "fwd"): (SequenceRecursion(), REFERENCE),
    ("cpu", CtcLoss, "bwd"): (SequenceRecursion(), REFERENCE),
    ("cpu", PRelu, "fwd"): (PReluForward(), REFERENCE),
    ("cpu", PRelu, "bwd"): (PReluBackward(), REFERENCE),
    ("cpu", AddTensor, None): (ElementwiseAdd(), REFERENCE),
    ("cpu", OpTensor, None): (ElementwiseOp(), REFERENCE),
    ("cpu", Fill, None): (ElementwiseFill(), REFERENCE),
    ("cpu", Transform, None): (CopyTransform(), REFERENCE),
    ("cpu", Concatenate, None): (CopyConcatenate(), REFERENCE),
}


# kernels of one's own formulas, by target: element by element, reduced, results so far
_ELEMENTWISE = {"cpu": build_elementwise}
_REDUCTION = {"cpu": build_reduction}
_SCAN = {"cpu": build_scan}


def elementwise_kernel(
    expressions: Sequence[Expression], tensors: Sequence[TensorDescriptor], device: Device, computing: str
) -> Kernel:
    """The kernel of formulas over tensors of one shape, inputs first; `computing` is the type of the arithmetic."""
    return _ELEMENTWISE[device.target](expressions, tensors, device, computing=computing)


def reduction_kernel(
    expressions: Sequence[Expression],
    reductions: Sequence[Reduction],
    tensors: Sequence[TensorDescriptor],
    axes: Sequence[int],
    device: Device,
    computing: str,
) -> tuple[Kernel, int]:
    """The kernel that reduces each formula over `axes`, and its bytes of workspace.

    `tensors`: the inputs, of one shape, then a result for each formula with extent 1 on the axes.
    """
    return _REDUCTION[device.target](expressions, reductions, tensors, axes, device, computing)


def scan_kernel(
    expression: Expression,
    reduction: Reduction,
    is_exclusive: bool,
    tensors: Sequence[TensorDescriptor],
    axis: int,
    is_reverse: bool,
    device: Device,
    computing: str,
) -> tuple[Kernel, int]:
    """The kernel of results so far along an axis of tensors of one shape, and its bytes of workspace."""
    return _SCAN[device.target](
        expression, reduction, is_exclusive, tensors, axis, is_reverse, device, computing
    )


def algorithms(problem: Problem, target: str) -> tuple[Algorithm, ...]:
    """List the algorithms of a problem on a target, best first; any problem at all has the reference."""
    direction = getattr(problem, "direction", None)
    return ALGORITHMS.get((target, type(problem), direction), (REFERENCE,))
