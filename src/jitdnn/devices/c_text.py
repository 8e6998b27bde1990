"""Text of users for the compilers of GPUs: its defines and headers, and what a compiler's log says of its lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn.arguments import shown
from jitdnn.errors import CompileError, InvalidArgument, InvalidType

_NAME = re.compile(r"[A-Za-z_]\w*")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">\n]+)[">]', re.MULTILINE)
_MOST_HEADERS = 4096
_MOST_NUMBERS = 1 << 20
# `mine.cu(3): error: ...` of NVRTC; `error: mine.cl:2:10: ...` and `mine.cl:2:10: error: ...` of clang
_PLACES = (
    re.compile(r"^(?P<file>[^\s():][^():\n]*)\((?P<line>\d+)\): (?:catastrophic )?error", re.MULTILINE),
    re.compile(r"^(?:fatal )?error: (?P<file>[^:\n]+):(?P<line>\d+):\d+:", re.MULTILINE),
    re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?:fatal )?error:", re.MULTILINE),
)
_AROUND, _MOST_PLACES = 2, 3


@dataclass(frozen=True)
class CText:
    """A text of CUDA C++ or OpenCL C, and all that its compilation depends on but the compiler.

    `file` is what the compiler calls it. `defines` come before everything; `headers` are found by the names that
    `#include` writes; `options` are the compiler's own.
    """

    name: str
    file: str
    text: str
    defines: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()

    @property
    def complete(self) -> str:
        """What the compiler reads. Its lines keep their numbers."""
        defines = "".join(f"#define {name} {value}\n" for name, value in self.defines)
        return f'{defines}#line 1 "{self.file}"\n{self.text}'

    @property
    def parts(self) -> tuple[str, ...]:
        """All of it as texts, for a key."""
        headers = [part for header in self.headers for part in header]
        return self.file, self.complete, *headers, "options", *self.options

    def failure(self, where: str, log: str) -> CompileError:
        """The error of a text that does not compile, with the compiler's log and the lines that it names."""
        texts = {self.file: self.text, **dict(self.headers)}
        places = []
        for pattern in _PLACES:
            for found in pattern.finditer(log):
                file = next((name for name in texts if found["file"].endswith(name)), None)
                if file is not None and (file, int(found["line"])) not in places:
                    places.append((file, int(found["line"])))
        log = log.strip()
        message = f"{self.name} does not compile for {where}:\n{log}"
        for file, line in places[:_MOST_PLACES]:
            message += f"\n{file}, line {line}:\n{_excerpt(texts[file], line)}"
        error = CompileError(message)
        if places:
            error.file, error.line = places[0]
        return error


def _excerpt(text: str, line: int) -> str:
    lines = text.splitlines()
    shown_lines = []
    for number in range(max(1, line - _AROUND), min(len(lines), line + _AROUND) + 1):
        mark = ">" if number == line else " "
        shown_lines.append(f"{mark} {number:4d}  {lines[number - 1]}")
    return "\n".join(shown_lines)


def settled_defines(given: Any) -> tuple[tuple[str, str], ...]:
    """Names and what they stand for: text as it is, numbers, arrays as initializers. Raises InvalidArgument."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"defines is {shown(given)}: it must have what each name stands for, by the name"
        )
    return tuple(sorted((settled_name(name), define_text(name, value)) for name, value in given.items()))


def settled_name(name: Any) -> str:
    """A name of C. Raises InvalidArgument."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(f"{shown(name)} is no name of C: letters, digits and _, no digit first")
    return name


def define_text(name: Any, value: Any) -> str:
    """How C writes a value that a name stands for."""
    if value is None:
        return ""
    if isinstance(value, str):
        if "\n" in value or "\r" in value:
            raise InvalidArgument(f"the define {name} has several lines: use headers for text")
        return value
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    if isinstance(value, (int, float, np.number)):
        return _number(value)
    array = np.asarray(value)
    if (
        array.dtype.kind not in "biuf"
        or array.dtype.itemsize > 8
        or array.ndim == 0
        or array.size > _MOST_NUMBERS
    ):
        raise InvalidType(
            f"the define {name} is {shown(value)}: it must be text, a number, an array of up to {_MOST_NUMBERS} real "
            "numbers or integers, or None"
        )
    return _initializer(array)


def _initializer(array: np.ndarray[Any, Any]) -> str:
    if array.ndim == 1:
        return "{" + ", ".join(_number(value) for value in array) + "}"
    return "{" + ", ".join(_initializer(row) for row in array) + "}"


def _number(value: Any) -> str:
    """A number as C writes it: f32 with its suffix, f64 of Python and NumPy without one."""
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    if isinstance(value, (int, np.integer)):
        whole = int(value)
        if not -(1 << 63) <= whole < 1 << 64:
            raise InvalidArgument(f"{shown(value)} has more than 64 bits")
        if whole == -(1 << 63):
            return "(-9223372036854775807L - 1)"
        text = f"{whole}U" if whole >= 1 << 63 else str(whole)
        return f"({text})" if whole < 0 else text
    is_single = isinstance(value, np.floating) and value.dtype.itemsize <= 4
    number = float(value)
    suffix = "f" if is_single else ""
    if number != number:
        return f"(0.0{suffix} / 0.0{suffix})"
    if number in (float("inf"), float("-inf")):
        return f"({'-' if number < 0 else ''}1.0{suffix} / 0.0{suffix})"
    text = f"{float(value)!r}{suffix}" if not is_single else f"{np.float32(value)!s}{suffix}"
    if re.fullmatch(r"-?\d+f?", text):  # an integer with a suffix would be none
        text = text.removesuffix("f") + ".0" + suffix
    return f"({text})" if number < 0 else text


def settled_headers(text: str, headers: Any, folders: Any) -> tuple[tuple[str, str], ...]:
    """Headers by the names that `#include` writes: those given, and those that lie in folders and are included.

    What is found nowhere is left to the compiler. Raises InvalidArgument.
    """
    given: dict[str, str] = {}
    if headers is not None:
        if not isinstance(headers, Mapping) or not all(
            isinstance(name, str) and isinstance(content, str) for name, content in headers.items()
        ):
            raise InvalidArgument(
                f"headers is {shown(headers)}: it must have the text of each header, by its name"
            )
        given = dict(headers)
    for name in given:
        if not name or name.startswith("/") or ".." in Path(name).parts or "\0" in name or '"' in name:
            raise InvalidArgument(f"the header {shown(name)} must have a name below a folder, without ..")
    paths = _folders(folders)
    found = dict(given)
    waiting: list[tuple[str, Path | None]] = [(text, None), *((content, None) for content in given.values())]
    while waiting:
        content, folder = waiting.pop()
        for name in _INCLUDE.findall(content):
            if name in found or ".." in Path(name).parts or Path(name).is_absolute():
                continue
            for path in ([folder] if folder else []) + paths:
                place = path / name
                if place.is_file():
                    if len(found) >= _MOST_HEADERS:
                        raise InvalidArgument(f"the text includes more than {_MOST_HEADERS} files")
                    try:
                        found[name] = place.read_text("utf-8")
                    except (OSError, UnicodeDecodeError) as error:
                        raise InvalidArgument(f"the header {name} cannot be read: {error}") from None
                    waiting.append((found[name], place.parent))
                    break
    return tuple(sorted(found.items()))


def _folders(given: Any) -> list[Path]:
    if given is None:
        return []
    each: Iterable[Any] = [given] if isinstance(given, (str, Path)) else given
    try:
        paths = [Path(one) for one in each]
    except TypeError:
        raise InvalidArgument(f"include_folders is {shown(given)}: it must be folders") from None
    for path in paths:
        if not path.is_dir():
            raise InvalidArgument(f"include_folders has {str(path)!r}, which is no folder")
    return paths


def settled_options(given: Any) -> tuple[str, ...]:
    """Options of the compiler, each as one text. Raises InvalidArgument."""
    if (
        isinstance(given, str)
        or not isinstance(given, Sequence)
        or not all(isinstance(o, str) for o in given)
    ):
        raise InvalidArgument(f"options is {shown(given)}: it must be a list of the compiler's options")
    return tuple(given)
