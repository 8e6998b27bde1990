"""Elementwise kernels of one's own, made from a formula: `jd.elementwise(lambda x, y: x * y + 1)(a, b)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.handle import Handle, current_handle
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.tables import elementwise_kernel
from jitdnn.ops.call import REMEMBERED_CALLS, is_shared, same_order, target_of
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.formulas import Formula, formula, is_whole
from jitdnn.tensor import (
    REAL_DTYPES,
    Array,
    TensorDescriptor,
    allocator,
    borrow,
    compute_dtype,
    dtype_name,
    dtype_of,
    numpy_dtype,
)

Formulas = Callable[..., Any] | Expression | Formula | str
DType = str | np.dtype[Any] | type | None

_REAL_ORDER = {dtype: place for place, dtype in enumerate(REAL_DTYPES)}


def elementwise(function: Formulas, dtype: DType | Sequence[DType] = None) -> ElementwiseKernel:
    """Make a kernel that computes a formula for every element: `kernel(*arrays, out=...)`.

    `function`: a Python function of numbers, written with operators, this package's functions and NumPy's, which
    returns a value or a tuple of them; a traced expression; or text such as `"a, x, y: a * x + y"`, where statements
    between semicolons give names to values. It is traced once, here. `dtype` (a name such as "f16", or a NumPy
    dtype; one for all results or one for each) is what results have where no `out` says otherwise.

    Raises InvalidArgument for what cannot be traced, ParseError for text.
    """
    return ElementwiseKernel(formula(function), dtype)


class ElementwiseKernel:
    """A formula over arrays of any dtype and any strides, broadcast against each other as in NumPy.

    Called with arrays, and Python numbers in the place of some, it returns the result, or a tuple of the results,
    made by the library of the first array and in its order in memory, or written into `out` (an array, or a tuple
    with None for what is to be allocated). `out` may be the very memory of an input, not a shifted part of it.

    Arithmetic is in float32, in float64 where an array is float64 or an integer of 32 bits or more; where all are
    integers and the formula only adds, multiplies, compares and the like, in 64-bit integers that wrap. Results are
    of the widest real type among the arrays; of integers, of their common integer type where the arithmetic is
    theirs and of a real type else; conditions are bool. Reals that are stored as integers are rounded to the
    nearest and saturated. Numbers take the type of the arithmetic.
    """

    def __init__(self, formula: Formula, dtype: DType | Sequence[DType] = None) -> None:
        self.formula = formula
        self.inputs = formula.results[0].inputs
        count = len(formula.results)
        each: Sequence[Any] = dtype if isinstance(dtype, (tuple, list)) else (dtype,) * count
        if len(each) != count:
            raise InvalidArgument(f"{len(each)} dtypes for {count} results: give one, or one for each")
        self.dtypes = tuple(None if one is None else dtype_of(one) for one in each)

    def __repr__(self) -> str:
        return f"<elementwise {'; '.join(map(str, self.formula.results))}>"

    def __call__(self, *arrays: Any, out: Any = None, handle: Handle | None = None) -> Any:
        """Compute the formula.

        Raises InvalidShape for shapes that do not broadcast or an `out` of another shape, InvalidType for what cannot
        be borrowed, InvalidArgument for another number of arrays, or an `out` that cannot be written.
        """
        if len(arrays) != len(self.inputs):
            names = ", ".join(self.inputs)
            raise InvalidArgument(f"the kernel takes {len(self.inputs)} arrays ({names}), got {len(arrays)}")
        handle = handle or current_handle()
        count = len(self.formula.results)
        owners = list(out) if isinstance(out, tuple) else [out] * count if out is None else [out]
        if len(owners) != count:
            raise InvalidArgument(f"out has {len(owners)} entries: the kernel has {count} results")
        borrowed = [
            None if isinstance(x, (int, float)) else borrow(x, False, name)
            for x, name in zip(arrays, self.inputs, strict=True)
        ]
        targets = [None if owner is None else target_of(owner) for owner in owners]
        key = (
            self,
            handle.settings.serial,
            *(None if array is None else array.key for array in (*borrowed, *targets)),
        )
        known: _Call | None = handle.calls.get(key)
        if known is None:
            known = _Call(self, borrowed, targets, handle)
            if len(handle.calls) >= REMEMBERED_CALLS:
                handle.calls.clear()
            handle.calls[key] = known
        given = [target for target in targets if target is not None]
        for target in given:
            _require_apart(target, borrowed, given, known)
        for position, allocate in known.allocate.items():
            owners[position], targets[position] = allocate()
        if known.kernel is not None:
            # numbers are read from memory: another value is not another kernel
            numbers = [
                np.array([x], known.scalar) if b is None else b for x, b in zip(arrays, borrowed, strict=True)
            ]
            pointers = [n.pointer if isinstance(n, Array) else n.ctypes.data for n in numbers]
            pointers += [target.pointer for target in targets if target is not None]
            known.kernel(handle.stream, pointers, 1.0, 0.0, 0)
        return owners[0] if count == 1 else tuple(owners)


class _Call:
    """A kind of call, ready to run again."""

    def __init__(
        self,
        made: ElementwiseKernel,
        borrowed: Sequence[Array | None],
        targets: Sequence[Array | None],
        handle: Handle,
    ) -> None:
        present = [array for array in borrowed if array is not None]
        given = [target.descriptor for target in targets if target is not None]
        if not present and not given:
            raise InvalidArgument("every argument is a number: the kernel needs an array, or an out to fill")
        shapes = [array.descriptor.shape for array in present]
        try:
            shape = np.broadcast_shapes(*shapes) if shapes else given[0].shape
        except ValueError:
            raise InvalidShape(
                f"arrays of shapes {', '.join(map(str, shapes))} do not broadcast: from the last dim on, extents "
                "must be equal or 1"
            ) from None
        for descriptor in given:
            if descriptor.shape != shape:
                raise InvalidShape(
                    f"out has shape {descriptor.shape}: the arrays give {shape}, and it must be equal"
                )
            if descriptor.is_overlapping():
                raise InvalidArgument(
                    f"out of shape {descriptor.shape} and strides {descriptor.strides} overlaps itself: every element "
                    "of an output must have a place of its own"
                )
        first = next((a.descriptor for a in present if a.descriptor.shape == shape), None)
        library = (present or [target for target in targets if target is not None])[0].library
        dtypes = result_dtypes(made.formula, [a.descriptor.dtype for a in present], made.dtypes)
        outputs = []
        self.allocate = {}
        for position, (target, dtype) in enumerate(zip(targets, dtypes, strict=True)):
            if target is not None:
                outputs.append(target.descriptor)
                continue
            order = TensorDescriptor.packed(shape, dtype) if first is None else same_order(first)
            outputs.append(TensorDescriptor(shape, order.strides, dtype))
            self.allocate[position] = allocator(library, outputs[-1])
        every = [a.descriptor.dtype for a in present] + [d.dtype for d in outputs]
        computing = computing_dtype(made.formula, every)
        self.scalar = numpy_dtype(computing)
        number = TensorDescriptor((1,) * len(shape), (0,) * len(shape), computing).broadcast_to(shape)
        inputs = [number if a is None else a.descriptor.broadcast_to(shape) for a in borrowed]
        self.kernel: Kernel | None = None
        if outputs[0].size:
            self.kernel = elementwise_kernel(
                made.formula.results, [*inputs, *outputs], handle.device, computing
            )


def computing_dtype(formula: Formula, dtypes: Sequence[str]) -> str:
    """The type of the arithmetic over arrays of these types: f32, f64, or i64 where all can be whole numbers."""
    is_real = any(dtype in REAL_DTYPES for dtype in dtypes) or not all(map(is_whole, formula.results))
    return compute_dtype(*dtypes) if is_real else "i64"


def result_dtypes(formula: Formula, inputs: Sequence[str], wanted: Sequence[str | None]) -> list[str]:
    """The types of the results where they are not `wanted` to be others."""
    reals = [dtype for dtype in inputs if dtype in REAL_DTYPES]
    if reals:
        common = max(reals, key=lambda dtype: _REAL_ORDER[dtype])
        if {"f16", "bf16"} <= set(reals) and common == "bf16":
            common = "f32"
    elif inputs and all(map(is_whole, formula.results)):
        common = dtype_name(np.result_type(*(numpy_dtype(dtype) for dtype in inputs))) or "i64"
        common = {"bool": "i64"}.get(common, common)
    else:
        common = compute_dtype(*inputs)
    return [
        one or ("bool" if is_truth else common)
        for one, is_truth in zip(wanted, formula.is_truth, strict=True)
    ]


def _require_apart(
    target: Array, borrowed: Sequence[Array | None], given: Sequence[Array], known: _Call
) -> None:
    """Refuse an output that shares memory with an input (but for the first, in place) or another output."""
    for array in borrowed:
        if array is None:
            continue
        is_same = array.pointer == target.pointer and array.descriptor == target.descriptor
        if not (is_same and target is given[0]) and is_shared(array, target):
            raise InvalidArgument(
                "out shares memory with an input, which would be overwritten before it is read: pass another out, or "
                "the very same view as the first"
            )
    for other in given:
        if other is not target and is_shared(other, target):
            raise InvalidArgument("two results share memory: every result needs its own")
