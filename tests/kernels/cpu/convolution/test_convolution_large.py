"""Convolutions whose results are too large for the caches: they are stored past them where vectors are aligned."""

from __future__ import annotations

import numpy as np
import pytest

from conformance import Buffer, compare, make_case
from convolution_cases import convolution, fused
from jitdnn.devices.cpu import host
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Convolution

GUARD = 64  # elements on both sides of a result


def named(name: str, problem: Convolution) -> Algorithm:
    (algorithm,) = (a for a in algorithms(problem, "cpu") if a.name == name)
    return algorithm


@pytest.mark.parametrize("misplaced", [0, 1])
@pytest.mark.parametrize(
    ("name", "words", "expression"),
    [
        ("direct", "n1 c2 h240 w240 k112 r3 s3 pad1", None),  # the last tile of a row is half as wide
        ("direct", "n1 c3 h448 w447 k64 r1 s1 nhwc", "bias"),  # vectors of channels
        ("direct", "n1 c2 h224 w250 k113 r1 s1", "residual"),  # a run of pixels that ends within a vector
        ("implicit_gemm", "n2 c3 h48 w693 k97 r1 s1", "residual"),  # the last tile of a plane is half as wide
    ],
)
def test_large_results(name: str, words: str, expression: str | None, misplaced: int) -> None:
    problem = convolution(words, "fwd")
    epilogue = None if expression is None else fused(problem, expression)
    case = make_case(problem, epilogue)
    result = problem.outputs[0].descriptor
    size = int(np.prod(result.shape))
    memory = np.empty(size + 2 * GUARD + 16, np.float32)
    start = GUARD + -memory.ctypes.data % 64 // 4 + misplaced
    strides = [stride * 4 for stride in result.strides]
    values = np.lib.stride_tricks.as_strided(memory[start:], result.shape, strides)
    algorithm = named(name, problem)
    outputs = {}
    for threads in (1, 2):
        device = host(threads)
        kernel = algorithm.build(problem, device, epilogue)
        room = Buffer(type(result).packed((algorithm.workspace(problem, device, epilogue) // 4 + 1,), "f32"))
        pointers = [
            *(b.pointer for b in case.inputs),
            values.ctypes.data,
            *(b.pointer for b in case.operands),
        ]
        for alpha, beta in ((1.0, 0.0), (-0.75, 0.5)):
            memory[...] = np.nan
            if beta != 0:
                values[...] = case.previous[0]
            kernel(None, pointers, alpha, beta, room.pointer)
            compare([values], case, alpha, beta, algorithm.error_bound(problem))
            assert np.isnan(memory[:start]).all()
            assert np.isnan(memory[start + size :]).all()
            assert outputs.setdefault(beta, values.tobytes()) == values.tobytes(), "depends on the threads"
