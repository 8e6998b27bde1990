"""Arithmetic of arrays on a GPU: `a * x + y` is an array that one kernel computes when its elements are wanted.

A `LazyArray` is a `DeviceArray` whose memory is made when somebody looks: a function that takes it, `numpy()`, a
slice, an assignment. Until then it has a `Form`: steps over arrays and numbers, which those of larger expressions take
over. It is computed before anything that it reads is written to: its value is what it was when it was written down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitdnn.arguments import shown
from jitdnn.errors import DeviceError, InvalidArgument, InvalidShape, InvalidType
from jitdnn.locks import lock
from jitdnn.ops.array_dtypes import (
    BOOL,
    LOGICAL,
    RING,
    computing_of,
    exponent_of,
    kind_of,
    plain_number,
    resolved,
)
from jitdnn.ops.elementwise import ElementwiseKernel
from jitdnn.ops.shared_memory import is_shared
from jitdnn.retention import Recent
from jitdnn.rtcg.expression import Traced, apply
from jitdnn.rtcg.formulas import Formula, formula, formula_of
from jitdnn.rtcg.functions import where
from jitdnn.rtcg.operations import ALIASES
from jitdnn.rtcg.tracing import functions
from jitdnn.tensor import DeviceArray, TensorDescriptor, borrow, dtype_name, dtype_of
from jitdnn.tensor.device_array import is_lent, note_reader

#: arrays and steps of one kernel: a larger expression is computed in parts
_MOST_ARRAYS, _MOST_STEPS = 8, 32

Reference = tuple[str, int]
"""A value of a form: `("a", n)` the array, `("n", n)` the number, `("s", n)` the step of this position."""


class Form(NamedTuple):
    """An expression: what its arrays and numbers are put through. The last step is the result.

    `computing` is the type of the arithmetic; numbers of `steps` are small exponents, which are part of the code.
    """

    steps: tuple[tuple[str, tuple[Reference, ...], float | None], ...]
    arrays: tuple[DeviceArray, ...]
    numbers: tuple[float, ...]
    computing: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class LazyArray(DeviceArray):
    """The array of an expression, computed when its memory is asked for."""

    __slots__ = ("_form", "_made")

    def __init__(self, form: Form) -> None:
        self._form: Form | None = form
        self._made: DeviceArray | None = None
        self.gpu = form.arrays[0].gpu
        if any(is_lent(array.memory) for array in form.arrays):
            self.compute()
            return
        for array in form.arrays:
            note_reader(self, array.memory)

    @property
    def form(self) -> Form | None:
        """How it will be computed; None once it is."""
        return self._form

    def compute(self) -> DeviceArray:
        """The array in memory."""
        made = self._made
        if made is None:
            with _computing:
                made, form = self._made, self._form
                if made is None:
                    assert form is not None
                    made = self._made = evaluated(form)
                    self._form = None
        return made

    # what the memory decides is that of the result
    @property
    def memory(self) -> Any:  # type: ignore[override]
        return self.compute().memory

    @property
    def pointer(self) -> int:  # type: ignore[override]
        return self.compute().pointer

    @property
    def descriptor(self) -> TensorDescriptor:  # type: ignore[override]
        return self.compute().descriptor

    @property
    def layout(self) -> int:
        return self.compute().layout

    @layout.setter
    def layout(self, number: int) -> None:
        self.compute().layout = number

    @property
    def shape(self) -> tuple[int, ...]:
        form = self._form
        return self.compute().shape if form is None else form.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        form = self._form
        return self.compute().dtype if form is None else form.dtype

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        state = "" if self._form is None else ", not yet computed"
        return f"<DeviceArray {dtype_name(self.dtype)} {self.shape} on {self.device}{state}>"


_fill = ElementwiseKernel(formula("v: v"))
_computing = lock()
_kernels: Recent[Any, Any] = Recent(1024)


def evaluated(form: Form, out: DeviceArray | None = None) -> DeviceArray:
    """The result of a form in memory: in `out`, of its own shape, which may be one of the arrays."""
    wanted = form.dtype if out is None else out.dtype
    if form.dtype.kind in "iu" and form.steps[-1][0] != "identity" and wanted != form.dtype:
        is_narrower = wanted.kind in "iu" and wanted.itemsize <= form.dtype.itemsize
        if not is_narrower:  # it wraps in its own type first
            form = identity(evaluated(form))
    computing = None if form.computing == "truth" else form.computing
    if computing == "i64" and wanted.kind not in "iub":
        computing = None  # that of the result
    name = dtype_name(wanted)
    is_truncated = wanted.kind in "iu" and form.dtype.kind not in "iub"
    count = len(form.arrays), len(form.numbers)
    key = (form.steps, count, name, is_truncated, form.dtype == BOOL, computing)
    kernel = _kernels.recall(key)
    if kernel is None:
        kernel = _kernels.put(key, ElementwiseKernel(formula_of_form(form, is_truncated), name, computing))
    result: DeviceArray = kernel(*inputs_of(form), out=out)
    return result


def inputs_of(form: Form) -> list[Any]:
    """What the kernel of a form is called with: arrays that are broadcast to more axes have them in front."""
    return [*form.arrays, *form.numbers]


def formula_of_form(form: Form, is_truncated: bool = False) -> Formula:
    """The form in the expression language."""
    names = [f"x{n}" for n in range(len(form.arrays))] + [f"n{n}" for n in range(len(form.numbers))]
    starts = {"a": 0, "n": len(form.arrays)}

    def run(*inputs: Traced) -> Any:
        made: list[Any] = []

        def value(reference: Reference) -> Any:
            kind, position = reference
            return made[position] if kind == "s" else inputs[starts[kind] + position]

        for name, references, exponent in form.steps:
            operands = [value(reference) for reference in references]
            if name == "identity":
                made.append(operands[0])
            elif exponent is not None:
                made.append(_number(operands[0]) ** exponent)
            elif name in LOGICAL:
                made.append(apply(name, *map(_truth, operands)))
            elif name == "where":
                made.append(where(_truth(operands[0]), _number(operands[1]), _number(operands[2])))
            else:
                made.append(apply(name, *map(_number, operands)))
        result = made[-1]
        if form.dtype == BOOL:
            return _truth(result)
        return apply("trunc", _number(result)) if is_truncated else _number(result)

    return formula_of(names, run)


def _number(value: Traced) -> Traced:
    is_truth = value.graph.is_truth(value)
    number: Traced = where(value, 1.0, 0.0) if is_truth else value
    return number


def _truth(value: Traced) -> Traced:
    return value if value.graph.is_truth(value) else value != 0.0


def operator(name: str, *values: Any) -> Any:
    """What an operator of Python gives; NotImplemented for operands that are none of ours."""
    if not all(_is_operand(value) for value in values):
        return NotImplemented
    return applied(name, *values)


def applied(name: str, *values: Any) -> LazyArray:
    """The array of a function of the expression language over arrays and numbers.

    Raises InvalidType for operands and dtypes that it does not take, InvalidShape for shapes that do not broadcast,
    DeviceError for arrays elsewhere.
    """
    return LazyArray(form_of(name, values))


def _is_operand(value: Any) -> bool:
    return isinstance(value, (DeviceArray, int, float, np.number, np.bool_, np.ndarray))


def form_of(name: str, values: Sequence[Any]) -> Form:
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim:
            raise DeviceError(
                f"{name} of an array on a GPU and one of NumPy: move one of them (jitdnn.to_device, .numpy())"
            )
        if not _is_operand(value):
            raise InvalidType(f"{name} of {shown(value)}: operands are arrays on a GPU and numbers")
    arrays = [value for value in values if isinstance(value, DeviceArray)]
    if len({array.gpu.device_id for array in arrays}) > 1:
        found = ", ".join(array.device for array in arrays)
        raise DeviceError(f"{name} of arrays on {found}: they must be on one device")
    exponent = None
    if name == "power" and isinstance(values[0], DeviceArray) and isinstance(values[1], (int, float)):
        exponent = exponent_of(values[0], values[1])
    kinds = [kind_of(value) for value in (values[:1] if exponent is not None else values)]
    name, dtype = resolved(name, kinds, exponent)
    computing = computing_of(name, kinds, dtype)
    # the largest parts are computed first where the whole is too large
    parts: list[Any] = [
        value[()] if isinstance(value, np.ndarray) else value for value in values[: len(kinds)]
    ]
    for position, value in enumerate(parts):
        if isinstance(value, LazyArray) and not _fits(value.form, name, dtype, computing):
            parts[position] = value.compute()
    form = _joined(name, parts, exponent, computing, dtype)
    while len(form.arrays) > _MOST_ARRAYS or len(form.steps) > _MOST_STEPS:
        lazy = [n for n, part in enumerate(parts) if isinstance(part, LazyArray) and part.form is not None]
        largest = max(lazy, key=lambda n: _extent(parts[n].form), default=None)
        if largest is None:
            break
        parts[largest] = parts[largest].compute()
        form = _joined(name, parts, exponent, computing, dtype)
    return form


def _extent(form: Form | None) -> int:
    return 0 if form is None else len(form.steps) + 4 * len(form.arrays)


def _fits(form: Form | None, name: str, dtype: np.dtype[Any], computing: str) -> bool:
    """Whether the steps of an operand can be taken over into those of a step."""
    if form is None:
        return True
    if "truth" not in (computing, form.computing) and form.computing != computing:
        return False
    if form.dtype.kind in "iu" and form.dtype.itemsize < 8:
        # what is computed in 64 bits wraps in fewer where it is stored
        return name in RING and form.dtype == dtype
    return True


def _joined(
    name: str, parts: Sequence[Any], exponent: float | None, computing: str, dtype: np.dtype[Any]
) -> Form:
    """One step more than all those of its operands."""
    arrays: dict[tuple[Any, ...], int] = {}
    kept: list[DeviceArray] = []
    numbers: list[float] = []
    steps: list[tuple[str, tuple[Reference, ...], float | None]] = []

    def of_array(array: DeviceArray) -> Reference:
        key = (array.pointer, array.descriptor, id(array.memory))
        if key not in arrays:
            arrays[key] = len(kept)
            kept.append(array)
        return "a", arrays[key]

    def of_number(number: Any) -> Reference:
        numbers.append(plain_number(number, computing))
        return "n", len(numbers) - 1

    references = []
    for part in parts:
        form = part.form if isinstance(part, LazyArray) else None
        if form is not None:
            places = {"a": [of_array(array) for array in form.arrays], "n": [], "s": []}
            for number in form.numbers:
                numbers.append(number)
                places["n"].append(("n", len(numbers) - 1))
            for step, inputs, power in form.steps:
                steps.append((step, tuple(places[kind][position] for kind, position in inputs), power))
                places["s"].append(("s", len(steps) - 1))
            references.append(places["s"][-1])
            if computing == "truth":
                computing = form.computing
            elif form.computing not in (computing, "truth"):  # of two conditions the wider arithmetic
                computing = max(computing, form.computing, key=("i64", "f32", "f64").index)
        elif isinstance(part, DeviceArray):
            references.append(of_array(part.compute() if isinstance(part, LazyArray) else part))
        else:
            references.append(of_number(part))
    steps.append((name, tuple(references), exponent))
    shapes = [part.shape for part in parts if isinstance(part, DeviceArray)]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise InvalidShape(
            f"{name} of shapes {', '.join(map(str, shapes))}: from the last axis on, extents must be equal or 1"
        ) from None
    return Form(tuple(steps), tuple(kept), tuple(numbers), computing, dtype, shape)


def updated(name: str, target: DeviceArray, value: Any) -> Any:
    """`target op= value`, in its memory. Raises InvalidType where NumPy would not cast the result, InvalidShape."""
    if not _is_operand(value):
        return NotImplemented
    form = form_of(name, (target, value))
    if not np.can_cast(form.dtype, target.dtype, "same_kind") and form.dtype != target.dtype:
        raise InvalidType(
            f"the result of {name} is {form.dtype}, and the array is {target.dtype}: convert one of them (astype)"
        )
    store(form, target)
    return target


def assigned(target: DeviceArray, index: Any, value: Any) -> None:
    """`target[index] = value`: an array or expression, broadcast; a number; an array of NumPy. Raises InvalidShape."""
    view = _view(target, index)
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        host = np.asarray(value)
        try:
            view.fill_from(np.broadcast_to(host, view.shape))
        except ValueError:
            raise InvalidShape(f"values of shape {host.shape} do not fit into {view.shape}") from None
        return
    if isinstance(value, LazyArray) and value.form is not None:
        store(value.form, view)
    elif isinstance(value, DeviceArray):
        made = value.compute() if isinstance(value, LazyArray) else value
        store(identity(made), view)
    elif _is_operand(value):
        _filled(view, np.asarray(value)[()])
    else:
        raise InvalidType(f"{shown(value)} cannot be assigned: give an array or a number")


def _filled(view: DeviceArray, number: Any) -> None:
    """Write a number to every element."""
    if not view.size:
        return
    if view.dtype.kind in "iub":
        limits = np.iinfo(np.int64)
        if not limits.min < number < limits.max:  # NaN is in no range
            with np.errstate(all="ignore"):
                view.fill_from(np.broadcast_to(np.asarray(number), view.shape).astype(view.dtype))
            return
        with np.errstate(all="ignore"):
            number = int(np.asarray(number).astype(view.dtype)[()])
    _fill(number if isinstance(number, int) else float(number), out=view)


def _view(target: DeviceArray, index: Any) -> DeviceArray:
    """The part that an index means; an element as an array of one."""
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) == target.ndim and all(isinstance(part, (int, np.integer)) for part in parts):
        for part, extent in zip(parts, target.shape, strict=True):
            if not -extent <= part < extent:
                raise InvalidArgument(f"index {part} is beyond an axis of {extent}")
        first = [int(part) % extent for part, extent in zip(parts, target.shape, strict=True)]
        return target[tuple(slice(n, n + 1) for n in first)]
    return target[index]


def identity(array: DeviceArray) -> Form:
    return _joined(
        "identity", [array], None, computing_of("identity", [array.dtype], array.dtype), array.dtype
    )


def store(form: Form, target: DeviceArray) -> None:
    """Compute a form into an array that it is broadcast to."""
    try:
        fits = np.broadcast_shapes(form.shape, target.shape) == target.shape
    except ValueError:
        fits = False
    if not fits:
        raise InvalidShape(f"a result of shape {form.shape} does not fit into {target.shape}")
    if not target.size:
        return
    place = borrow(target)
    arrays = []
    for array in form.arrays:
        given = borrow(array)
        is_same = given.pointer == place.pointer and given.descriptor.coincides(place.descriptor)
        if not is_same and is_shared(given, place):  # it would be overwritten before it is read
            form = identity(evaluated(form))
            store(form, target)
            return
        arrays.append(array)
    if form.shape != target.shape:
        first = arrays[0]
        wide = first.descriptor.broadcast_to(target.shape)
        arrays[0] = DeviceArray(first.gpu, first.memory, first.pointer, wide)
    evaluated(form._replace(arrays=tuple(arrays), shape=target.shape), target)


def converted(array: DeviceArray, dtype: Any) -> DeviceArray:
    """A copy of an array in a dtype, its own for None."""
    form = array.form if isinstance(array, LazyArray) else None
    form = form or identity(array)
    name = dtype_name(array.dtype) if dtype is None else dtype_of(dtype)
    assert name is not None
    like = next((one.descriptor for one in form.arrays if one.shape == form.shape), None)
    packed = TensorDescriptor.packed(form.shape, name)
    if like is not None and like.size:
        order = sorted(range(len(form.shape)), key=lambda axis: -abs(like.strides[axis]))
        steps = [0] * len(order)
        step = 1
        for axis in reversed(order):
            steps[axis], step = step, step * form.shape[axis]
        packed = TensorDescriptor(form.shape, tuple(steps), name)
    out = DeviceArray.empty(array.gpu, packed)
    if out.size:
        evaluated(form, out)
    return out


_NAMES_OF_NUMPY: dict[str, str] = {"abs": "absolute", **ALIASES}


def of_numpy(ufunc: Any, method: str, values: Sequence[Any], options: dict[str, Any]) -> Any:
    """A function of NumPy over arrays on a GPU; NotImplemented for what there is none of."""
    name = _NAMES_OF_NUMPY.get(ufunc.__name__, ufunc.__name__)
    outs = options.pop("out", (None,))
    known = name in functions(operators=True) or name == "matmul"
    if method != "__call__" or options or not known or len(outs) != 1 or not all(map(_is_operand, values)):
        return NotImplemented
    if name == "matmul":
        if outs[0] is not None or not isinstance(values[0], DeviceArray):
            return NotImplemented
        return values[0].dot(values[1])
    if outs[0] is None:
        return applied(name, *values)
    if not isinstance(outs[0], DeviceArray):
        return NotImplemented
    form = form_of(name, values)
    if not np.can_cast(form.dtype, outs[0].dtype, "same_kind") and form.dtype != outs[0].dtype:
        raise InvalidType(f"the result of {name} is {form.dtype}, and out is {outs[0].dtype}")
    if form.shape != outs[0].shape and math.prod(form.shape) > outs[0].size:
        raise InvalidShape(f"a result of shape {form.shape} does not fit into {outs[0].shape}")
    store(form, outs[0])
    return outs[0]
