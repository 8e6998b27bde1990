"""The algorithms written in plain C, which every GPU target has."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.gpu.convolution.bias import RowsBias
from jitdnn.kernels.gpu.convolution.direct import Direct
from jitdnn.kernels.gpu.elementwise.activation import ElementwiseActivation
from jitdnn.kernels.gpu.elementwise.generator import build_elementwise
from jitdnn.kernels.gpu.elementwise.tensor_ops import ElementwiseAdd, ElementwiseFill, ElementwiseOp
from jitdnn.kernels.gpu.elementwise.transform import CopyConcatenate, CopyTransform
from jitdnn.kernels.gpu.matmul import TiledGemm
from jitdnn.kernels.gpu.normalization.algorithm import RowsNormalization
from jitdnn.kernels.gpu.normalization.divisive_norm import PlainDivisiveNorm
from jitdnn.kernels.gpu.normalization.layer_norm_backward import FusedLayerNorm
from jitdnn.kernels.gpu.normalization.lrn import PlainLRN
from jitdnn.kernels.gpu.pooling.per_block import PoolingGroups
from jitdnn.kernels.gpu.pooling.per_thread import PoolingWindow
from jitdnn.kernels.gpu.pooling.sliding import PoolingSliding
from jitdnn.kernels.gpu.pooling.unpooling import PlainUnpooling
from jitdnn.kernels.gpu.random.dropout import PhiloxDropout
from jitdnn.kernels.gpu.random.fill import PhiloxFill
from jitdnn.kernels.gpu.reduction.cross_entropy import RowsCrossEntropy
from jitdnn.kernels.gpu.reduction.prelu import PReluBackward, PReluForward
from jitdnn.kernels.gpu.reduction.reduce import RowsReduce, build_reduction
from jitdnn.kernels.gpu.reduction.scan import build_scan
from jitdnn.kernels.gpu.reduction.softmax import RowsSoftmax
from jitdnn.kernels.gpu.sampling.embedding import EmbeddingRows
from jitdnn.kernels.gpu.sampling.resize import PlainResize
from jitdnn.problems.activation import Activation
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.problems.convolution import DIRECTIONS, Convolution
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.problems.cross_entropy import CrossEntropy
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
from jitdnn.problems.tensor_ops import AddTensor, Fill, OpTensor
from jitdnn.problems.transform import Concatenate, Transform
from jitdnn.problems.unpooling import Unpooling

_POOLING = (PoolingSliding(), PoolingGroups(), PoolingWindow())

_NORMALIZATION = (RowsNormalization(),)

# (problem class, direction or None for problems that have only one)
PLAIN: dict[tuple[type[Problem], str | None], tuple[Algorithm, ...]] = {
    **{(Convolution, direction): (Direct(),) for direction in DIRECTIONS},
    (MatMul, None): (TiledGemm(),),
    (Pooling, "fwd"): _POOLING,
    (Pooling, "bwd"): _POOLING,
    (Unpooling, "fwd"): (PlainUnpooling(),),
    (Unpooling, "bwd"): (PlainUnpooling(),),
    (Resize, "fwd"): (PlainResize(),),
    (Resize, "bwd"): (PlainResize(),),
    (LRN, "fwd"): (PlainLRN(),),
    (LRN, "bwd"): (PlainLRN(),),
    (DivisiveNorm, "fwd"): (PlainDivisiveNorm(),),
    (DivisiveNorm, "bwd"): (PlainDivisiveNorm(),),
    (BiasGradient, None): (RowsBias(),),
    (CrossEntropy, "fwd"): (RowsCrossEntropy(),),
    (CrossEntropy, "bwd"): (RowsCrossEntropy(),),
    (BatchNorm, "fwd"): _NORMALIZATION,
    (BatchNorm, "inference"): _NORMALIZATION,
    (BatchNorm, "bwd"): _NORMALIZATION,
    (LayerNorm, "fwd"): _NORMALIZATION,
    (LayerNorm, "bwd"): (FusedLayerNorm(), *_NORMALIZATION),
    (GroupNorm, "fwd"): _NORMALIZATION,
    (GroupNorm, "bwd"): _NORMALIZATION,
    (Reduce, None): (RowsReduce(),),
    (Softmax, "fwd"): (RowsSoftmax(),),
    (Softmax, "bwd"): (RowsSoftmax(),),
    (Activation, "fwd"): (ElementwiseActivation(),),
    (Activation, "bwd"): (ElementwiseActivation(),),
    (AddTensor, None): (ElementwiseAdd(),),
    (OpTensor, None): (ElementwiseOp(),),
    (Fill, None): (ElementwiseFill(),),
    (Transform, None): (CopyTransform(),),
    (Concatenate, None): (CopyConcatenate(),),
    (Dropout, None): (PhiloxDropout(),),
    (PRelu, "fwd"): (PReluForward(),),
    (PRelu, "bwd"): (PReluBackward(),),
    (Random, None): (PhiloxFill(),),
    (Embedding, "fwd"): (EmbeddingRows(),),
    (Embedding, "bwd"): (EmbeddingRows(),),
}

# kernels of one's own formulas
ELEMENTWISE = build_elementwise
REDUCTION = build_reduction
SCAN = build_scan
