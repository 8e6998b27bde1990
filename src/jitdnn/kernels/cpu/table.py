"""The algorithms of the CPU, best first, the reference last."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cpu.attention.algorithm import TiledBackward, TiledForward
from jitdnn.kernels.cpu.convolution.bias import BiasChannels, BiasRows
from jitdnn.kernels.cpu.convolution.direct.algorithm import Depthwise, DepthwiseWgrad, Direct
from jitdnn.kernels.cpu.convolution.fft.algorithm import Fft
from jitdnn.kernels.cpu.convolution.grouped.algorithm import Grouped
from jitdnn.kernels.cpu.convolution.grouped.wgrad_algorithm import GroupedWgrad
from jitdnn.kernels.cpu.convolution.im2col import Im2col
from jitdnn.kernels.cpu.convolution.implicit_gemm.algorithm import ImplicitGemm
from jitdnn.kernels.cpu.convolution.implicit_gemm.vnni.algorithm import Vnni
from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.algorithm import ImplicitGemmWgrad
from jitdnn.kernels.cpu.convolution.winograd.algorithm import Winograd2, Winograd4
from jitdnn.kernels.cpu.convolution.winograd_wgrad.algorithm import WinogradWgrad
from jitdnn.kernels.cpu.ctc.algorithm import SequenceRecursion
from jitdnn.kernels.cpu.elementwise.generator import ElementwiseLoops
from jitdnn.kernels.cpu.matmul import PackedGemm, VnniGemm
from jitdnn.kernels.cpu.normalization.layer_norm_backward import LayerNormRows
from jitdnn.kernels.cpu.normalization.lrn import (
    DivisiveNormOverOtherAxis,
    DivisiveNormOverWindow,
    LRNOverOtherAxis,
    LRNOverWindow,
)
from jitdnn.kernels.cpu.normalization.plan import plan_of as plan_of_normalization
from jitdnn.kernels.cpu.pooling.algorithm import (
    PoolingChannels,
    PoolingRows,
    PoolingSeparable,
    PoolingStrided,
    PoolingWindow,
    ScatterUnpooling,
)
from jitdnn.kernels.cpu.random.generator import PhiloxLoops
from jitdnn.kernels.cpu.reduction.cross_entropy_fused import CrossEntropyRows
from jitdnn.kernels.cpu.reduction.generator import RowLoops
from jitdnn.kernels.cpu.rnn.algorithm import FusedSteps, RowSteps
from jitdnn.kernels.cpu.sampling.affine_grid import AffineRows
from jitdnn.kernels.cpu.sampling.embedding import EmbeddingRows
from jitdnn.kernels.cpu.sampling.grid_sample_over_channels import GridSampleChannels
from jitdnn.kernels.cpu.sampling.grid_sample_over_pixels import GridSamplePixels
from jitdnn.kernels.cpu.sampling.resize_copied_rows import ResizeCopiedRows
from jitdnn.kernels.cpu.sampling.resize_over_channels import ResizeChannels
from jitdnn.kernels.cpu.sampling.resize_over_rows import ResizeRows
from jitdnn.kernels.cpu.skinny_gemm.algorithm import SkinnyConvolution, SkinnyGemm
from jitdnn.kernels.formulas.activation import ElementwiseActivation
from jitdnn.kernels.formulas.cross_entropy import RowCrossEntropy
from jitdnn.kernels.formulas.dropout import PhiloxDropout
from jitdnn.kernels.formulas.fused_convolution import SeparateKernels
from jitdnn.kernels.formulas.normalization_steps import RowNormalization
from jitdnn.kernels.formulas.pooling import RowPooling
from jitdnn.kernels.formulas.prelu import PReluBackward, PReluForward
from jitdnn.kernels.formulas.random import PhiloxFill
from jitdnn.kernels.formulas.reduce import RowReduce
from jitdnn.kernels.formulas.softmax import RowSoftmax
from jitdnn.kernels.formulas.tensor_ops import ElementwiseAdd, ElementwiseFill, ElementwiseOp
from jitdnn.kernels.formulas.transform import CopyConcatenate, CopyTransform
from jitdnn.kernels.reference import REFERENCE
from jitdnn.problems.activation import Activation
from jitdnn.problems.attention import Attention
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.problems.convolution import Convolution
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
from jitdnn.problems.rnn import Recurrent
from jitdnn.problems.softmax import Softmax
from jitdnn.problems.spatial_transformer import AffineGrid, GridSample
from jitdnn.problems.tensor_ops import AddTensor, Fill, OpTensor
from jitdnn.problems.transform import Concatenate, Transform
from jitdnn.problems.unpooling import Unpooling

_ELEMENTWISE, _ROWS, _PHILOX = ElementwiseLoops(), RowLoops(), PhiloxLoops()
_UNPOOLING = (ScatterUnpooling(), REFERENCE)
_POOLING = (PoolingRows(), PoolingChannels(), PoolingWindow(), PoolingStrided(), REFERENCE)
_SOFTMAX = (RowSoftmax(_ROWS), REFERENCE)
_LRN = (LRNOverWindow(), LRNOverOtherAxis(), REFERENCE)
_DIVISIVE_NORM = (DivisiveNormOverWindow(), DivisiveNormOverOtherAxis(), REFERENCE)
_RESIZE = (ResizeChannels(), ResizeCopiedRows(), ResizeRows(), REFERENCE)
_SAMPLE = (GridSampleChannels(), GridSamplePixels(), REFERENCE)
_ACTIVATION = (ElementwiseActivation(_ELEMENTWISE), REFERENCE)

_NORMALIZATION = (RowNormalization(_ROWS, plan_of_normalization), REFERENCE)

_CONVOLUTIONS: dict[str, tuple[Algorithm, ...]] = {
    "fwd": (
        Winograd4(),
        Winograd2(),
        Vnni(),
        Depthwise(),
        Grouped(),
        ImplicitGemm(),
        SkinnyConvolution(),
        Direct(),
        Fft(),
        Im2col(),
        REFERENCE,
    ),
    "bwd_data": (
        Winograd4(),
        Winograd2(),
        Depthwise(),
        Grouped(),
        ImplicitGemm(),
        SkinnyConvolution(),
        Direct(),
        Fft(),
        Im2col(),
        REFERENCE,
    ),
    "bwd_filter": (
        DepthwiseWgrad(),
        GroupedWgrad(),
        WinogradWgrad(),
        ImplicitGemmWgrad(),
        Direct(),
        Fft(),
        Im2col(),
        REFERENCE,
    ),
}
# what other algorithms run: the reference is none of them
_OWN = {
    direction: tuple(each for each in found[:-1] if each.only_by_name is None)
    for direction, found in _CONVOLUTIONS.items()
}
_FUSED = (
    SeparateKernels(_OWN, _ELEMENTWISE, _ROWS),
    SeparateKernels(_OWN, _ELEMENTWISE, _ROWS, is_exact=False),
    REFERENCE,
)

# (problem class, direction or None for problems that have only one)
ALGORITHMS: dict[tuple[type[Problem], str | None], tuple[Algorithm, ...]] = {
    **{(Convolution, direction): found for direction, found in _CONVOLUTIONS.items()},
    (FusedConvolution, "fwd"): _FUSED,
    (FusedConvolution, "bwd_filter"): _FUSED,
    (BiasGradient, None): (BiasRows(), BiasChannels(), REFERENCE),
    (BatchNorm, "fwd"): _NORMALIZATION,
    (BatchNorm, "inference"): _NORMALIZATION,
    (BatchNorm, "bwd"): _NORMALIZATION,
    (LayerNorm, "fwd"): _NORMALIZATION,
    (LayerNorm, "bwd"): (LayerNormRows(), *_NORMALIZATION),
    (GroupNorm, "fwd"): _NORMALIZATION,
    (GroupNorm, "bwd"): _NORMALIZATION,
    (MatMul, None): (VnniGemm(), PackedGemm(), SkinnyGemm(), REFERENCE),
    (Pooling, "fwd"): (PoolingSeparable(), RowPooling(_ROWS), *_POOLING),
    (Pooling, "bwd"): _POOLING,
    (Reduce, None): (RowReduce(_ROWS), REFERENCE),
    (Recurrent, "fwd"): (FusedSteps(), RowSteps(), REFERENCE),
    (Recurrent, "bwd_data"): (FusedSteps(), REFERENCE),
    (Recurrent, "bwd_weights"): (FusedSteps(), REFERENCE),
    (Softmax, "fwd"): _SOFTMAX,
    (Softmax, "bwd"): _SOFTMAX,
    (Unpooling, "fwd"): _UNPOOLING,
    (Unpooling, "bwd"): _UNPOOLING,
    (LRN, "fwd"): _LRN,
    (LRN, "bwd"): _LRN,
    (DivisiveNorm, "fwd"): _DIVISIVE_NORM,
    (DivisiveNorm, "bwd"): _DIVISIVE_NORM,
    (Activation, "fwd"): _ACTIVATION,
    (Activation, "bwd"): _ACTIVATION,
    (Dropout, None): (PhiloxDropout(_PHILOX), REFERENCE),
    (Resize, "fwd"): _RESIZE,
    (Resize, "bwd"): (ResizeChannels(), ResizeRows(), REFERENCE),
    (Embedding, "fwd"): (EmbeddingRows(), REFERENCE),
    (Embedding, "bwd"): (EmbeddingRows(), REFERENCE),
    (AffineGrid, "fwd"): (AffineRows(), REFERENCE),
    (AffineGrid, "bwd"): (AffineRows(), REFERENCE),
    (GridSample, "fwd"): _SAMPLE,
    (GridSample, "bwd_data"): _SAMPLE,
    (GridSample, "bwd_grid"): _SAMPLE,
    (Random, None): (PhiloxFill(_PHILOX), REFERENCE),
    (Attention, "fwd"): (TiledForward(), REFERENCE),
    (Attention, "bwd"): (TiledBackward(), REFERENCE),
    (CrossEntropy, "fwd"): (CrossEntropyRows(), RowCrossEntropy(_ROWS), REFERENCE),
    (CrossEntropy, "bwd"): (RowCrossEntropy(_ROWS), REFERENCE),
    (CtcLoss, "fwd"): (SequenceRecursion(), REFERENCE),
    (CtcLoss, "bwd"): (SequenceRecursion(), REFERENCE),
    (PRelu, "fwd"): (PReluForward(_ELEMENTWISE), REFERENCE),
    (PRelu, "bwd"): (PReluBackward(_ROWS), REFERENCE),
    (AddTensor, None): (ElementwiseAdd(_ELEMENTWISE), REFERENCE),
    (OpTensor, None): (ElementwiseOp(_ELEMENTWISE), REFERENCE),
    (Fill, None): (ElementwiseFill(_ELEMENTWISE), REFERENCE),
    (Transform, None): (CopyTransform(_ELEMENTWISE), REFERENCE),
    (Concatenate, None): (CopyConcatenate(_ELEMENTWISE), REFERENCE),
}
