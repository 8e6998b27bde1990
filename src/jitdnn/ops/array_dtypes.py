"""What NumPy's dtypes make of the operations of arrays: that of a result, and the arithmetic that it is computed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, InvalidType
from jitdnn.rtcg.operations import OPERATIONS
from jitdnn.rtcg.tracing import functions
from jitdnn.tensor import DeviceArray, compute_dtype, dtype_name

BOOL = np.dtype(bool)
#: operations whose integers are right in as many bits as one keeps
RING = frozenset(("add", "subtract", "multiply", "negative"))
_OF_TRUTHS = {
    "add": "logical_or",
    "multiply": "logical_and",
    "maximum": "logical_or",
    "minimum": "logical_and",
}
LOGICAL = frozenset(("logical_and", "logical_or", "logical_not"))
_TRUTH = frozenset(
    (*LOGICAL, *(name for name, rule in OPERATIONS.items() if rule.is_truth), "isnan", "isinf", "isfinite")
)
_REAL_ONLY = frozenset((
    "erf", "sigmoid", "log1pexp", "upper_tail", "normal_density", "normal_tail", "normal_cdf", "rsqrt", "reciprocal",
    "fma", "isnan", "isinf", "isfinite",
))  # fmt: skip


def kind_of(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return value.dtype
    if isinstance(value, (np.generic, np.ndarray)):
        if dtype_name(value.dtype) is None:
            raise InvalidType(f"a number of {value.dtype} has no dtype of arrays here")
        return value.dtype
    if isinstance(value, bool):
        return BOOL
    return type(value) if type(value) in (int, float) else int if isinstance(value, int) else float


def exponent_of(base: DeviceArray, exponent: float) -> float | None:
    """An exponent that becomes part of the code, as products; None for others."""
    if isinstance(exponent, bool) or not (
        (float(exponent).is_integer() and abs(exponent) <= 64) or exponent == 0.5
    ):
        return None
    if base.dtype.kind in "iu" and isinstance(exponent, int):
        if exponent < 0:
            raise InvalidArgument(
                f"integers to the power {exponent} are no integers: convert the array (astype)"
            )
        return float(exponent)
    return float(exponent) if base.dtype.kind not in "iub" else None


def resolved(name: str, kinds: Sequence[Any], exponent: float | None) -> tuple[str, np.dtype[Any]]:
    """The step that a function is of operands of these kinds, and its dtype as NumPy has it."""
    strong = [kind for kind in kinds if isinstance(kind, np.dtype)]
    if name in LOGICAL:
        if any(kind != BOOL for kind in kinds):
            raise InvalidType(
                f"{name} of {_listing(kinds)}: only conditions can be combined, there are no operators of bits"
            )
        return name, BOOL
    if name in _TRUTH:
        wide = [kind for kind in strong if kind == np.uint64]
        if wide and len(kinds) > 1:
            raise InvalidType(f"{name} of {_listing(kinds)}: uint64 cannot be compared, convert it (astype)")
        return name, BOOL
    if name == "where":
        if kinds[0] != BOOL:
            raise InvalidType(
                f"where chooses by {_listing(kinds[:1])}: it must be a condition, such as x > 0"
            )
        return name, _common(kinds[1:])
    if name in _OF_TRUTHS and all(kind == BOOL for kind in kinds):
        return _OF_TRUTHS[name], BOOL
    if exponent is not None:
        dtype = kinds[0] if kinds[0].kind not in "b" else np.dtype(np.int8)
        return name, dtype
    if name in ("clip", "identity"):
        dtype = _common(kinds)
    elif name in _REAL_ONLY:
        dtype = _common(kinds)
        dtype = dtype if dtype.kind not in "iub" else np.sqrt.resolve_dtypes((dtype, None))[-1]
    else:
        dtype = _of_ufunc(name, kinds, strong)
    if dtype_name(dtype) is None:
        raise InvalidType(f"{name} of {_listing(kinds)} would be {dtype}, of which there are no arrays here")
    if dtype.kind in "iu":
        if name == "power":
            raise InvalidType(
                f"power of {_listing(kinds)}: of integers only by a number, convert them (astype)"
            )
        if name not in (*RING, "identity") and any(kind == np.uint64 for kind in strong):
            raise InvalidType(
                f"{name} of {_listing(kinds)}: uint64 is added and multiplied, convert it (astype)"
            )
    return name, dtype


def computing_of(name: str, kinds: Sequence[Any], dtype: np.dtype[Any]) -> str:
    """The type of the arithmetic of a step: f32, f64 or i64; any of them for conditions, "truth"."""
    if name in LOGICAL:
        return "truth"
    taken = kinds[1:] if name == "where" else kinds
    known = [kind for kind in taken if isinstance(kind, np.dtype) and kind != BOOL]
    is_real = any(kind.kind not in "iu" for kind in (*known, *(() if dtype == BOOL else (dtype,))))
    if is_real or float in taken:
        names = [dtype_name(kind) or "f64" for kind in (*known, *(() if dtype == BOOL else (dtype,)))]
        return compute_dtype(*names)
    return "i64"


def plain_number(number: Any, computing: str) -> float:
    """A number as Python's. Raises InvalidArgument where the arithmetic is in integers and cannot hold it."""
    if isinstance(number, (bool, np.bool_)):
        return int(number)
    if isinstance(number, (int, np.integer)):
        whole = int(number)
        if computing == "i64" and not -(1 << 63) <= whole < 1 << 63:
            raise InvalidArgument(f"{shown(whole)} has more than 64 bits")
        return whole
    return float(number)


def _of_ufunc(name: str, kinds: Sequence[Any], strong: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    if (
        len(strong) < len(kinds)
        and len({*strong}) == 1
        and strong[0].kind not in "iub"
        and strong[0].itemsize < 8
    ):
        return strong[
            0
        ]  # numbers of Python take the type of the array, of types that NumPy does not know too
    ufunc = getattr(np, name, None)
    if not isinstance(ufunc, np.ufunc):
        raise InvalidType(f"{name} is no function of arrays on a GPU: there are {', '.join(functions())}")
    if ufunc.nin != len(kinds):
        raise InvalidArgument(f"{name} takes {ufunc.nin} operands, got {len(kinds)}")
    try:
        found: np.dtype[Any] = ufunc.resolve_dtypes((*kinds, None))[-1]
    except TypeError as error:
        raise InvalidType(f"{name} of {_listing(kinds)}: {error}") from None
    return found


def _common(kinds: Sequence[Any]) -> np.dtype[Any]:
    """The type that all operands have room in."""
    strong = [kind for kind in kinds if isinstance(kind, np.dtype)]
    if strong and len({*strong}) == 1 and strong[0].kind not in "iub":
        return strong[0]
    try:
        return np.result_type(*(kind if isinstance(kind, np.dtype) else kind(1) for kind in kinds))
    except TypeError as error:
        raise InvalidType(f"operands of {_listing(kinds)} have no type in common: {error}") from None


def _listing(kinds: Sequence[Any]) -> str:
    return " and ".join(
        kind.name if isinstance(kind, np.dtype) else f"a Python {kind.__name__}" for kind in kinds
    )
