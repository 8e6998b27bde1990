"""What kernels of one's own do alike: take any arrays and numbers, allocate results, remember what was compiled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitdnn.arguments import Argument, real_number
from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.handle import Handle, settled_handle
from jitdnn.kernels.algorithm import Kernel
from jitdnn.ops.call import each_out, no_memory, require_room, target_of
from jitdnn.ops.gpu_call import GpuCall, common_device
from jitdnn.ops.shared_memory import is_shared
from jitdnn.ops.to_device import number_on
from jitdnn.recorders import recorder_here
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.formulas import Formula, is_whole
from jitdnn.tensor import (
    DTYPES,
    FLOAT8_DTYPES,
    REAL_DTYPES,
    Array,
    TensorDescriptor,
    allocator,
    borrow,
    compute_dtype,
    dtype_name,
    dtype_of,
    maker_of,
    numpy_dtype,
)

Formulas = Callable[..., Any] | Expression | Formula | str
DType = str | np.dtype[Any] | type | None

_REAL_ORDER = {dtype: rank for rank, dtype in enumerate(REAL_DTYPES)}


class Prepared:
    """A kind of call, ready to run again: the kernel of descriptors that are known.

    `numbers` is the type that Python numbers are handed over in, `workspace` the bytes that the kernel needs.
    """

    def __init__(
        self,
        kernel: Kernel | None,
        outputs: Sequence[TensorDescriptor],
        targets: Sequence[Array | None],
        library: str,
        numbers: str,
        workspace: int = 0,
    ) -> None:
        self.kernel, self.numbers, self.workspace = kernel, numpy_dtype(numbers), workspace
        self.library = library
        self.outputs = [None if t else o for o, t in zip(outputs, targets, strict=True)]
        self.allocate: dict[int, Callable[..., Any]] = {}
        self.gpu: GpuCall | None = None

    def runs_on(self, gpu: GpuCall | None) -> None:
        """Say where calls of this kind run, once that is known."""
        self.gpu = gpu
        self.allocate = {
            position: allocator(self.library, descriptor, None if gpu is None else gpu.gpu)
            for position, descriptor in enumerate(self.outputs)
            if descriptor is not None
        }


class UserKernel(ABC):
    """A kernel made of a formula. Subclasses say what becomes of it."""

    takes: tuple[Argument, ...] = ()
    """What may be said of a call beside its arrays."""
    takes_in_place = False
    """True if an output may be the very memory of an input."""

    def __init__(self, formula: Formula, results: int, dtype: DType | Sequence[DType] = None) -> None:
        self.formula, self.results = formula, results
        self.inputs = formula.results[0].inputs
        each: Sequence[Any] = dtype[: results + 1] if isinstance(dtype, (tuple, list)) else (dtype,) * results
        if len(each) != results:
            raise InvalidArgument(f"{len(each)} dtypes for {results} results: give one, or one for each")
        self.dtypes = tuple(None if one is None else dtype_of(one) for one in each)

    @abstractmethod
    def _prepare(
        self,
        arrays: Sequence[Array | None],
        targets: Sequence[Array | None],
        handle: Handle,
        options: tuple[Any, ...],
    ) -> Prepared:
        """The kernel for arrays of these kinds; None stands for a number, or for a result to be allocated."""

    def _run(self, arrays: Sequence[Any], out: Any, handle: Handle | None, options: tuple[Any, ...]) -> Any:
        if len(arrays) != len(self.inputs):
            names = ", ".join(self.inputs)
            raise InvalidArgument(f"the kernel takes {len(self.inputs)} arrays ({names}), got {len(arrays)}")
        handle = settled_handle(handle)
        owners = list(each_out(out, self.results))
        borrowed = [
            None if isinstance(x, (int, float)) and _is_number(x, name) else borrow(x, False, name)
            for x, name in zip(arrays, self.inputs, strict=True)
        ]
        targets = [None if owner is None else target_of(owner) for owner in owners]
        layouts = [None if array is None else array.key for array in (*borrowed, *targets)]
        values = handle.settings
        key = (self, values.serial, options, *layouts)
        try:
            known: Prepared | None = handle.calls.get(key)
        except Exception:  # options that cannot be hashed, or raise when they are
            known = None
        if known is None:
            options = tuple(kind.settled(value) for kind, value in zip(self.takes, options, strict=True))
            key = (self, values.serial, options, *layouts)
            known = handle.calls.recall(key)
        if known is None:
            every = zip((*self.inputs, *("out",) * len(targets)), (*borrowed, *targets), strict=True)
            named = [(name, array) for name, array in every if array is not None]
            device_id = common_device(named)
            runner = handle.at(device_id) if named else handle
            known = self._prepare(borrowed, targets, runner, options)
            if device_id is None:
                require_room([("the result", tensor) for tensor in known.outputs if tensor is not None])
            libraries = [array.library for _, array in named]
            known.runs_on(None if device_id is None else GpuCall(handle, runner, libraries))
            handle.calls.put(key, known, values.plans_limit)
        given = [target for target in targets if target is not None]
        for target in given:
            self._require_apart(target, borrowed, given)
        gpu = known.gpu
        present = [array for array in borrowed if array is not None]
        stream = handle.stream if gpu is None else gpu.stream(handle, present, targets)
        for position, allocate in known.allocate.items():
            try:
                owners[position], targets[position] = allocate(stream)
            except (MemoryError, RuntimeError, ValueError) as error:
                raise no_memory("the result", known.outputs[position]) from error
        if known.kernel is not None:
            runner = handle if gpu is None else gpu.runner(handle)
            # numbers are read from memory: another value is not another kernel
            numbers = [
                b if b is not None else number_on(gpu, x, known.numbers, name)
                for x, b, name in zip(arrays, borrowed, self.inputs, strict=True)
            ]
            pointers = [number.pointer for number in numbers]
            pointers += [target.pointer for target in targets if target is not None]
            recorder = recorder_here() if gpu is None else None
            if recorder is not None and recorder.takes(pointers):
                for number, given_one in zip(numbers, borrowed, strict=True):
                    if given_one is None:  # a number, in memory of its own
                        recorder.constant(number.pointer, number.descriptor.nbytes, number)
                recorder.keep(known.kernel)
                known.kernel(stream, pointers, 1.0, 0.0, recorder.scratch(known.workspace))
            elif gpu is not None and runner.launches:
                runner.launch(stream, known.kernel, pointers, 1.0, 0.0, known.workspace)
            elif runner.launches:
                with runner.workspace(known.workspace, stream) as workspace:
                    known.kernel(stream, pointers, 1.0, 0.0, workspace)
            if gpu is not None:
                gpu.after(handle, stream, (*numbers, *targets))
        finish = maker_of(known.library) if gpu is None else None
        if gpu is not None:
            owners = [gpu.result(owner) for owner in owners]
        elif finish is not None:
            owners = [finish(owner) if n in known.allocate else owner for n, owner in enumerate(owners)]
        return owners[0] if self.results == 1 else tuple(owners)

    def _require_apart(self, target: Array, borrowed: Sequence[Array | None], given: Sequence[Array]) -> None:
        """Refuse an output that shares memory with an input or another output."""
        for array in borrowed:
            if array is None:
                continue
            is_same = array.pointer == target.pointer and array.descriptor.coincides(target.descriptor)
            is_fine = self.takes_in_place and is_same
            if not is_fine and is_shared(array, target):
                can = ", or the very same view" if self.takes_in_place else ""
                raise InvalidArgument(
                    "out shares memory with an input, which would be overwritten before it is read: pass another "
                    f"out{can}"
                )
        for other in given:
            if other is not target and is_shared(other, target):
                raise InvalidArgument("two results share memory: every result needs its own")


def _is_number(x: Any, name: str) -> bool:
    real_number(x, name)  # integers beyond float64 are none that kernels are handed
    return True


def common_shape(
    arrays: Sequence[Array | None], targets: Sequence[Array | None]
) -> tuple[tuple[int, ...], str]:
    """The shape that all arrays are broadcast to, and the library of the first.

    Without arrays it is that of the outputs. Raises InvalidShape and InvalidArgument.
    """
    present = [array for array in arrays if array is not None]
    given = [target for target in targets if target is not None]
    if not present and not given:
        raise InvalidArgument("every argument is a number: the kernel needs an array, or an out to fill")
    shapes = [array.descriptor.shape for array in present] or [given[0].descriptor.shape]
    try:
        return np.broadcast_shapes(*shapes), (present or given)[0].library
    except ValueError:
        raise InvalidShape(
            f"arrays of shapes {', '.join(map(str, shapes))} do not broadcast: from the last dim on, extents "
            "must be equal or 1"
        ) from None


def check_target(target: Array, shape: Sequence[int]) -> TensorDescriptor:
    """The descriptor of an `out`, which must have this shape and not overlap itself."""
    descriptor = target.descriptor
    if descriptor.shape != tuple(shape):
        raise InvalidShape(
            f"out has shape {descriptor.shape}: the result has {tuple(shape)}, and they must be equal"
        )
    if descriptor.is_overlapping():
        raise InvalidArgument(
            f"out of shape {descriptor.shape} and strides {descriptor.strides} overlaps itself: every element "
            "of an output must have a place of its own"
        )
    return descriptor


def input_descriptors(
    arrays: Sequence[Array | None], shape: Sequence[int], numbers: str
) -> list[TensorDescriptor]:
    """Every input broadcast to `shape`; a number is an element that all share."""
    number = TensorDescriptor((1,) * len(shape), (0,) * len(shape), numbers).broadcast_to(shape)
    return [number if array is None else array.descriptor.broadcast_to(shape) for array in arrays]


def computing_dtype(formula: Formula, dtypes: Sequence[str]) -> str:
    """The type of the arithmetic over arrays of these types: f32, f64, or i64 where all can be integers."""
    is_real = any(dtype in REAL_DTYPES for dtype in dtypes) or not all(map(is_whole, formula.results))
    return compute_dtype(*dtypes) if is_real else "i64"


def common_dtype(formula: Formula, inputs: Sequence[str]) -> str:
    """The type of results where nothing says otherwise: the widest real type, f32 for 8 bits, or the common integer
    type."""
    reals = [dtype for dtype in inputs if dtype in REAL_DTYPES]
    if reals:
        widest = max(reals, key=lambda dtype: _REAL_ORDER[dtype])
        # of two types of one size neither holds the numbers of the other
        mixed = {dtype for dtype in reals if DTYPES[dtype] == DTYPES[widest]} != {widest}
        return "f32" if mixed or widest in FLOAT8_DTYPES else widest
    if inputs and all(map(is_whole, formula.results)):
        name = dtype_name(np.result_type(*(numpy_dtype(dtype) for dtype in inputs))) or "i64"
        return "i64" if name == "bool" else name
    return compute_dtype(*inputs)
