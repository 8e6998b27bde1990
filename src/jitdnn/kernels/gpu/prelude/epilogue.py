"""Epilogues as pieces of text, for kernels in plain C and in CUDA C++ alike.

    code = epilogue_source(epilogue, problem.output, "f32", first=3)        # epilogue may be None
    text = code.functions + "KERNEL(256) void f(GLOBAL const f32 *x, ..., GLOBAL f32 *y" + code.parameters + ", ..."
    code.apply("acc", ["n", "c", "h", "w"])     # -> "epilogue(acc, (f32)load_f32(e3, (i64)(c) * 1))"

`functions` goes before the kernel, `parameters` directly behind the parameters of the problem's own operands (the
planner passes the epilogue's pointers there), and `apply` makes the C expression of one finished element from that of
the accumulator and those of the element's index along every axis of the output. Operands of any type lie in memory as
their strides say, which are written into the text; the caller does alpha, beta and the store. `apply` reads memory:
call it only for elements that there are.

Only LOAD-like functions of plain.h are used, which both dialects have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.errors import InvalidArgument
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.gpu.prelude.types import storage_type
from jitdnn.rtcg.c_source import c_function
from jitdnn.tensor import TensorDescriptor


@dataclass(frozen=True)
class EpilogueCode:
    """The pieces of text of one epilogue."""

    functions: str
    parameters: str
    dtype: str  # of the arithmetic
    operands: tuple[TensorDescriptor, ...]
    first: int  # number of the first operand

    def apply(self, accumulator: str, indices: Sequence[str]) -> str:
        """The C expression of the result at an element: `indices` are C expressions, one for each axis."""
        if not self.functions:
            return accumulator
        values = [accumulator]
        for number, operand in enumerate(self.operands, self.first):
            terms = [
                f"(i64)({index}) * {stride}"
                for index, stride, extent in zip(indices, operand.strides, operand.shape, strict=True)
                if stride and extent > 1
            ]
            offset = " + ".join(terms) or "0"
            values.append(f"({self.dtype})load_{operand.dtype}(e{number}, {offset})")
        return f"epilogue({', '.join(values)})"


def epilogue_source(
    epilogue: Epilogue | None, output: TensorDescriptor, dtype: str, first: int = 0, is_rough: bool = False
) -> EpilogueCode:
    """The text of an epilogue over accumulators of `dtype` ("f32" or "f64"); for None, one that does nothing.

    Its operands are called e<first>, e<first + 1> and so on. `is_rough`: in CUDA C++, for results of 16 bits. Raises
    InvalidArgument for operands of another shape than the output's.
    """
    if epilogue is None:
        return EpilogueCode("", "", dtype, (), first)
    for operand in epilogue.operands:
        if operand.shape != output.shape:
            raise InvalidArgument(
                f"an operand of the epilogue has shape {operand.shape}: it must be the output's, {output.shape}"
            )
    parameters = "".join(
        f", GLOBAL const {storage_type(operand.dtype)} *e{number}"
        for number, operand in enumerate(epilogue.operands, first)
    )
    functions = c_function(epilogue.expression, "epilogue", dtype, is_rough)
    return EpilogueCode(functions, parameters, dtype, epilogue.operands, first)
