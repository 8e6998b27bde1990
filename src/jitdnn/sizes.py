"""Sizes in bytes as text, and back."""

from __future__ import annotations

import operator
import re
from typing import Final

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, ParseError

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_MOST_BYTES: Final = (1 << 63) - 1
_MOST_DIGITS: Final = 40
_BYTES: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: object) -> int | None:
    """Return the bytes that text such as `64 MiB`, `8MB` or `4096` means; None for `none` or `unlimited`.

    Units are those of IEC 80000-13: kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB powers of 1024.
    Case does not matter. Raises ParseError for text that is no size, InvalidArgument for a negative or
    fractional byte count.
    """
    if text is None:
        return None
    if not isinstance(text, str):
        count = whole(text)
        if count is None or not 0 <= count <= _MOST_BYTES:
            raise InvalidArgument(
                f"{shown(text)} is no size: it must be an integer number of bytes, text such as 64 MiB, or None"
            )
        return count
    if text.strip().lower() in ("none", "unlimited"):
        return None
    match = _BYTES.fullmatch(text)
    if match is None:
        column = len(text) - len(text.lstrip()) + 1
        raise ParseError(
            f"{shown(text)} is no size in bytes: write e.g. 64 MiB, 8MB, 4096 or none", text, 1, column
        )
    number, unit = match.groups()
    if unit.lower() not in _UNITS:
        raise ParseError(
            f"{shown(unit)} is no unit of bytes: use B, kB, MB, GB, TB (powers of 1000) or KiB to TiB (of 1024)",
            text,
            1,
            match.start(2) + 1,
        )
    scale = _UNITS[unit.lower()]
    if len(number) > _MOST_DIGITS or float(number) * scale > _MOST_BYTES:
        raise InvalidArgument(f"{shown(text)} is more than {_MOST_BYTES} bytes, which no memory has")
    if "." not in number:
        return int(number) * scale
    exact = float(number) * scale
    if exact != int(exact):
        raise InvalidArgument(f"{text.strip()!r} is {exact} bytes: a size must be an integer number of bytes")
    return int(exact)


def whole(value: object) -> int | None:
    """An integer of Python or NumPy as an int; None for anything else, truth values too."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # of an object that is no number after all
        return None


def format_bytes(n: int) -> str:
    """Return `n` bytes for a reader, in powers of 1024 and three digits: `64 MiB`, `1.46 KiB`, `0 B`."""
    if n < 0:
        raise InvalidArgument(f"{n} bytes: a size must be 0 or more")
    value, unit = float(n), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # 1023.5 would print as 1024: it belongs to the next unit
        if value < 1023.5 or unit == "TiB":
            break
        value /= 1024
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} {unit}"
