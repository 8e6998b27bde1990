"""Element types: their names, their bytes in memory, and what arithmetic is done in.

Half-precision numbers (f16, bf16) are storage: they are widened when loaded and rounded when stored, and every
operation on them is done in float32.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import numpy as np

from jitdnn.arguments import shown
from jitdnn.errors import InvalidType

#: bytes of an element in memory
DTYPES: Final[dict[str, int]] = {
    "f16": 2,
    "bf16": 2,
    "f32": 4,
    "f64": 8,
    "i8": 1,
    "u8": 1,
    "i16": 2,
    "u16": 2,
    "i32": 4,
    "u32": 4,
    "i64": 8,
    "u64": 8,
    "bool": 1,
}
REAL_DTYPES: Final = ("f16", "bf16", "f32", "f64")

_LONGEST_NAME: Final = 100
_NUMPY_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "f16": np.dtype("float16"),
    "f32": np.dtype("float32"),
    "f64": np.dtype("float64"),
    "i8": np.dtype("int8"),
    "u8": np.dtype("uint8"),
    "i16": np.dtype("int16"),
    "u16": np.dtype("uint16"),
    "i32": np.dtype("int32"),
    "u32": np.dtype("uint32"),
    "i64": np.dtype("int64"),
    "u64": np.dtype("uint64"),
    "bool": np.dtype("bool"),
}
_NAMES_OF_NUMPY: Final = {dtype: name for name, dtype in _NUMPY_DTYPES.items()}
_WIDE: Final = frozenset({"f64", "i32", "u32", "i64", "u64"})


def compute_dtype(*dtypes: str) -> str:
    """Return the real type that operands of these types are computed in: "f32" or "f64".

    f64 where there is an f64, or an integer of more bits than f32 has digits.
    """
    return "f64" if any(dtype in _WIDE for dtype in dtypes) else "f32"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of one of the names in `DTYPES`. Raises InvalidType for another name."""
    known = _NUMPY_DTYPES.get(name) if isinstance(name, str) else None
    if known is not None:
        return known
    if name != "bf16":
        raise InvalidType(f"{shown(name)} is no dtype: there are {', '.join(DTYPES)}")
    import ml_dtypes  # NumPy has no bfloat16 of its own; only programs that use it pay for the import

    return _NUMPY_DTYPES.setdefault("bf16", np.dtype(ml_dtypes.bfloat16))


def dtype_of(dtype: object) -> str:
    """Return the name in `DTYPES` of what a user calls a dtype: such a name, or a dtype of NumPy or PyTorch.

    Raises InvalidType.
    """
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    name: str | None = None
    with suppress(Exception):  # what NumPy raises, or the object when it is looked at
        # NumPy takes much else as a dtype: None, numbers, lists of fields of any length
        if (
            isinstance(dtype, (str, type, np.dtype))
            or type(dtype).__module__ == "torch"
            or hasattr(dtype, "dtype")
        ):
            text = dtype if isinstance(dtype, str) else str(dtype)
            if len(text) <= _LONGEST_NAME:
                name = "bf16" if text.endswith("bfloat16") else None
                known: Any = text.removeprefix("torch.") if text.startswith("torch.") else dtype
                name = dtype_name(np.dtype(known))
    if name is None:
        raise InvalidType(
            f"{shown(dtype)} is no dtype of arrays here: give one of {', '.join(DTYPES)}, or a NumPy dtype"
        )
    return name


def dtype_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name in `DTYPES` of a NumPy dtype in native byte order, None if it has none."""
    if not dtype.isnative:
        return None
    return _NAMES_OF_NUMPY.get(dtype) or ("bf16" if dtype.name == "bfloat16" else None)
