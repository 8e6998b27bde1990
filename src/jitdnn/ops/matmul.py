"""Matrix multiplication over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call
from jitdnn.problems.matmul import MatMul
from jitdnn.tensor import TensorDescriptor


def matmul(
    a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0, out: Any = None, handle: Handle | None = None
) -> Any:
    """Return alpha * a @ b + beta * out: (..., M, N) for a (..., M, K) and b (..., K, N), stored by rows.

    At least 2 dimensions each, float16, bfloat16, float32 or float64; or both int8, or both 8-bit reals (float8_e4m3fn,
    float8_e5m2, in any combination), with the results that `conv` has of them. Batch dimensions are broadcast as in
    NumPy. A transposed matrix is a transposed view (`a.T`), which costs no copy. With K = 0 the product is 0.

    Raises InvalidShape and InvalidType for what does not fit, InvalidArgument for an `out` that cannot be
    written.
    """
    return call(_MATMUL, ("a", "b"), (a, b), (), out, alpha, beta, handle)


def _make(inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None) -> Recipe:
    a, b = inputs
    return Recipe(MatMul.make(a, b, c=out))


_MATMUL = Op(_make)
