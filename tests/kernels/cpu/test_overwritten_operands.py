"""Results that lie where an operand of their epilogue lay: every algorithm that allows it gives the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitdnn.devices.cpu import host
from jitdnn.kernels.algorithm import Algorithm, Epilogue
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Convolution, parse
from jitdnn.rtcg.expression import trace

PROBLEMS = [
    "conv_fwd n2 c19 h9 w11 k37 r1 s1 stride1 pad0 f32 nhwc",
    "conv_fwd n2 c19 h9 w11 k37 r1 s1 stride1 pad0 f32 nchw",
    "conv_fwd n1 c40 h13 w13 k70 r3 s3 stride1 pad1 f32 nhwc",
    "conv_fwd n1 c40 h13 w13 k70 r3 s3 stride1 pad1 f32 nchw",
    "conv_fwd n2 c24 h15 w14 k24 r3 s3 stride2 pad1 g24 f32 nhwc",
    "conv_fwd n2 c24 h15 w14 k24 r5 s5 stride1 pad2 g24 f32 nhwc",
    "conv_fwd n2 c24 h15 w14 k24 r5 s5 stride1 pad2 g24 f32 nchw",
    "conv_fwd n2 c40 h10 w9 k40 r3 s3 stride1 pad1 g10 f32 nhwc",
    "conv_fwd n2 c48 h10 w9 k48 r3 s3 stride2 pad1 g2 f32 nhwc",
    "conv_fwd n1 c64 h1 w3 k200 r1 s1 stride1 pad0 f32 nhwc",
    "conv_fwd n8 c3 h8 w8 k16 r4 s4 stride4 pad0 f32 nchw",
    "conv_fwd n2 c20 h9 w9 k33 r3 s3 stride1 pad1 f16 nhwc",
]
THREADS = host(2)


def takers(problem: Convolution, epilogue: Epilogue) -> list[Algorithm]:
    return [
        each
        for each in algorithms(problem, "cpu")
        if each.may_overwrite_operands and each.refuse(problem, THREADS, epilogue) is None
    ]


@pytest.mark.parametrize("words", PROBLEMS)
def test_a_residual_may_be_overwritten(words: str) -> None:
    problem: Any = parse(words)
    shape = problem.y.shape
    bias = problem.y.__class__(shape, (0, 1, 0, 0), problem.y.dtype)
    epilogue = Epilogue(trace(lambda acc, b, z: (acc + b) * 0.5 + z), (bias, problem.y))
    generator = np.random.default_rng(1)
    dtype = np.float16 if problem.dtype == "f16" else np.float32
    x, w, z = (generator.standard_normal(t.size).astype(dtype) for t in (problem.x, problem.w, problem.y))
    b = generator.standard_normal(shape[1]).astype(dtype)
    found = takers(problem, epilogue)
    assert found
    for algorithm in found:
        kernel = algorithm.build(problem, THREADS, epilogue)
        room = np.empty(algorithm.workspace(problem, THREADS, epilogue) + 64, np.uint8)
        at = room.ctypes.data + -room.ctypes.data % 64
        y, over = np.full(problem.y.size, np.nan, dtype), z.copy()
        for result, residual in ((y, z), (over, over)):
            tensors = (x, w, result, b, residual)
            kernel(None, [tensor.ctypes.data for tensor in tensors], 1.0, 0.0, at)
        assert np.isfinite(y).all(), algorithm.name
        assert (y == over).all(), algorithm.name
