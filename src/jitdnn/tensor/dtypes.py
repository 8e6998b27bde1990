"""Element types: their names, their bytes in memory, and what arithmetic is done in.

Half-precision numbers (f16, bf16) are storage: they are widened when loaded and rounded when stored, and every
operation on them is done in float32. So are 8-bit ones, of the formats of the Open Compute Project: f8e4m3, elsewhere
`float8_e4m3fn`, which has no infinity, and f8e5m2, elsewhere `float8_e5m2`. What is beyond their range, infinities
included, is stored as their largest number, NaN as NaN.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import numpy as np

from jitdnn.arguments import shown
from jitdnn.errors import InvalidType

#: what arrays may hold, for messages
ACCEPTED: Final = (
    "real, integer or bool type (float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, "
    "int8 to int64, uint8 to uint64, bool)"
)
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
    "f8e4m3": 1,
    "f8e5m2": 1,
}
#: 8-bit reals, and their largest numbers
FLOAT8_LARGEST: Final = {"f8e4m3": 448.0, "f8e5m2": 57344.0}
FLOAT8_DTYPES: Final = tuple(FLOAT8_LARGEST)
#: what operations take that say nothing else
COMMON_DTYPES: Final = ("f16", "bf16", "f32", "f64")
REAL_DTYPES: Final = (*FLOAT8_DTYPES, *COMMON_DTYPES)

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
# those that NumPy has of `ml_dtypes` alone: their names there
_FOREIGN: Final = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
_NAMES_OF_FOREIGN: Final = {foreign: name for name, foreign in _FOREIGN.items()}
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
    foreign = _FOREIGN.get(name) if isinstance(name, str) else None
    if foreign is None:
        raise InvalidType(f"{shown(name)} is no dtype: there are {', '.join(DTYPES)}")
    import ml_dtypes  # only programs that use these types pay for the import

    return _NUMPY_DTYPES.setdefault(name, np.dtype(getattr(ml_dtypes, foreign)))


def foreign_name(name: str) -> str | None:
    """What `ml_dtypes` and PyTorch call a type that NumPy has none of; None for others.

    It has no type string either: an array of it is made as integers of its size, and viewed as it.
    """
    return _FOREIGN.get(name)


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
                # of NumPy, PyTorch, or a class of ml_dtypes
                name = _NAMES_OF_FOREIGN.get(text.removesuffix("'>").rpartition(".")[2])
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
    return _NAMES_OF_NUMPY.get(dtype) or _NAMES_OF_FOREIGN.get(dtype.name)
