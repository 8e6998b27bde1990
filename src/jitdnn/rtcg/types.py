"""LLVM's types of what traced kernels compute with, and their names."""

from __future__ import annotations

import functools
import math

import llvmlite.ir as ir

INT = ir.IntType(64)
INT32 = ir.IntType(32)
BOOL = ir.IntType(1)
POINTER = ir.PointerType()
#: what an element is in a register; numbers of 8 and 16 bits are there in f32
ELEMENTS: dict[str, ir.Type] = {
    "f8e4m3": ir.FloatType(),
    "f8e5m2": ir.FloatType(),
    "f16": ir.FloatType(),
    "bf16": ir.FloatType(),
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "i64": INT,
    "u64": INT,
    "i32": INT32,
    "u32": INT32,
    "i16": ir.IntType(16),
    "u16": ir.IntType(16),
    "i8": ir.IntType(8),
    "u8": ir.IntType(8),
    "bool": ir.IntType(8),
    "pointer": POINTER,
}
#: what it is in memory, where that differs: numbers of 8 and 16 bits are moved as their bits
STORED: dict[str, ir.Type] = {
    "f8e4m3": ir.IntType(8),
    "f8e5m2": ir.IntType(8),
    "f16": ir.IntType(16),
    "bf16": ir.IntType(16),
}
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


def scalar_type(kind: ir.Type) -> ir.Type:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def vector_type(element: ir.Type, lanes: int) -> ir.Type:
    return element if lanes == 1 else ir.VectorType(element, lanes)


def is_integer(kind: ir.Type) -> bool:
    return isinstance(scalar_type(kind), ir.IntType)


def constant_of(kind: ir.Type, value: float) -> ir.Constant:
    """A number, in every lane of a vector."""
    if is_integer(kind):
        return _constant(kind, int(value), False)
    number = float(value)
    return _constant(kind, number, math.copysign(1.0, number) < 0.0)


# Constants know their own text once they have been printed. A kernel has thousands, but few different ones, and
# printing the lanes of each would take as long as tracing all the rest.


@functools.lru_cache(4096)
def _constant(kind: ir.Type, number: float, is_negative: bool) -> ir.Constant:
    # 0.0 equals -0.0, which is another constant
    return ir.Constant(kind, number)


@functools.lru_cache(4096)
def integer_lanes(width: int, numbers: tuple[int, ...]) -> ir.Constant:
    """A vector of integers of ``width`` bits."""
    return ir.Constant(ir.VectorType(ir.IntType(width), len(numbers)), list(numbers))


@functools.lru_cache(256)
def undefined(kind: ir.Type) -> ir.Constant:
    return ir.Constant(kind, ir.Undefined)


def suffix(kind: ir.Type) -> str:
    """LLVM's mangling of a type, such as "v16f32"."""
    element = scalar_type(kind)
    name = f"i{element.width}" if isinstance(element, ir.IntType) else _SUFFIX[str(element)]
    return f"v{kind.count}{name}" if isinstance(kind, ir.VectorType) else name


def align_of(element: ir.Type) -> int:
    if isinstance(element, ir.IntType):
        return max(1, int(element.width) // 8)
    return {"float": 4, "double": 8}.get(str(element), 8)
