"""What the public functions of the normalizations share: arguments that may be absent, results that may be None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, call, same_order
from jitdnn.problems.normalization import Normalization
from jitdnn.tensor import TensorDescriptor

Named = dict[str, TensorDescriptor | None]
Outs = Sequence[TensorDescriptor | None] | TensorDescriptor | None

# None among them is refused when it is borrowed
_NEEDED = frozenset({"dy", "x", "mean", "rstd", "running_mean", "running_var"})


def present(**arrays: Any) -> tuple[tuple[str, ...], list[Any]]:
    """The names and values of the arrays that are not None, in order; those that every call needs, in any case."""
    there = {name: array for name, array in arrays.items() if array is not None or name in _NEEDED}
    return tuple(there), list(there.values())


def named(names: Sequence[str], tensors: Outs) -> Named:
    """Descriptors under their names; a single one, as calls with one result give it, under the first."""
    if tensors is None or isinstance(tensors, TensorDescriptor):
        tensors = (tensors,)
    return dict(zip(names, tensors, strict=True))


def results_of(
    op: Op,
    names: Sequence[str],
    arrays: Sequence[Any],
    arguments: tuple[Any, ...],
    wanted: Sequence[bool],
    out: Any,
    alpha: float,
    beta: float,
    handle: Handle | None,
) -> tuple[Any, ...]:
    """The results of `call` as a tuple with None for those that are not `wanted`; the first always is.

    `out` is None or a tuple of as many entries.
    """
    if out is not None and not (isinstance(out, tuple) and len(out) == len(wanted)):
        raise InvalidArgument(
            f"out is {type(out).__name__}: it must be a tuple of {len(wanted)} arrays, with None for those to be "
            "allocated"
        )
    count = sum(wanted)
    if out is not None:
        out = tuple(array for array, wants in zip(out, wanted, strict=True) if wants)
        out = out[0] if count == 1 else out
    made = call(op, names, arrays, arguments, out, alpha, beta, handle, results=count)
    rest = iter(made if count > 1 else (made,))
    return tuple(next(rest) if wants else None for wants in wanted)


def describe(
    kind: type[Normalization],
    direction: str,
    given: Named,
    absent: set[str],
    **attributes: Any,
) -> Normalization:
    """The problem of the tensors that are given; results not given lie in memory as dy does, or as x."""
    x = given["x"]
    assert x is not None
    like = given.get("dy") or x
    for name in ("y", "dx", "dz"):
        if name in given and given[name] is None:
            given[name] = replace(same_order(like), dtype=x.dtype)
    weight = given.get("weight")
    is_narrow = weight is not None and weight.dtype == x.dtype
    return kind.describe(direction, x, given, absent, is_narrow, x.nearest_layout, **attributes)
