"""Expressions as functions in the plain C that CUDA and OpenCL share (see kernels/gpu/prelude/plain.h).

`c_function` prints one; it brings along, once in a text, the functions that C lacks. Constants are printed exactly.
"""

from __future__ import annotations

import functools
import math
from importlib.resources import files

import numpy as np

from jitdnn.errors import InvalidType
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.normal_series import FARTHEST, tail_centre, tail_polynomial
from jitdnn.rtcg.operations import OPERATIONS
from jitdnn.rtcg.rough import NO_SHORTCUTS, shortcuts

_SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "equal": "==", "not_equal": "!=", "logical_and": "&&", "logical_or": "||",
}  # fmt: skip
# functions of C, which both languages have for f32 and f64
_NAMES = {
    "absolute": "fabs", "sqrt": "sqrt", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "tanh": "tanh", "erf": "erf", "floor": "floor", "ceil": "ceil",
    "trunc": "trunc", "rint": "rint", "sin": "sin", "cos": "cos", "tan": "tan", "arctan": "atan",
    "arctan2": "atan2", "power": "pow", "fmod": "fmod",
}  # fmt: skip
_OWN = frozenset(
    {
        *("minimum", "maximum", "sign", "sigmoid", "log1pexp", "normal_density", "upper_tail", "remainder"),
        "floor_divide",
    }
)
_OWN_WHOLE = frozenset(
    {
        *(
            "add",
            "subtract",
            "multiply",
            "negative",
            "absolute",
            "minimum",
            "maximum",
            "sign",
            "divide",
            "fmod",
        ),
        *("remainder", "floor_divide", "power"),
    }
)
_SAME_WHOLE = frozenset({"floor", "ceil", "trunc", "rint"})


def c_constant(value: float, dtype: str) -> str:
    """A number as C writes it, rounded to `dtype` ("f32", "f64" or "i64") and otherwise exact."""
    if dtype == "i64":
        whole = (int(value) + 2**63) % 2**64 - 2**63
        return "(-9223372036854775807 - 1)" if whole == -(2**63) else f"((i64){whole})"
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value)) if dtype == "f32" else value
    if math.isnan(rounded) or math.isinf(rounded):
        bits = "0x7fc00000u" if math.isnan(rounded) else "0x7f800000u" if rounded > 0 else "0xff800000u"
        return f"(({dtype})f32_of_bits({bits}))"
    text = str(np.float32(value)) if dtype == "f32" else repr(rounded)
    text += "f" if dtype == "f32" else ""
    return f"({text})" if text.startswith("-") else text


def c_library(dtype: str) -> str:
    """The functions of the language that C lacks, in arithmetic of `dtype`; only the first copy in a text counts."""
    guard = f"EXPRESSIONS_IN_{dtype}"
    return f"#ifndef {guard}\n#define {guard}\n{_library(dtype)}#endif\n"


@functools.cache
def _library(dtype: str) -> str:
    package = files("jitdnn.rtcg")
    if dtype == "i64":
        return package.joinpath("c_integers.h").read_text("utf-8")
    *lower, highest = tail_polynomial(dtype)
    polynomial = c_constant(highest, dtype)
    for coefficient in reversed(lower):
        polynomial = f"fma({polynomial}, t, {c_constant(coefficient, dtype)})"
    text = package.joinpath("c_functions.h").read_text("utf-8")
    for name, value in (
        ("TAIL_FARTHEST", repr(FARTHEST)),
        ("TAIL_CENTRE", repr(tail_centre(dtype))),
        ("TAIL_POLYNOMIAL", polynomial),
        ("REAL", dtype),
    ):
        text = text.replace(name, value)
    return text


def c_function(expression: Expression, name: str, dtype: str, is_rough: bool = False) -> str:
    """The text of `FUNCTION dtype name(dtype x0, dtype x1, ...)`, a parameter for each input of the expression.

    `dtype` is the arithmetic: "f32", "f64", or "i64" for integers that wrap; conditions are `int`. `is_rough`: of f32
    in CUDA C++, for results of 16 bits (`rough.py`). Raises InvalidType for an operation that integers lack.
    """
    short = shortcuts(expression) if is_rough and dtype == "f32" else NO_SHORTCUTS
    reads, uses = short.uses(expression)
    lines: list[str] = []
    texts: list[str] = []
    for position, step in enumerate(expression.instructions):
        read = [texts[argument] for argument in reads[position]]
        if not uses[position]:
            text = ""
        elif step.operation == "input":
            text = f"x{step.arguments[0]}"
        elif step.operation == "constant":
            text = c_constant(step.number, dtype)
        else:
            if position in short.gelu:
                text = f"gelu_rough({read[0]})"
            elif position in short.factors:
                text = f"({read[0]} * {c_constant(short.factors[position], dtype)})"
            elif step.operation in short.functions:
                text = f"{step.operation}_rough({', '.join(read)})"
            else:
                text = _operation(step.operation, read, dtype)
            # what is used again has a name, and so has what gets long
            if uses[position] > 1 or len(text) > 100:
                kind = "int" if OPERATIONS[step.operation].is_truth else dtype
                lines.append(f"  const {kind} t{position} = {text};\n")
                text = f"t{position}"
        texts.append(text)
    parameters = ", ".join(f"{dtype} x{number}" for number in range(expression.arity)) or "void"
    body = "".join(lines)
    library = c_library(dtype) + (_rough_library() if short.has_functions(expression) else "")
    return f"{library}FUNCTION {dtype} {name}({parameters}) {{\n{body}  return {texts[-1]};\n}}\n"


@functools.cache
def _rough_library() -> str:
    text = files("jitdnn.rtcg").joinpath("c_rough.h").read_text("utf-8")
    return f"#ifndef ROUGH_FUNCTIONS\n#define ROUGH_FUNCTIONS\n{text}#endif\n"


def _operation(name: str, arguments: list[str], dtype: str) -> str:
    if name == "where":
        return f"({arguments[0]} ? {arguments[1]} : {arguments[2]})"
    if name == "logical_not":
        return f"(!{arguments[0]})"
    if dtype == "i64" and not OPERATIONS[name].is_truth:
        if name in _SAME_WHOLE:
            return arguments[0]
        if name not in _OWN_WHOLE:
            raise InvalidType(f"{name} of integers is no integer: give operands or a result of a real type")
    elif name in _SIGNS:
        return f"({arguments[0]} {_SIGNS[name]} {arguments[1]})"
    elif name == "negative":
        return f"(-{arguments[0]})"
    elif name not in _OWN:
        return f"{_NAMES[name]}({', '.join(arguments)})"
    return f"{name}_{dtype}({', '.join(arguments)})"
