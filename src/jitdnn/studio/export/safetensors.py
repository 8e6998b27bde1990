"""Arrays in a .safetensors file, as huggingface/safetensors publishes the format.

bytes           what
0 .. 7          length of the header, little-endian
then            header, JSON: for each array its dtype, shape and data_offsets from the end of the header on, and
                __metadata__, texts by name; blanks behind it, so that the arrays begin at a multiple of 8
then            the arrays, C order, little-endian, one behind the other without gaps
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.errors import InvalidType

_DTYPES: Final = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_ALIGNMENT: Final = 8


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write arrays by their names. Raises InvalidType for a dtype that the format does not have."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES:
            raise InvalidType(
                f"array {name!r} is {array.dtype}: a .safetensors file has {', '.join(_DTYPES)}"
            )
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """What `write_tensors` wrote: arrays and metadata. For files of our own."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    metadata = header.pop("__metadata__", {})
    names = {text: name for name, text in _DTYPES.items()}
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype = np.dtype(names[entry["dtype"]]).newbyteorder("<")
        arrays[name] = np.frombuffer(content[start + first : start + last], dtype).reshape(entry["shape"])
    return arrays, metadata
