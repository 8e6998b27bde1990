"""The cost of an epilogue after the products of a tile, in instructions for each result."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.warpgroup.plan import NO_FINISH, Finish
from jitdnn.rtcg.rough import NO_SHORTCUTS, shortcuts
from jitdnn.tensor import DTYPES

_RESULT = 4.0  # alpha, and what is stored
_VECTOR = 12.0  # of an operand as large as the result
_BROUGHT = 2.0  # of one that the copy engine brings
_NUMBER = 1.0  # of one with a number for each channel or pixel
_STEP = 1.0
_STEPS = {
    "maximum": 2.0, "minimum": 2.0, "where": 2.0, "divide": 10.0, "sqrt": 8.0, "exp": 6.0, "exp2": 4.0, "log": 10.0,
    "sigmoid": 16.0, "tanh": 14.0, "erf": 26.0, "upper_tail": 40.0, "log1pexp": 40.0, "power": 60.0,
}  # fmt: skip
_ROUGH_STEPS = {"maximum": 1.0, "minimum": 1.0, "upper_tail": 14.0}
_ROUGH_GELU = 18.0


def finish_of(epilogue: Epilogue | None, result: str) -> Finish:
    """The cost of an epilogue of results of this type."""
    if epilogue is None:
        return NO_FINISH
    expression = epilogue.expression
    short = shortcuts(expression) if DTYPES[result] == 2 else NO_SHORTCUTS
    _, uses = short.uses(expression)
    count = _RESULT
    for position, step in enumerate(expression.instructions):
        if not uses[position] or step.operation in ("input", "constant"):
            continue
        if position in short.gelu:
            count += _ROUGH_GELU
        elif position in short.factors:
            count += _STEP
        else:
            count += (_ROUGH_STEPS if step.operation in short.functions else _STEPS).get(
                step.operation, _STEP
            )
    nbytes, whole = 0, []
    for tensor in epilogue.operands:
        is_whole = all(
            stride or extent == 1 for stride, extent in zip(tensor.strides, tensor.shape, strict=True)
        )
        count += _VECTOR if is_whole else _NUMBER
        nbytes += tensor.size * DTYPES[tensor.dtype] if is_whole else 0
        whole += [tensor.dtype] if is_whole else []
    return Finish(count, nbytes, _VECTOR - _BROUGHT if whole == [result] else 0.0)
