"""What every op does alike: borrow the arrays, find or make the plan, allocate the result, run.

The first call of a kind makes the problem, asks the handle for its plan and remembers both under a key of
what was given as it was given: the arrays' own shapes, strides and dtypes, the arguments, the settings. Every
later call of that kind is one look-up in a dictionary. Nothing is read from an array but its address.

On a GPU the host must be quicker than the kernels. There a call that was made before by arrays of the usual kinds is
found by a cached fast path (`gpu_call.py`), which borrows none of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from jitdnn.arguments import Argument, as_key, real_number, shown, text
from jitdnn.errors import DeviceError, InvalidArgument, InvalidShape, InvalidType
from jitdnn.handle import Handle, current_handle, settled_handle
from jitdnn.host_memory import host_memory
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.gpu_call import GpuCall, common_device, fast_call_key, run_again
from jitdnn.ops.shared_memory import is_shared, near
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems.problem import Problem
from jitdnn.settings import current, format_bytes, parse_bytes
from jitdnn.tensor import (
    Array,
    TensorDescriptor,
    allocator,
    borrow,
    canonical_layout,
    maker_of,
    packed_strides,
    require_writable,
)
from jitdnn.tensor.gpu_array import FAST_KEYS


class _Setting(enum.Enum):
    SETTING = "the setting in force"

    def __repr__(self) -> str:
        return "SETTING"

    __hash__ = object.__hash__  # Enum's own is slow, and this is part of every call's key


#: default of arguments that a setting decides where they are not given
SETTING: Final = _Setting.SETTING
WorkspaceLimit = int | str | None | _Setting

# distances between two arrays that a kind of call keeps as safe
_MOST_CLEARED = 256


class Recipe(NamedTuple):
    """What an op makes of its arguments: the problem, its epilogue, and the order of axes the caller sees.

    `axes` permutes the axes of the problem's output into the caller's (None: as they are). Of several outputs it
    concerns those that have as many.
    """

    problem: Problem
    epilogue: Epilogue | None = None
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One public function as the call layer sees it.

    `make(inputs, out, *arguments)` returns the recipe for the descriptors of the inputs and of `out` (None:
    choose it); for a call with several results or with states `out` is a tuple of such, one for each output of
    the problem. `takes` says of each of the arguments what it may be: they are held against it once for each kind
    of call, before anything is made of them, and `make` gets what that gave. `in_place`: the inputs, by position,
    that may be the very memory of the output, because each element is read before its own place is written.
    `is_broadcast_to_out`: the shape of `out` takes part in the shape rule. `keeps_filter`: w is a `KeptFilter`,
    so the plan need not count what is prepared of it.
    """

    make: Callable[..., Recipe]
    takes: tuple[Argument, ...] = ()
    in_place: tuple[int, ...] = ()
    is_broadcast_to_out: bool = False
    keeps_filter: bool = False

    def settled(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call as `takes` has them. Raises what the kinds of arguments raise."""
        return tuple(kind.settled(value) for kind, value in zip(self.takes, arguments, strict=True))


class _Call:
    """A kind of call, ready to run again."""

    __slots__ = (
        "allocate",
        "finish",
        "gpu",
        "in_place",
        "inputs",
        "near",
        "near_results",
        "operands",
        "outputs",
        "plan",
    )

    def __init__(
        self,
        recipe: Recipe,
        plan: Plan | None,
        library: str,
        in_place: Sequence[int],
        gpu: GpuCall | None = None,
    ) -> None:
        self.plan = plan
        self.gpu = gpu
        self.inputs = len(recipe.problem.inputs)
        self.outputs = recipe.problem.outputs
        fused = recipe.epilogue.operands if recipe.epilogue is not None else ()
        self.operands = (*(operand.descriptor for operand in recipe.problem.inputs), *fused)
        self.in_place = {*in_place, *range(self.inputs, len(self.operands))}
        self.near_results = [
            [near(o.descriptor, other.descriptor) for other in self.outputs[:number]]
            for number, o in enumerate(self.outputs)
        ]
        self.near = [[near(o.descriptor, other) for other in self.operands] for o in self.outputs]
        self.allocate = [
            allocator(library, seen, None if gpu is None else gpu.gpu)
            for seen in _seen_outputs(recipe, [o.descriptor for o in self.outputs])
        ]
        self.finish = maker_of(library) if gpu is None else None


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
    results: int = 1,
    states: Sequence[Any] = (),
    run: Callable[[Handle, Plan, list[int], float, float], None] | None = None,
) -> Any:
    """Run `op` on `arrays`, called `names` in errors, and return the result: `out`, or a new array.

    `arguments` go to `op.make` and are part of the key; so are the arrays' layouts, the settings, `algorithm`
    and `workspace_limit`. `unkeyed` goes to `op.make` last and is not: what stands for it in `arguments` must
    differ where it does. The result is alpha * op(arrays) + beta * out. The arrays say where it is computed: with all
    of them on a GPU it is there, on a stream that fits, and the call returns before it is done.

    Of several `results` `out` is None or a tuple, with None for those to be allocated, and a tuple is returned.
    `states` are updated in place; they are the problem's last outputs. `run` runs the plan in
    place of the handle.
    """
    if handle is None:
        handle = current_handle()
    elif type(handle) is not Handle:
        settled_handle(handle)
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = scale_factor("alpha", alpha), scale_factor("beta", beta)
    is_simple = results == 1 and not states and bool(arrays)
    if is_simple and type(arrays[0]) in FAST_KEYS:
        done = run_again(op, arrays, arguments, algorithm, workspace_limit, out, alpha, beta, handle)
        if done is not None:
            return done
    values = handle.settings
    borrowed = [borrow(x, False, name) for x, name in zip(arrays, names, strict=True)]
    is_single = results == 1 and not states
    owners = [out] if is_single else [*each_out(out, results), *states]
    targets = [None if owner is None else target_of(owner) for owner in owners]

    layouts = [array.key for array in borrowed]
    for target in targets:
        layouts.append(() if target is None else target.key)
    key = (op, values.serial, algorithm, workspace_limit, arguments, *layouts)
    try:
        known: _Call | None = handle.calls.get(key)
    except Exception:  # a list where a tuple would do, as stride=[2, 2], or what raises when it is hashed
        arguments = tuple(map(as_key, arguments))
        known = _look_up(handle, (op, values.serial, algorithm, workspace_limit, arguments, *layouts))
    if known is None:
        # the one place where arguments are looked at: those of a known call were equal to what was settled here
        arguments = op.settled(arguments)
        if algorithm is not None:
            algorithm = text(algorithm, "algorithm")
        if workspace_limit is not SETTING and not isinstance(workspace_limit, str):
            workspace_limit = parse_bytes(workspace_limit)
        key = (op, values.serial, algorithm, workspace_limit, arguments, *layouts)
        known = handle.calls.recall(key)
        if known is None:
            try:
                known = _prepare(
                    op, names, borrowed, targets, results, arguments, unkeyed, handle, algorithm, workspace_limit
                )  # fmt: skip
            except MemoryError as error:
                shapes = ", ".join(f"{n} {a.descriptor.shape}" for n, a in zip(names, borrowed, strict=True))
                raise DeviceError(
                    f"planning a call with {shapes} needs more memory than is left: free some, or compute it in parts"
                ) from error
            handle.calls.put(key, known, values.plans_limit)

    gpu = known.gpu
    if is_simple and gpu is not None and known.plan is not None and current().log != "debug":
        fast_key = fast_call_key(op, arrays, arguments, algorithm, workspace_limit, out, [])
        if fast_key is not None:
            handle.fast_calls.put(fast_key, known, values.plans_limit)
    stream = None if gpu is None else gpu.stream(handle, borrowed, targets)
    pointers = [array.pointer for array in borrowed]
    for position, target in enumerate(targets):
        if target is None:
            if beta != 0.0 and known.outputs[position].role in ("in", "out"):
                name = "out" if is_single else known.outputs[position].name
                raise InvalidArgument(
                    f"beta is {beta} and no {name} is given: beta scales what it holds before the call"
                )
            try:
                owners[position], target = known.allocate[position](stream)
            except (MemoryError, RuntimeError, ValueError) as error:
                raise no_memory(known.outputs[position].name, known.outputs[position].descriptor) from error
            targets[position] = target
        else:
            _require_apart(known, names, borrowed, position, targets, is_single)
        pointers.insert(known.inputs + position, target.pointer)
    if known.plan is not None:
        if gpu is not None:
            runner = gpu.runner(handle)
            runner.run_on_gpu(stream, known.plan, pointers, alpha, beta)
            if gpu.holds or runner.graph is not None:
                gpu.after(handle, stream, (*borrowed, *targets))
        else:
            try:
                if run is None:
                    handle.run(known.plan, pointers, alpha, beta)
                else:
                    run(handle, known.plan, pointers, alpha, beta)
            except MemoryError as error:
                raise DeviceError(
                    f"{known.plan.problem}: {error}: the memory that is left does not do"
                ) from error
    if gpu is not None and gpu.makes_jax:
        owners[:results] = map(gpu.result, owners[:results])
    elif known.finish is not None:
        given = each_out(out, results)
        owners[:results] = [
            known.finish(owner) if one is None else owner
            for owner, one in zip(owners[:results], given, strict=True)
        ]
    return owners[0] if results == 1 else tuple(owners[:results])


def each_out(out: Any, results: int) -> Sequence[Any]:
    """`out` as one entry for each result."""
    if out is None:
        return (None,) * results
    if results == 1 and not isinstance(out, tuple):
        return (out,)
    if not isinstance(out, tuple) or len(out) != results:
        raise InvalidArgument(
            f"out is {type(out).__name__}: the call has {results} results, so out must be a tuple of {results} "
            "arrays, with None for those to be allocated"
        )
    return out


def target_of(owner: Any) -> Array:
    """The memory of an `out`, which must be writable."""
    target = borrow(owner, False, "out")
    require_writable(target)
    return target


def scale_factor(name: str, value: Any) -> float:
    """An alpha or beta: any real number. Infinities and NaN take part as IEEE 754 says. Raises InvalidType for what is
    no number, InvalidArgument for one that float64 does not hold."""
    return real_number(value, name, error=InvalidType)


def _look_up(handle: Handle, key: tuple[Any, ...]) -> _Call | None:
    try:
        return handle.calls.get(key)
    except Exception:
        return None


def no_memory(name: str, tensor: TensorDescriptor | None) -> DeviceError:
    """The error for a result that there is no memory for."""
    assert tensor is not None
    if not tensor.nbytes:
        return DeviceError(
            f"{name} of shape {tensor.shape} is empty, and yet of larger extents than NumPy can make an array of"
        )
    return DeviceError(
        f"{name} of shape {tensor.shape} needs {format_bytes(tensor.nbytes)} ({tensor.nbytes} bytes), which the memory "
        "that is left does not have: free some, or compute it in parts"
    )


def require_room(results: Sequence[tuple[str, TensorDescriptor]]) -> None:
    """Refuse results, to be allocated in host memory, that the machine cannot hold. Systems that promise more memory
    than they have would grant them, and end the process as soon as they are written."""
    needed, room = sum(tensor.nbytes for _, tensor in results), host_memory()
    if needed > room:
        named = ", ".join(f"{name} of shape {tensor.shape}" for name, tensor in results)
        raise InvalidShape(
            f"{named} would take {format_bytes(needed)} ({needed} bytes): this machine has {format_bytes(room)}"
        )


def whole_array(values: Any, name: str) -> Any:
    """A list or tuple of integers as an int64 array, anything else as it is. Raises InvalidType."""
    if not isinstance(values, (list, tuple)):
        return values
    try:
        array = np.asarray(values, None if values else np.int64)
        if array.dtype.kind == "i":
            return array.astype(np.int64)
    except Exception:  # what objects in it raise, or NumPy for lists that are no array
        pass
    raise InvalidType(f"{name} is {shown(values)}: it must be an array, or integers that 64 bits hold")


def _prepare(
    op: Op,
    names: Sequence[str],
    borrowed: Sequence[Array],
    targets: Sequence[Array | None],
    results: int,
    arguments: tuple[Any, ...],
    unkeyed: Any,
    handle: Handle,
    algorithm: str | None,
    workspace_limit: WorkspaceLimit,
) -> _Call:
    inputs = [array.descriptor for array in borrowed]
    given = [None if target is None else target.descriptor for target in targets]
    known = [(name, array) for name, array in zip(names, borrowed, strict=True)]
    known += [("out", target) for target in targets if target is not None]
    device_id = common_device(known)
    runner = handle.at(device_id)
    is_single = len(targets) == 1 and results == 1
    rest = arguments if unkeyed is None else (*arguments, unkeyed)

    def make(outs: Sequence[TensorDescriptor | None]) -> Recipe:
        return op.make(inputs, outs[0] if is_single else tuple(outs), *rest)

    recipe = None
    if not op.is_broadcast_to_out:
        # first without the outputs that may be chosen: what was given must be what it would be
        chosen = [None if number < results else descriptor for number, descriptor in enumerate(given)]
        recipe = make(chosen)
        wanted = _seen_outputs(recipe, [operand.descriptor for operand in recipe.problem.outputs])
        for operand, descriptor, expected in zip(recipe.problem.outputs, given, wanted, strict=True):
            if descriptor is not None and descriptor.shape != expected.shape:
                name = "out" if is_single else operand.name
                raise InvalidShape(
                    f"{name} has shape {descriptor.shape}: the result has {expected.shape}, and they must be equal"
                )
            if (
                is_single
                and given[0] is not None
                and given[0].dtype not in (operand.dtypes or (expected.dtype,))
            ):
                if operand.dtypes and len(operand.dtypes) > 1:
                    kinds = ", ".join(operand.dtypes)
                    raise InvalidType(f"out is {given[0].dtype}: it must be one of {kinds} here")
                raise InvalidType(
                    f"{names[0]} is {expected.dtype} and out is {given[0].dtype}: they must be of one dtype"
                )
    if recipe is None or any(descriptor is not None for descriptor in given[:results]):
        recipe = make(given)
    outputs = recipe.problem.outputs
    assert len(outputs) == len(targets), f"{recipe.problem.kind} has {len(outputs)} outputs"
    if device_id is None:
        require_room(
            [(o.name, o.descriptor) for o, target in zip(outputs, targets, strict=True) if target is None]
        )
    request = Request.of(handle.settings, algorithm)
    if workspace_limit is not SETTING:
        request = replace(request, workspace_limit=parse_bytes(workspace_limit))
    if op.keeps_filter:
        request = replace(request, keeps_filter=True)
    # an empty result needs no kernel, but it is checked like every other
    is_empty = all(operand.descriptor.size == 0 for operand in outputs)
    plan = None if is_empty else runner.plan(recipe.problem, request, recipe.epilogue)
    gpu = None if device_id is None else GpuCall(handle, runner, [array.library for _, array in known])
    return _Call(recipe, plan, known[0][1].library, op.in_place, gpu)


def _seen_outputs(recipe: Recipe, outputs: Sequence[TensorDescriptor]) -> list[TensorDescriptor]:
    """The outputs with their axes in the caller's order."""
    axes = recipe.axes
    return [
        descriptor if axes is None or len(axes) != len(descriptor.shape) else descriptor.transpose(axes)
        for descriptor in outputs
    ]


def _require_apart(
    known: _Call,
    names: Sequence[str],
    borrowed: Sequence[Array],
    number: int,
    targets: Sequence[Array | None],
    is_single: bool,
) -> None:
    """Refuse an output that shares memory with an input, unless that is safe: the same elements in place.

    Outputs are held against earlier outputs too.
    """
    target = targets[number]
    assert target is not None
    output = known.outputs[number]
    for position, array in enumerate(borrowed):
        low, high, cleared = known.near[number][position]
        distance = target.pointer - array.pointer
        if not low < distance < high or distance in cleared:
            continue
        same = distance == 0 and number == 0 and known.operands[position].coincides(output.descriptor)
        if not (same and position in known.in_place) and is_shared(array, target):
            can = ", or the very same view" if number == 0 and position in known.in_place else ""
            raise InvalidArgument(
                f"{'out' if is_single else output.name} shares memory with {names[position]}, which would be "
                f"overwritten before it is read: pass another out{can}"
            )
        if len(cleared) >= _MOST_CLEARED:
            cleared.clear()
        cleared.add(distance)
    for earlier, (low, high, _) in enumerate(known.near_results[number]):
        other = targets[earlier]
        if other is not None and low < target.pointer - other.pointer < high and is_shared(other, target):
            raise InvalidArgument(
                f"{output.name} shares memory with {known.outputs[earlier].name}: every result needs its own"
            )


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


def logical_shape(shape: tuple[int, ...], layout: str | None) -> tuple[int, ...]:
    """Return a shape in the order of `layout` as (N, C, space)."""
    axes = logical_axes(layout, len(shape))
    return shape if axes is None else tuple(shape[axis] for axis in axes)


def packed_like(like: TensorDescriptor, shape: Sequence[int]) -> TensorDescriptor:
    """Return the dense descriptor of `shape` with channels first or last, whichever `like` is nearer to."""
    return TensorDescriptor.packed(shape, like.dtype, like.nearest_layout)


def same_order(like: TensorDescriptor, shape: Sequence[int] | None = None) -> TensorDescriptor:
    """Return the dense descriptor of `shape`, that of `like` by default, with its axes in the order of `like`."""
    extents = like.shape if shape is None else tuple(shape)
    return TensorDescriptor(extents, packed_strides(extents, like.order), like.dtype)
