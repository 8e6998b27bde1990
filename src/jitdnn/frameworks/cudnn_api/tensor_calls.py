"""Whole tensors: copied into other layouts and types, added, combined, filled and scaled."""

from __future__ import annotations

from typing import Any

import jitdnn as jd
from jitdnn.frameworks.cudnn_api.enums import cudnnDataType_t, cudnnNanPropagation_t, cudnnOpTensorOp_t
from jitdnn.frameworks.cudnn_api.handles import inner
from jitdnn.frameworks.cudnn_api.memory import bound
from jitdnn.frameworks.cudnn_api.objects import Descriptor, alive, blend, choice, destroy, real, value_of
from jitdnn.frameworks.cudnn_api.registry import api
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.frameworks.cudnn_api.tensors import dtype_of, tensor_of
from jitdnn.tensor import Array

_O = cudnnOpTensorOp_t
_OPERATIONS = {
    _O.CUDNN_OP_TENSOR_ADD: "add",
    _O.CUDNN_OP_TENSOR_MUL: "mul",
    _O.CUDNN_OP_TENSOR_MIN: "min",
    _O.CUDNN_OP_TENSOR_MAX: "max",
    _O.CUDNN_OP_TENSOR_SQRT: "sqrt",
    _O.CUDNN_OP_TENSOR_NOT: "not",
}
_OF_ONE = ("sqrt", "not")
Operation = tuple[cudnnOpTensorOp_t, cudnnDataType_t, cudnnNanPropagation_t]


class cudnnOpTensorDescriptor(Descriptor[Operation]):
    """An operation on two tensors: (operation, type of the arithmetic, NaN)."""


@api
def cudnnTransformTensor(
    handle: Any, alpha: float, xDesc: Any, x: Any, beta: float, yDesc: Any, y: Any
) -> None:
    """y = alpha * x + beta * y, of equal extents, whatever their strides and types."""
    own = inner(handle)
    source = bound(x, tensor_of(xDesc, "xDesc"), "x")
    target = bound(y, tensor_of(yDesc, "yDesc"), "y", True)
    jd.transform(source, **blend(alpha, beta), out=target, handle=own)


def require_broadcast(a: Array, c: Array, name: str, other: str) -> None:
    """Each extent of `a` is 1 or that of `c`. Raises BadParam."""
    have, want = a.descriptor.shape, c.descriptor.shape
    if len(have) != len(want) or any(n not in (1, m) for n, m in zip(have, want, strict=True)):
        raise BadParam(f"{name} has extents {have} and {other} {want}: each must be equal, or 1 in {name}")


@api
def cudnnAddTensor(handle: Any, alpha: float, aDesc: Any, A: Any, beta: float, cDesc: Any, C: Any) -> None:
    """C = alpha * A + beta * C; A is broadcast along its extents of 1."""
    own = inner(handle)
    source = bound(A, tensor_of(aDesc, "aDesc"), "A")
    target = bound(C, tensor_of(cDesc, "cDesc"), "C", True)
    require_broadcast(source, target, "A", "C")
    jd.add(source, **blend(alpha, beta), out=target, handle=own)


@api
def cudnnCreateOpTensorDescriptor() -> cudnnOpTensorDescriptor:
    """Return a descriptor of an operation on tensors, to be set."""
    return cudnnOpTensorDescriptor()


@api
def cudnnSetOpTensorDescriptor(
    opTensorDesc: Any, opTensorOp: int, opTensorCompType: int, opTensorNanOpt: int
) -> None:
    """Set the operation, the type of the arithmetic, and the wish for NaN, which is always propagated."""
    own = alive(opTensorDesc, cudnnOpTensorDescriptor, "opTensorDesc")
    computed = choice(cudnnDataType_t, opTensorCompType, "opTensorCompType")
    dtype_of(computed, "opTensorCompType")
    own.value = (
        choice(cudnnOpTensorOp_t, opTensorOp, "opTensorOp"),
        computed,
        choice(cudnnNanPropagation_t, opTensorNanOpt, "opTensorNanOpt"),
    )


@api
def cudnnGetOpTensorDescriptor(opTensorDesc: Any) -> Operation:
    """Return (opTensorOp, opTensorCompType, opTensorNanOpt)."""
    return value_of(opTensorDesc, cudnnOpTensorDescriptor, "opTensorDesc")


@api
def cudnnDestroyOpTensorDescriptor(opTensorDesc: Any) -> None:
    """Destroy a descriptor of an operation on tensors."""
    destroy(opTensorDesc, cudnnOpTensorDescriptor, "opTensorDesc")


@api
def cudnnOpTensor(
    handle: Any,
    opTensorDesc: Any,
    alpha1: float,
    aDesc: Any,
    A: Any,
    alpha2: float,
    bDesc: Any,
    B: Any,
    beta: float,
    cDesc: Any,
    C: Any,
) -> None:
    """C = op(alpha1 * A, alpha2 * B) + beta * C; B is broadcast along its extents of 1; sqrt and not read A alone."""
    own = inner(handle)
    operation = _OPERATIONS[value_of(opTensorDesc, cudnnOpTensorDescriptor, "opTensorDesc")[0]]
    first = bound(A, tensor_of(aDesc, "aDesc"), "A")
    target = bound(C, tensor_of(cDesc, "cDesc"), "C", True)
    if first.descriptor.shape != target.descriptor.shape:
        raise BadParam(
            f"A has extents {first.descriptor.shape} and C {target.descriptor.shape}: they must be equal"
        )
    scales = real(alpha1, "alpha1"), real(alpha2, "alpha2")
    second = None
    if operation not in _OF_ONE:
        second = bound(B, tensor_of(bDesc, "bDesc"), "B")
        require_broadcast(second, target, "B", "C")
    jd.op_tensor(first, second, operation, *scales, beta=real(beta, "beta"), out=target, handle=own)


@api
def cudnnSetTensor(handle: Any, yDesc: Any, y: Any, valuePtr: float) -> None:
    """Set every element of y to a number."""
    own = inner(handle)
    jd.fill(bound(y, tensor_of(yDesc, "yDesc"), "y", True), real(valuePtr, "valuePtr"), handle=own)


@api
def cudnnScaleTensor(handle: Any, yDesc: Any, y: Any, alpha: float) -> None:
    """Multiply every element of y by a number."""
    own = inner(handle)
    jd.scale(bound(y, tensor_of(yDesc, "yDesc"), "y", True), real(alpha, "alpha"), handle=own)
