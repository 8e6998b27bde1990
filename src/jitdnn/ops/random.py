"""Arrays filled with random numbers that follow from a state: uniform, normal, Bernoulli."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import LAYOUT, as_key, extents, optional, real, settled_before, shown, word
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call
from jitdnn.ops.dropout import DropoutState
from jitdnn.ops.to_device import beside, is_for_gpu, to_device
from jitdnn.problems.random import DISTRIBUTIONS, Random
from jitdnn.tensor import COMMON_DTYPES, TensorDescriptor


def uniform(
    shape: Sequence[int] | int | None,
    low: float,
    high: float,
    state: DropoutState,
    dtype: str = "f32",
    layout: str = "nchw",
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return numbers evenly distributed from `low` to below `high` (rounding may reach it), a NumPy array; a
    `DeviceArray` where the handle or the setting `target` is for a GPU.

    `shape`: 1 to 8 extents; `dtype`: "f16", "bf16", "f32" or "f64"; `layout`: the order in memory. With `out`
    that array is filled, and shape, dtype and layout are its own (pass None as the shape). The numbers follow
    from `state` and the logical index, whatever the order in memory; `state` goes on to its next ones.

    Raises InvalidShape, InvalidType, and InvalidArgument for parameters that no such distribution has.
    """
    return _fill("uniform", shape, low, high, state, dtype, layout, out, handle)


def normal(
    shape: Sequence[int] | int | None,
    mean: float,
    std: float,
    state: DropoutState,
    dtype: str = "f32",
    layout: str = "nchw",
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return normally distributed numbers of this mean and standard deviation; arguments as for `uniform`.

    The last digits may differ between processors.
    """
    return _fill("normal", shape, mean, std, state, dtype, layout, out, handle)


def bernoulli(
    shape: Sequence[int] | int | None,
    p: float,
    state: DropoutState,
    dtype: str = "f32",
    layout: str = "nchw",
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return 1 with probability `p`, else 0; arguments as for `uniform`."""
    return _fill("bernoulli", shape, p, 0.0, state, dtype, layout, out, handle)


def _fill(
    distribution: str,
    shape: Sequence[int] | int | None,
    a: float,
    b: float,
    state: DropoutState,
    dtype: str,
    layout: str,
    out: Any,
    handle: Handle | None,
) -> Any:
    if not isinstance(state, DropoutState):
        raise InvalidArgument(f"the state is {shown(state)}: make one with DropoutState(seed)")
    if (shape is None) == (out is None):
        raise InvalidArgument("give a shape or out, and not both: out has a shape of its own")
    if isinstance(shape, int):
        shape = (shape,)
    arguments = (distribution, a, b, as_key(shape), dtype, layout)
    words: Any = state.words()
    if out is not None:
        words = beside(words, out)
    elif is_for_gpu(handle):
        words = to_device(words, handle=handle)
    result = call(_FILL[distribution], ("state",), (words,), arguments, out, handle=handle)
    state.advance()
    return result


def _make(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    distribution: str,
    a: float,
    b: float,
    shape: tuple[int, ...],
    dtype: str,
    layout: str,
) -> Recipe:
    return Recipe(Random.make(distribution, out or shape, a, b, dtype, layout))


_TAKES = {
    name: (
        settled_before("distribution"),
        *(real(parameter) for parameter in parameters),
        *(settled_before("b") for _ in range(2 - len(parameters))),
        optional(extents("shape")),
        word("dtype", COMMON_DTYPES),
        LAYOUT,
    )
    for name, parameters in DISTRIBUTIONS.items()
}
_FILL = {
    name: Op(_make, takes, is_broadcast_to_out=True) for name, takes in _TAKES.items()
}  # out decides its own shape and dtype
