"""Text: joined, split, normalized, matched; read as numbers and written. Arrays of it are arrays of Python's str.

Regular expressions are RE2's, as ONNX says, by RE2 itself (the extra `onnx` has it): their time grows with the text,
not with the ways in which it could match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument, InvalidType, needed
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.settings import check_bytes

_POINTER = 8  # bytes of an element
_PATTERN_BYTES = 8 << 20  # that RE2 may take for a pattern


def is_text(x: Array) -> bool:
    return x.dtype.kind in "OUT"


def of_each(function: Callable[[str], Any], x: Array, dtype: Any = object) -> Array:
    """The function of every text."""
    result = np.empty(x.shape, dtype)
    result.reshape(-1)[:] = [function(_checked(value)) for value in x.reshape(-1)]
    return result


def _checked(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise InvalidType(f"{value!r} is no text")
    return value


def as_text(x: Array) -> Array:
    """Numbers as the shortest text that they can be read from."""
    if is_text(x):
        return x
    narrow = x.dtype.kind not in "biuf"  # what NumPy writes in its own way
    texts = (x.astype(np.float32) if narrow else x).reshape(-1).astype(np.str_)
    result = np.empty(x.shape, object)
    result.reshape(-1)[:] = texts.tolist()
    return result


def from_text(x: Array, dtype: np.dtype[Any], site: Site) -> Array:
    """Text as numbers. Raises InvalidArgument for text that is none."""

    def number(text: str) -> Any:
        try:
            if dtype.kind in "iu":
                return int(text) if text.strip().lstrip("+-").isdigit() else int(float(text))
            return float(text)
        except (ValueError, OverflowError):
            raise InvalidArgument(
                f"{site.operator}: {text[:60]!r} is no number of type {dtype.name}"
            ) from None

    wide = np.int64 if dtype.kind == "i" else np.uint64 if dtype.kind == "u" else np.float64
    return of_each(number, x, wide).astype(dtype)


def equal(x: Array, y: Array) -> Array:
    return np.asarray(x.astype(object) == y.astype(object), bool)


def string_concat(x: Array, y: Array, /, *, site: Site) -> Array:
    _need_text(site, x, y)
    check_bytes("joined text", _POINTER * int(np.prod(np.broadcast_shapes(x.shape, y.shape), dtype=object)))
    joined = np.frompyfunc(lambda a, b: _checked(a) + _checked(b), 2, 1)(x, y)
    result = np.empty(np.shape(joined), object)
    result[...] = joined
    return result


def string_split(
    x: Array, /, *, delimiter: str | None = None, maxsplit: int | None = None, site: Site
) -> tuple[Array, Array]:
    """The parts, filled up with empty text to as many as the longest has, and how many there are. Without a
    delimiter at runs of white space."""
    _need_text(site, x)
    most = -1 if maxsplit is None else maxsplit
    parts = [_checked(value).split(delimiter or None, most) for value in x.reshape(-1)]
    width = max(map(len, parts), default=0)
    check_bytes("parts of text", _POINTER * width * len(parts))
    result = np.full((len(parts), width), "", object)
    for row, found in zip(result, parts, strict=True):
        row[: len(found)] = found
    counts = np.array([len(found) for found in parts], np.int64)
    return result.reshape(*x.shape, width), counts.reshape(x.shape)


def string_normalizer(
    x: Array,
    /,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] = (),
    site: Site,
) -> Array:
    """Texts of [C] or [1, C] that are no stop words, in the case asked for. Python changes the case of all languages
    alike, so that the locale does not matter."""
    _need_text(site, x)
    if x.ndim not in {1, 2} or (x.ndim == 2 and x.shape[0] != 1):
        raise site.refuse(f"text of shape {x.shape} is not covered: [C] and [1, C] are")
    changes: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    if case_change_action not in changes:
        raise site.refuse(f"case_change_action {case_change_action!r} is not covered")
    change = changes[case_change_action]
    compared: Callable[[str], str] = str if is_case_sensitive else str.lower
    stopped = {compared(word) for word in stopwords}
    texts = [_checked(value) for value in x.reshape(-1)]
    kept = [change(text) for text in texts if compared(text) not in stopped] or [""]
    result = np.array(kept, object)
    return result[None] if x.ndim == 2 else result


def regex_full_match(x: Array, /, *, pattern: str, site: Site) -> Array:
    """Raises InvalidArgument for a pattern that RE2 does not read."""
    _need_text(site, x)
    with needed(f'{site.operator} needs the package google-re2: pip install "jitdnn[onnx]"'):
        import re2  # only models with this operator need it
    options = re2.Options()
    options.max_mem, options.log_errors = _PATTERN_BYTES, False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidArgument(f"{site.operator}: {pattern[:60]!r} is no pattern of RE2: {error}") from error
    return of_each(lambda text: compiled.fullmatch(text) is not None, x, bool)


def _need_text(site: Site, *arrays: Array) -> None:
    for array in arrays:
        if not is_text(array):
            raise InvalidType(f"text is needed, and this is {array.dtype}")


OPERATORS = table(
    RegexFullMatch=regex_full_match,
    StringConcat=string_concat,
    StringNormalizer=string_normalizer,
    StringSplit=string_split,
)
