"""What every op does alike: borrow the arrays, find or make the plan, allocate the result, run.

The first call of a kind makes the problem, asks the handle for its plan and remembers both under a key of
what was given as it was given: the arrays' own shapes, strides and dtypes, the arguments, the settings. Every
later call of that kind is one look-up in a dictionary. Nothing is read from an array but its address.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.handle import Handle, current_handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems.problem import COMPUTE_DTYPES, Problem
from jitdnn.settings import parse_bytes
from jitdnn.tensor import (
    DTYPES,
    Array,
    TensorDescriptor,
    allocator,
    borrow,
    canonical_layout,
    packed_strides,
    require_writable,
)


class _Setting(enum.Enum):
    SETTING = "the setting in force"

    def __repr__(self) -> str:
        return "SETTING"


#: default of arguments that a setting decides where they are not given
SETTING: Final = _Setting.SETTING
WorkspaceLimit = int | str | None | _Setting

# kinds of calls that a handle remembers; a program with ever new shapes starts over rather than grow
_REMEMBERED_CALLS = 4096
# steps that the search for memory shared by an input and the output may take
_OVERLAP_WORK = 100_000


class Recipe(NamedTuple):
    """What an op makes of its arguments: the problem, its epilogue, and the order of axes the caller sees.

    `axes` permutes the axes of the problem's output into the caller's (None: as they are).
    """

    problem: Problem
    epilogue: Epilogue | None = None
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One public function as the call layer sees it.

    `make(inputs, out, *arguments)` returns the recipe for the descriptors of the inputs and of `out` (None:
    choose it). `in_place`: the inputs, by position, that may be the very memory of the output, because each
    element is read before its own place is written. `is_broadcast_to_out`: the shape of `out` takes part in
    the shape rule.
    """

    make: Callable[..., Recipe]
    in_place: tuple[int, ...] = ()
    is_broadcast_to_out: bool = False


class _Call:
    """A kind of call, ready to run again."""

    __slots__ = (
        "allocate",
        "cleared",
        "in_place",
        "inputs",
        "operands",
        "output",
        "plan",
        "reaches",
    )

    def __init__(self, recipe: Recipe, plan: Plan | None, library: str, in_place: Sequence[int]) -> None:
        self.plan = plan
        self.inputs = len(recipe.problem.inputs)
        self.output = recipe.problem.output
        fused = recipe.epilogue.operands if recipe.epilogue is not None else ()
        self.operands = (*(operand.descriptor for operand in recipe.problem.inputs), *fused)
        self.in_place = {*in_place, *range(self.inputs, len(self.operands))}
        self.reaches = [_reach(operand) for operand in (*self.operands, self.output)]
        self.allocate = allocator(library, _seen(self.output, recipe.axes))
        # (operand, distance of the addresses) of operands that were found apart from the output
        self.cleared: set[tuple[int, int]] = set()


def call(
    op: Op,
    names: Sequence[str],
    arrays: Sequence[Any],
    arguments: tuple[Any, ...],
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    handle: Handle | None = None,
    algorithm: str | None = None,
    workspace_limit: WorkspaceLimit = SETTING,
    unkeyed: Any = None,
) -> Any:
    """Run `op` on `arrays`, called `names` in errors, and return the result: `out`, or a new array.

    `arguments` go to `op.make` and are part of the key; so are the arrays' layouts, the settings, `algorithm`
    and `workspace_limit`. `unkeyed` goes to `op.make` last and is not: what stands for it in `arguments` must
    differ where it does. The result is alpha * op(arrays) + beta * out.
    """
    if handle is None:
        handle = current_handle()
    values = handle.settings
    borrowed = [borrow(x, False, name) for x, name in zip(arrays, names, strict=True)]
    target = None
    if out is not None:
        target = borrow(out, False, "out")
        require_writable(target)
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = _scale("alpha", alpha), _scale("beta", beta)

    layouts = [array.key for array in borrowed]
    if target is not None:
        layouts.append(target.key)
    key = (op, values.serial, algorithm, workspace_limit, target is None, arguments, *layouts)
    try:
        known: _Call | None = handle.calls.get(key)
    except TypeError:
        # lists where tuples would do, as stride=[2, 2]
        arguments = _hashable(arguments)
        key = (op, values.serial, algorithm, workspace_limit, target is None, arguments, *layouts)
        known = handle.calls.get(key)
    if known is None:
        known = _prepare(op, names, borrowed, target, arguments, unkeyed, handle, algorithm, workspace_limit)
        if len(handle.calls) >= _REMEMBERED_CALLS:
            handle.calls.clear()
        handle.calls[key] = known

    if target is None:
        if beta != 0.0:
            raise InvalidArgument(
                f"beta is {beta} and no out is given: beta scales what out holds before the call"
            )
        out, target = known.allocate()
    else:
        _require_apart(known, names, borrowed, target)
    if known.plan is not None:
        pointers = [array.pointer for array in borrowed]
        pointers.insert(known.inputs, target.pointer)
        handle.run(known.plan, pointers, alpha, beta)
    return out


def _scale(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidType(f"{name} is {value!r}: it must be a number") from None


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, np.ndarray):
        return _hashable(value.tolist())
    if not isinstance(value, Hashable):
        raise InvalidType(f"{value!r} cannot be an argument here: pass numbers, text or sequences of numbers")
    return value


def _prepare(
    op: Op,
    names: Sequence[str],
    borrowed: Sequence[Array],
    target: Array | None,
    arguments: tuple[Any, ...],
    unkeyed: Any,
    handle: Handle,
    algorithm: str | None,
    workspace_limit: WorkspaceLimit,
) -> _Call:
    _check_dtypes([*names, "out"], [*borrowed, target] if target is not None else borrowed)
    inputs = [array.descriptor for array in borrowed]
    given = None if target is None else target.descriptor
    last = () if unkeyed is None else (unkeyed,)
    if given is not None and not op.is_broadcast_to_out:
        free = op.make(inputs, None, *arguments, *last)
        shape = _seen(free.problem.output, free.axes).shape
        if given.shape != shape:
            raise InvalidShape(f"out has shape {given.shape}: the result has {shape}, and they must be equal")
    recipe = op.make(inputs, given, *arguments, *last)
    request = Request.of(handle.settings, algorithm)
    if workspace_limit is not SETTING:
        request = replace(request, workspace_limit=parse_bytes(workspace_limit))
    # an empty result needs no kernel, but it is checked like every other
    is_empty = recipe.problem.output.size == 0
    plan = None if is_empty else handle.plan(recipe.problem, request, recipe.epilogue)
    return _Call(recipe, plan, borrowed[0].library, op.in_place)


def _check_dtypes(names: Sequence[str], borrowed: Sequence[Array]) -> None:
    first = borrowed[0].descriptor.dtype
    for name, array in zip(names, borrowed, strict=False):
        dtype = array.descriptor.dtype
        if dtype not in COMPUTE_DTYPES:
            raise InvalidType(f"{name} is {dtype}: it must be f32 or f64 (float32 or float64)")
        if dtype != first:
            raise InvalidType(f"{names[0]} is {first} and {name} is {dtype}: they must be of one dtype")


def _seen(descriptor: TensorDescriptor, axes: tuple[int, ...] | None) -> TensorDescriptor:
    return descriptor if axes is None else descriptor.transpose(axes)


def _require_apart(known: _Call, names: Sequence[str], borrowed: Sequence[Array], target: Array) -> None:
    """Refuse an output that shares memory with an input, unless that is safe: the same elements in place."""
    low, high = known.reaches[-1]
    start, end = target.pointer + low, target.pointer + high
    for position, array in enumerate(borrowed):
        low, high = known.reaches[position]
        if array.pointer + low >= end or array.pointer + high <= start:
            continue
        distance = target.pointer - array.pointer
        if (position, distance) in known.cleared:
            continue
        same = distance == 0 and known.operands[position] == known.output
        if not (same and position in known.in_place) and _is_shared(array, target):
            can = ", or the very same view" if position in known.in_place else ""
            raise InvalidArgument(
                f"out shares memory with {names[position]}, which would be overwritten before it is read: "
                f"pass another out{can}"
            )
        known.cleared.add((position, distance))


def _reach(descriptor: TensorDescriptor) -> tuple[int, int]:
    """The bytes that are touched, relative to the pointer: first, and one behind the last."""
    itemsize = DTYPES[descriptor.dtype]
    low, high = descriptor.span()
    return low * itemsize, (high + 1) * itemsize


def _is_shared(first: Array, second: Array) -> bool:
    try:
        # the stubs know only two of the values that max_work takes
        return np.shares_memory(first.numpy(), second.numpy(), max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def logical_axes(layout: str | None, rank: int) -> tuple[int, ...] | None:
    """Return the permutation from the caller's axes to (N, C, space), None if they are that already.

    `layout` is None or a channels-first name for (N, C, space), a channels-last one for (N, space, C).
    """
    if layout is None or canonical_layout(layout, rank) == "nchw" or rank < 3:
        return None
    return (0, rank - 1, *range(1, rank - 1))


def callers_axes(layout: str | None, rank: int) -> tuple[int, ...] | None:
    """Return the permutation from (N, C, space) to the caller's axes: the inverse of `logical_axes`."""
    if logical_axes(layout, rank) is None:
        return None
    return (0, *range(2, rank), 1)


def logical(descriptor: TensorDescriptor, layout: str | None) -> TensorDescriptor:
    """Return a caller's descriptor with its axes as (N, C, space)."""
    axes = logical_axes(layout, len(descriptor.shape))
    return descriptor if axes is None else descriptor.transpose(axes).normalized()


def logical_shape(shape: Any, layout: str | None, name: str) -> tuple[int, ...]:
    """Return a shape that the caller gave in the order of `layout` as (N, C, space). Raises InvalidShape."""
    try:
        extents = tuple(int(n) for n in shape)
    except (TypeError, ValueError):
        raise InvalidShape(f"{name} is {shape!r}: it must be a sequence of whole numbers") from None
    axes = logical_axes(layout, len(extents))
    return extents if axes is None else tuple(extents[axis] for axis in axes)


def packed_like(like: TensorDescriptor, shape: Sequence[int]) -> TensorDescriptor:
    """Return the dense descriptor of `shape` with channels first or last, whichever `like` is nearer to."""
    return TensorDescriptor.packed(shape, like.dtype, like.nearest_layout)


def same_order(like: TensorDescriptor) -> TensorDescriptor:
    """Return the dense descriptor of the shape of `like` with its axes in the same order in memory."""
    return TensorDescriptor(like.shape, packed_strides(like.shape, like.order), like.dtype)
