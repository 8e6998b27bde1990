"""Epilogues as text: a small kernel that does nothing but finish, in plain C and in CUDA C++."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import Buffer
from harness import _Mirror
from jitdnn.devices.gpu import Launch, Source
from jitdnn.errors import InvalidArgument
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source
from jitdnn.rtcg.expression import apply, trace
from jitdnn.tensor import TensorDescriptor

SHAPE = (3, 5, 7)
OPERANDS = {
    "bias": TensorDescriptor((5, 1), (1, 1), "f32").broadcast_to(SHAPE),
    "residual": TensorDescriptor(SHAPE, (1, 3, -15), "bf16"),
    "scale": TensorDescriptor(SHAPE, (0, 0, 0), "f64"),
    "mask": TensorDescriptor(SHAPE, (40, 8, 1), "f16"),
}
EPILOGUES = {
    "none": None,
    "relu": Epilogue(trace(lambda acc: apply("relu", acc))),
    "bias": Epilogue(trace(lambda acc, bias: apply("gelu", acc + bias)), (OPERANDS["bias"],)),
    "all": Epilogue(trace(lambda acc, a, b, c, d: (acc + a) * c - b * d), tuple(OPERANDS.values())),
}


def source(epilogue: Epilogue | None, dtype: str, dialect: str) -> Source:
    """y = epilogue(x), element by element."""
    code = epilogue_source(epilogue, TensorDescriptor.packed(SHAPE, dtype), dtype, first=2)
    result = code.apply("x[i]", ["i / 35", "i / 7 % 5", "i % 7"])
    text = (
        f"{code.functions}KERNEL(64) void finish(GLOBAL const {dtype} *x, GLOBAL {dtype} *y{code.parameters}, "
        f"GLOBAL u8 *workspace, SCALE alpha, SCALE beta) {{\n"
        f"  const i64 i = BLOCK_ID(0) * 64 + THREAD_ID;\n  if (i < 105) y[i] = ({dtype})alpha * {result};\n}}\n"
    )
    return Source("epilogue", text, dialect=dialect)


def check(device: Any, name: str, dtype: str, dialect: str) -> None:
    epilogue = EPILOGUES[name]
    operands = () if epilogue is None else epilogue.operands
    tensors = [*[TensorDescriptor.packed(SHAPE, dtype)] * 2, *operands]
    buffers, rng = [Buffer(tensor) for tensor in tensors], np.random.default_rng(0)
    for number, buffer in enumerate(buffers):
        if number != 1:
            buffer.values[...] = rng.standard_normal(SHAPE)
    given = [buffers[0].values, *(buffer.values for buffer in buffers[2:])]
    kernel = device.kernel(source(epilogue, dtype, dialect), [Launch("finish", 2, 64)], len(tensors))
    mirrors = [_Mirror(device, buffer.memory, buffer.pointer) for buffer in buffers]
    kernel(None, [mirror.pointer for mirror in mirrors], 2.0, 0.0, 0)
    device.synchronize()
    mirrors[1].fetch()
    wide = [array.astype(np.float64) for array in given]
    expected = wide[0] if epilogue is None else epilogue.expression.evaluate(*wide)
    np.testing.assert_allclose(buffers[1].values, 2 * expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_plain(device: Any, name: str, dtype: str) -> None:
    check(device, name, dtype, "plain")


@pytest.mark.parametrize("name", EPILOGUES)
def test_cuda(cuda_device: Any, name: str) -> None:
    check(cuda_device, name, "f32", "cuda")


def test_compiles_for_every_architecture(architecture: Any) -> None:
    for dialect in ("plain", "cuda"):
        architecture.kernel(source(EPILOGUES["all"], "f32", dialect), [Launch("finish", 2, 64)], 6)


def test_operands_of_another_shape() -> None:
    with pytest.raises(InvalidArgument, match="must be the output's"):
        epilogue_source(EPILOGUES["bias"], TensorDescriptor.packed((3, 5), "f32"), "f32")
