"""What functions of C text take: their parameter lists, read from the text of CUDA C++ and OpenCL C.

    parameters("const float *x, float a, int n", "cuda")
    signatures(text, "opencl", {})["axpy"]

Only types that are known by their names have a dtype; structures, and what macros make, are known by their text alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.tensor import DTYPES

_KERNEL = {"cuda": re.compile(r"\b__global__\b"), "opencl": re.compile(r"\b(?:__kernel|kernel)\b")}
_TOKEN = re.compile(r"\w+|::|[^\s\w]")
# words that say nothing of what is handed over, and those of functions that take parentheses before the name
_QUALIFIERS = frozenset((
    "const", "volatile", "restrict", "__restrict__", "__restrict", "__grid_constant__", "global", "__global",
    "constant", "__constant", "private", "__private", "register", "struct", "union", "enum", "signed", "int",
))  # fmt: skip
_WITH_PARENTHESES = frozenset((
    "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__attribute__", "__declspec",
    "alignas",
))  # fmt: skip
_OBJECTS = frozenset((
    "image1d_t", "image2d_t", "image3d_t", "sampler_t", "pipe", "event_t", "queue_t",
))  # fmt: skip

_COMMON = {
    "char": "i8", "unsigned char": "u8", "short": "i16", "unsigned short": "u16", "": "i32", "unsigned": "u32",
    "float": "f32", "double": "f64", "size_t": "u64", "ptrdiff_t": "i64", "intptr_t": "i64", "uintptr_t": "u64",
    "half": "f16",
    **{f"int{n}_t": f"i{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}_t": f"u{n}" for n in (8, 16, 32, 64)},
    **{name: name for name in DTYPES},
}  # fmt: skip
# `long` is what the host's compiler makes of it
_LONG = np.dtype("l").itemsize * 8
_SCALARS = {
    "cuda": _COMMON | {
        "long": f"i{_LONG}", "unsigned long": f"u{_LONG}", "long long": "i64", "unsigned long long": "u64",
        "bool": "bool", "__half": "f16", "__nv_bfloat16": "bf16",
    },
    "opencl": _COMMON | {
        "long": "i64", "unsigned long": "u64", "uchar": "u8", "ushort": "u16", "uint": "u32", "ulong": "u64",
    },
}  # fmt: skip
_VECTORS = {
    "cuda": re.compile(r"(u?char|u?short|u?int|float|double|u?longlong)([1-4])"),
    "opencl": re.compile(r"(u?char|u?short|u?int|float|double|u?long|half)([2348]|16)"),
}
_ELEMENTS = {
    "char": "i8", "uchar": "u8", "short": "i16", "ushort": "u16", "int": "i32", "uint": "u32", "float": "f32",
    "double": "f64", "longlong": "i64", "ulonglong": "u64", "long": "i64", "ulong": "u64", "half": "f16",
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    `kind`: "array" is a pointer to memory of the device, "local" one to shared memory of the launch (OpenCL),
    "number" a scalar, "vector" some of them (`lanes` of them are taken, `stored` are handed over), "structure" anything
    else by value. `dtype`: of the number, of a vector's, or of what an array has; None if that is not known.
    """

    name: str
    text: str
    kind: str
    dtype: str | None = None
    is_const: bool = False
    lanes: int = 1
    stored: int = 1


def parameters(text: str, language: str, macros: Mapping[str, str] | None = None) -> tuple[Parameter, ...]:
    """The parameters of a list as C writes it, without its parentheses. Raises InvalidArgument."""
    words = _expanded(_without_comments(text), macros or {})
    parts = [part.strip() for part in _split(words)]
    if parts in ([""], ["void"]):
        return ()
    return tuple(_parameter(part, language, number) for number, part in enumerate(parts))


def signatures(
    text: str, language: str, macros: Mapping[str, str] | None = None
) -> dict[str, tuple[Parameter, ...] | None]:
    """The parameters of each kernel of a text, by its name; None where they cannot be read, or differ from place to
    place.
    """
    plain = _without_comments(text)
    known = dict(macros or {}) | _defined(plain)
    found: dict[str, tuple[Parameter, ...] | None] = {}
    for start in _KERNEL[language].finditer(plain):
        name, inside = _declarator(plain, start.end())
        if name is None:
            continue
        name = known.get(name, name)
        try:
            read: tuple[Parameter, ...] | None = parameters(inside, language, known)
        except InvalidArgument:
            read = None
        if name in found and found[name] != read:
            read = None
        found[name] = read
    return found


def _parameter(text: str, language: str, number: int) -> Parameter:
    tokens = _TOKEN.findall(re.sub(r"__attribute__\s*\(\(.*?\)\)|alignas\s*\(.*?\)", " ", text))
    stars = tokens.count("*") + tokens.count("[")
    if "&" in tokens or "..." in "".join(tokens):
        raise InvalidArgument(f"the parameter {text!r} is no value and no pointer: a kernel cannot take it")
    words = [token for token in tokens if re.fullmatch(r"\w+", token) and not token.isdigit()]
    name = f"argument {number}"
    scalars, types = _SCALARS[language], _SCALARS[language].keys() | _QUALIFIERS | _words(language)
    # the last word is the name, unless it is all that there is of a type
    is_type = words and (words[-1] in types or _VECTORS[language].fullmatch(words[-1]))
    if len(words) > 1 and not is_type:
        name = words.pop()
    said = " ".join(text.split())
    plain = [word for word in words if word not in _QUALIFIERS]
    is_local = bool({"local", "__local", "__shared__"} & set(words))
    plain = [word for word in plain if word not in ("local", "__local", "__shared__")]
    order = sorted(plain, key=lambda word: {"unsigned": 0, "long": 1}.get(word, 2))
    kind_of = " ".join(order)
    is_number = kind_of in scalars and bool(plain or {"int", "signed"} & set(words)) and "::" not in tokens
    dtype = scalars[kind_of] if is_number else None
    is_const = "const" in words or bool({"constant", "__constant"} & set(words))
    if not words:
        raise InvalidArgument(f"the parameter {text!r} has no type")
    if set(words) & _OBJECTS:
        raise InvalidArgument(
            f"the parameter {text!r} is an image or a sampler, of which there are none here"
        )
    if stars:
        vector = _VECTORS[language].fullmatch(kind_of)
        element = (_ELEMENTS[vector[1]] if vector else dtype) if stars == 1 else None
        return Parameter(name, said, "local" if is_local else "array", element, is_const)
    vector = _VECTORS[language].fullmatch(kind_of)
    if vector:
        lanes = int(vector[2])
        stored = 4 if lanes == 3 and language == "opencl" else lanes
        return Parameter(name, said, "vector", _ELEMENTS[vector[1]], lanes=lanes, stored=stored)
    return Parameter(name, said, "number" if dtype else "structure", dtype)


def _words(language: str) -> frozenset[str]:
    return frozenset(word for name in _SCALARS[language] for word in name.split())


def _declarator(text: str, start: int) -> tuple[str | None, str]:
    """The name of the function whose declaration goes on at `start`, and its list of parameters."""
    position = start
    last = None
    while position < len(text):
        token = _TOKEN.search(text, position)
        if token is None or token[0] in ";{}":
            break
        if token[0] == "(":
            end = _closing(text, token.start())
            if last is not None and last not in _WITH_PARENTHESES:
                return last, text[token.end() : end]
            position, last = end + 1, None
            continue
        if re.fullmatch(r"\w+", token[0]):
            last = token[0]
        position = token.end()
    return None, ""


def _closing(text: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if not depth:
            return position
    return len(text)


def _split(text: str) -> list[str]:
    """The parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


_NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


def _without_comments(text: str) -> str:
    """The text without comments and the contents of strings; what is left stays in its line."""
    return _NOT_CODE.sub(lambda found: " " + "\n" * found[0].count("\n"), text)


def _defined(text: str) -> dict[str, str]:
    """Names that stand for others by #define without parameters, typedef or using, as far as that is plain to see."""
    found = dict(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w \t*]+?)[ \t]*$", text, re.MULTILINE))
    found.update((name, kind) for kind, name in re.findall(r"\btypedef\s+([\w\s]+?)\s+(\w+)\s*;", text))
    found.update(re.findall(r"\busing\s+(\w+)\s*=\s*([\w\s]+?)\s*;", text))
    return {name: kind for name, kind in found.items() if kind.split()[:1] != ["struct"]}


def _expanded(text: str, macros: Mapping[str, str]) -> str:
    for _ in range(8):  # names of names, and no end where one stands for itself
        made = re.sub(r"\b[A-Za-z_]\w*\b", lambda found: macros.get(found[0], found[0]), text)
        if made == text:
            break
        text = made
    return text
