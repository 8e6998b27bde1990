"""WHAT can be computed: one module an operation, each with its descriptor, shape rule, cost and reference."""

from __future__ import annotations

from typing import Any

from jitdnn.arguments import shown
from jitdnn.errors import InvalidType
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
from jitdnn.problems.problem import Operand, Problem
from jitdnn.problems.random import Random
from jitdnn.problems.reduce import Reduce
from jitdnn.problems.resize import Resize
from jitdnn.problems.rnn import Recurrent
from jitdnn.problems.softmax import Softmax
from jitdnn.problems.spatial_transformer import AffineGrid, GridSample
from jitdnn.problems.tensor_ops import AddTensor, Fill, OpTensor
from jitdnn.problems.transform import Concatenate, Transform
from jitdnn.problems.unpooling import Unpooling

__all__ = [
    "LRN",
    "MOST_PROBLEMS",
    "Activation",
    "AddTensor",
    "AffineGrid",
    "Attention",
    "BatchNorm",
    "BiasGradient",
    "Concatenate",
    "Convolution",
    "CrossEntropy",
    "CtcLoss",
    "DivisiveNorm",
    "Dropout",
    "Embedding",
    "Fill",
    "FusedConvolution",
    "GridSample",
    "GroupNorm",
    "LayerNorm",
    "MatMul",
    "OpTensor",
    "Operand",
    "PRelu",
    "Pooling",
    "Problem",
    "Random",
    "Recurrent",
    "Reduce",
    "Resize",
    "Softmax",
    "Transform",
    "Unpooling",
    "parse",
    "settled_problem",
]


def parse(text: str) -> Problem:
    """The problem that a string such as `conv_fwd n128 c96 h221 w221 k256 r7 s7 stride2 pad0 f32 nchw` names.

    Raises ParseError with the column of the word that does not belong, InvalidShape or InvalidArgument if the
    words are well formed but no operation has them.
    """
    return Problem.parse(text)


MOST_PROBLEMS = 1 << 20
"""How many a function takes at once."""


def settled_problem(given: Any) -> Problem:
    """A problem as it is, or that of a string. Raises as `parse` does, and InvalidType for anything else."""
    if isinstance(given, str):
        return parse(given)
    if not isinstance(given, Problem):
        raise InvalidType(f"the problem is {shown(given)}: it must be a problem, or a problem string")
    return given
