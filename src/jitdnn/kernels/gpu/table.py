"""The algorithms written in plain C, which every GPU target has."""

from __future__ import annotations

from functools import partial

from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.formulas.activation import ElementwiseActivation
from jitdnn.kernels.formulas.cross_entropy import RowCrossEntropy
from jitdnn.kernels.formulas.dropout import PhiloxDropout
from jitdnn.kernels.formulas.fused_convolution import SeparateKernels
from jitdnn.kernels.formulas.normalization_steps import RowNormalization
from jitdnn.kernels.formulas.prelu import PReluBackward, PReluForward
from jitdnn.kernels.formulas.random import PhiloxFill
from jitdnn.kernels.formulas.reduce import RowReduce, build_reduction, build_rows
from jitdnn.kernels.formulas.softmax import RowSoftmax
from jitdnn.kernels.formulas.tensor_ops import ElementwiseAdd, ElementwiseFill, ElementwiseOp
from jitdnn.kernels.formulas.transform import CopyConcatenate, CopyTransform
from jitdnn.kernels.gpu.attention.algorithm import TiledAttention
from jitdnn.kernels.gpu.convolution.bias import RowBias
from jitdnn.kernels.gpu.convolution.direct import Direct
from jitdnn.kernels.gpu.convolution.fft.algorithm import Fft, FftOfProducts, FftOfSpectra
from jitdnn.kernels.gpu.convolution.winograd.algorithm import (
    Winograd2,
    Winograd4,
    WinogradWgrad2,
    WinogradWgrad4,
)
from jitdnn.kernels.gpu.ctc.algorithm import CtcRecursion
from jitdnn.kernels.gpu.elementwise.generator import ElementwiseLoops, build_elementwise
from jitdnn.kernels.gpu.elementwise.multi_tensor import build_multi_tensor
from jitdnn.kernels.gpu.matmul import TiledGemm
from jitdnn.kernels.gpu.normalization.layer_norm_backward import FusedLayerNorm
from jitdnn.kernels.gpu.normalization.lrn import PlainDivisiveNorm, PlainLRN
from jitdnn.kernels.gpu.normalization.lrn_across import AcrossLRN
from jitdnn.kernels.gpu.normalization.plan import plan_of as plan_of_normalization
from jitdnn.kernels.gpu.pooling.per_block import PoolingPerBlock
from jitdnn.kernels.gpu.pooling.per_thread import PoolingPerThread
from jitdnn.kernels.gpu.pooling.sliding import PoolingSliding
from jitdnn.kernels.gpu.pooling.unpooling import PlainUnpooling
from jitdnn.kernels.gpu.random.generator import PhiloxLoops
from jitdnn.kernels.gpu.reduction.generator import RowLoops
from jitdnn.kernels.gpu.reduction.scan import build_scan
from jitdnn.kernels.gpu.sampling.affine_grid import PlainAffineGrid
from jitdnn.kernels.gpu.sampling.embedding import EmbeddingRows
from jitdnn.kernels.gpu.sampling.grid_sample import PlainGridSample
from jitdnn.kernels.gpu.sampling.image_transform import build_image_transform
from jitdnn.kernels.gpu.sampling.resize import PlainResize
from jitdnn.problems.activation import Activation
from jitdnn.problems.attention import Attention
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.problems.convolution import DIRECTIONS, Convolution
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.problems.convolution_fused import FusedConvolution
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
from jitdnn.problems.softmax import Softmax
from jitdnn.problems.spatial_transformer import (
    GRID_DIRECTIONS,
    SAMPLE_DIRECTIONS,
    AffineGrid,
    GridSample,
)
from jitdnn.problems.tensor_ops import AddTensor, Fill, OpTensor
from jitdnn.problems.transform import Concatenate, Transform
from jitdnn.problems.unpooling import Unpooling

_ELEMENTWISE, _ROWS, _PHILOX = ElementwiseLoops(), RowLoops(), PhiloxLoops()
_POOLING = (PoolingSliding(), PoolingPerBlock(), PoolingPerThread())


def separate_kernels(
    convolutions: dict[str, tuple[Algorithm, ...]], is_tensor: bool = False
) -> tuple[Algorithm, ...]:
    """Convolutions with prologue and sums as kernels one after the other, by these convolutions.

    `is_tensor`: f32 also in fewer or coarser multiplications.
    """
    found = [SeparateKernels(convolutions, _ELEMENTWISE, _ROWS)]
    if is_tensor:
        found += [
            SeparateKernels(convolutions, _ELEMENTWISE, _ROWS, is_exact=False, math=math)
            for math in ("fp32", "tf32")
        ]
    return tuple(found)


_CONVOLUTION: dict[str, tuple[Algorithm, ...]] = {
    "fwd": (Winograd4(), Winograd2(), Fft(), FftOfSpectra(), FftOfProducts(), Direct()),
    "bwd_data": (Winograd4(), Winograd2(), Fft(), FftOfSpectra(), FftOfProducts(), Direct()),
    "bwd_filter": (WinogradWgrad4(), WinogradWgrad2(), Fft(), FftOfProducts(), Direct()),
}
_FUSED = separate_kernels(_CONVOLUTION)
_NORMALIZATION = (RowNormalization(_ROWS, plan_of_normalization),)

# (problem class, direction or None for problems that have only one)
PLAIN: dict[tuple[type[Problem], str | None], tuple[Algorithm, ...]] = {
    **{(Convolution, direction): _CONVOLUTION[direction] for direction in DIRECTIONS},
    (FusedConvolution, "fwd"): _FUSED,
    (FusedConvolution, "bwd_filter"): _FUSED,
    (MatMul, None): (TiledGemm(),),
    (Attention, "fwd"): (TiledAttention(),),
    (Attention, "bwd"): (TiledAttention(),),
    (Pooling, "fwd"): _POOLING,
    (Pooling, "bwd"): _POOLING,
    (Unpooling, "fwd"): (PlainUnpooling(),),
    (Unpooling, "bwd"): (PlainUnpooling(),),
    (Resize, "fwd"): (PlainResize(),),
    (Resize, "bwd"): (PlainResize(),),
    (LRN, "fwd"): (AcrossLRN(), PlainLRN()),
    (LRN, "bwd"): (AcrossLRN(), PlainLRN()),
    (DivisiveNorm, "fwd"): (PlainDivisiveNorm(),),
    (DivisiveNorm, "bwd"): (PlainDivisiveNorm(),),
    (BiasGradient, None): (RowBias(_ROWS),),
    (CrossEntropy, "fwd"): (RowCrossEntropy(_ROWS),),
    (CrossEntropy, "bwd"): (RowCrossEntropy(_ROWS),),
    (CtcLoss, "fwd"): (CtcRecursion(),),
    (CtcLoss, "bwd"): (CtcRecursion(),),
    (BatchNorm, "fwd"): _NORMALIZATION,
    (BatchNorm, "inference"): _NORMALIZATION,
    (BatchNorm, "bwd"): _NORMALIZATION,
    (LayerNorm, "fwd"): _NORMALIZATION,
    (LayerNorm, "bwd"): (FusedLayerNorm(), *_NORMALIZATION),
    (GroupNorm, "fwd"): _NORMALIZATION,
    (GroupNorm, "bwd"): _NORMALIZATION,
    (Reduce, None): (RowReduce(_ROWS),),
    (Softmax, "fwd"): (RowSoftmax(_ROWS),),
    (Softmax, "bwd"): (RowSoftmax(_ROWS),),
    (Activation, "fwd"): (ElementwiseActivation(_ELEMENTWISE),),
    (Activation, "bwd"): (ElementwiseActivation(_ELEMENTWISE),),
    (AddTensor, None): (ElementwiseAdd(_ELEMENTWISE),),
    (OpTensor, None): (ElementwiseOp(_ELEMENTWISE),),
    (Fill, None): (ElementwiseFill(_ELEMENTWISE),),
    (Transform, None): (CopyTransform(_ELEMENTWISE),),
    (Concatenate, None): (CopyConcatenate(_ELEMENTWISE),),
    (Dropout, None): (PhiloxDropout(_PHILOX),),
    (PRelu, "fwd"): (PReluForward(_ELEMENTWISE),),
    (PRelu, "bwd"): (PReluBackward(_ROWS),),
    (Random, None): (PhiloxFill(_PHILOX),),
    (Embedding, "fwd"): (EmbeddingRows(),),
    (Embedding, "bwd"): (EmbeddingRows(),),
    **{(AffineGrid, direction): (PlainAffineGrid(),) for direction in GRID_DIRECTIONS},
    **{(GridSample, direction): (PlainGridSample(),) for direction in SAMPLE_DIRECTIONS},
}

# kernels of one's own formulas
ELEMENTWISE = build_elementwise
REDUCTION = partial(build_reduction, _ROWS)
ROWS = partial(build_rows, _ROWS)
SCAN = build_scan
MULTI_TENSOR = build_multi_tensor
# batches of images of bytes
IMAGE_TRANSFORM = build_image_transform
