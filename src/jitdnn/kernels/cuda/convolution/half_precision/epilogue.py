"""How a kernel applies an epilogue: its functions, and macros that carry coordinates to the store.

The kernels know an output by (n, channel, d, h, w). `FINISH` makes a finished number of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.half_precision.shape import Defines
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source
from jitdnn.problems.convolution import Convolution

_OPERANDS = 3  # of a convolution: those of the epilogue follow


def pointers_of(epilogue: Epilogue | None) -> int:
    """Pointers that a kernel takes."""
    return _OPERANDS + (len(epilogue.operands) if epilogue else 0)


def in_kernel(problem: Convolution, epilogue: Epilogue | None) -> tuple[str, Defines]:
    """Functions, and macros for a kernel that stores by itself: FINISH(sum, n, c, d, h, w)."""
    code = epilogue_source(epilogue, problem.output, "f32", _OPERANDS)
    index = _index(problem, ("(n)", "(c)", "(d)", "(h)", "(w)"))
    return code.functions, {
        "EPILOGUE_PARAMETERS": code.parameters,
        "FINISH(sum, n, c, d, h, w)": f"({code.apply('(sum)', index)})",
    }


def in_store(
    problem: Convolution, epilogue: Epilogue | None, arguments: Sequence[str]
) -> tuple[str, Defines]:
    """Functions, and macros for a kernel that stores by `store_channels`.

    `arguments`: what (n, d, h, w) are called where it is called.
    """
    code = epilogue_source(epilogue, problem.output, "f32", _OPERANDS)
    names = ("at_n", "at_d", "at_h", "at_w")
    index = _index(problem, (names[0], "(k)", *names[1:]))
    operands = "".join(f", e{number}" for number in range(_OPERANDS, pointers_of(epilogue)))
    parameters = "".join(f", int {name}" for name in names) + code.parameters if epilogue else ""
    return code.functions, {
        "EPILOGUE_PARAMETERS": code.parameters,
        "COORDINATE_PARAMETERS": parameters,
        "COORDINATE_ARGUMENTS": "".join(f", {name}" for name in arguments) + operands if epilogue else "",
        "FINISH(sum, k)": f"({code.apply('(sum)', index)})",
    }


def _index(problem: Convolution, five: Sequence[str]) -> list[str]:
    """The indices along the axes that the problem has, of those along (n, channel, d, h, w)."""
    rank = len(problem.spatial)
    return [*five[:2], *five[5 - rank :]]
