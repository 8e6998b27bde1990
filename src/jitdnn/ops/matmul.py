"""Matrix multiplication over anybody's arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from jitdnn.arguments import sequence, settled_before
from jitdnn.errors import InvalidShape
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call
from jitdnn.ops.epilogue import Fused, epilogue_key, fuse
from jitdnn.ops.kept_filter import KeptFilter
from jitdnn.problems.matmul import MatMul
from jitdnn.tensor import TensorDescriptor

_MOST_OPERANDS = 64  # of an epilogue: what is longer was meant as something else


def matmul(
    a: Any,
    b: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
    *,
    operands: Sequence[Any] = (),
    epilogue: Fused = None,
    algorithm: str | None = None,
) -> Any:
    """Return alpha * epilogue(a @ b, *operands) + beta * out: (..., M, N) for a (..., M, K) and b (..., K, N), by rows.

    At least 2 dimensions each, float16, bfloat16, float32 or float64; or `a` int8 or uint8 and `b` int8; or both 8-bit
    reals (float8_e4m3fn, float8_e5m2, in any combination), with the results that `conv` has of them. Batch dimensions
    are broadcast as in NumPy. A transposed matrix is a transposed view (`a.T`), which costs no copy. With K = 0 the
    product is 0.

    `operands`, of the result's dtype or float32, are broadcast to the result as in NumPy: a bias is (N,). `epilogue`
    is a function of the product and of them, as `conv` takes it; without it they are all added. `b` may be a
    `KeptFilter`: then what the algorithm packs of it is kept for the next call. `algorithm` asks for one by name.

    Raises InvalidShape and InvalidType for what does not fit, InvalidArgument for an `out` that cannot be
    written, NotSupported if no algorithm takes it.
    """
    names, arrays = ["a", "b"], [a, b]
    for number, operand in enumerate(sequence(operands, "operands", _MOST_OPERANDS), start=1):
        names.append(f"operand {number}")
        arrays.append(operand)
    fused, fused_key = epilogue_key(epilogue)
    op, run = _MATMUL, None
    if isinstance(b, KeptFilter):
        op, run, arrays[1] = _MATMUL_KEPT, b.run, b.w
    return call(op, names, arrays, (fused_key,), out, alpha, beta, handle, algorithm, unkeyed=fused, run=run)


def _make(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, fused_key: Hashable, fused: Fused = None
) -> Recipe:
    problem = MatMul.make(inputs[0], inputs[1], c=out)
    operands = [_broadcast(operand, problem.c) for operand in inputs[2:]]
    return Recipe(problem, fuse(fused, operands, problem.c, None))


def _broadcast(operand: TensorDescriptor, c: TensorDescriptor) -> TensorDescriptor:
    try:
        return operand.broadcast_to(c.shape)
    except InvalidShape as error:
        raise InvalidShape(f"an operand of the epilogue does not fit the result: {error}") from None


_TAKES = (settled_before("epilogue"),)
_MATMUL = Op(_make, _TAKES)
_MATMUL_KEPT = Op(_make, _TAKES, keeps_filter=True)
