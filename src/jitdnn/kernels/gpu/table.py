"""The algorithms written in plain C, which every GPU target has."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.gpu.convolution_direct import Direct
from jitdnn.kernels.gpu.matmul import TiledGemm
from jitdnn.kernels.gpu.pooling import PoolingWindow
from jitdnn.kernels.gpu.pooling_sliding import PoolingSliding
from jitdnn.kernels.gpu.reduce import RowsReduce
from jitdnn.kernels.gpu.softmax import RowsSoftmax
from jitdnn.problems.convolution import DIRECTIONS, Convolution
from jitdnn.problems.matmul import MatMul
from jitdnn.problems.pooling import Pooling
from jitdnn.problems.problem import Problem
from jitdnn.problems.reduce import Reduce
from jitdnn.problems.softmax import Softmax

_POOLING = (PoolingSliding(), PoolingWindow())

# (problem class, direction or None for problems that have only one)
PLAIN: dict[tuple[type[Problem], str | None], tuple[Algorithm, ...]] = {
    **{(Convolution, direction): (Direct(),) for direction in DIRECTIONS},
    (MatMul, None): (TiledGemm(),),
    (Pooling, "fwd"): _POOLING,
    (Pooling, "bwd"): _POOLING,
    (Reduce, None): (RowsReduce(),),
    (Softmax, "fwd"): (RowsSoftmax(),),
    (Softmax, "bwd"): (RowsSoftmax(),),
}
