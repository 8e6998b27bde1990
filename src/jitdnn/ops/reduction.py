"""Reductions of one's own: `jd.reduction(lambda x, y: x * y)(a, b)` is a dot product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitdnn.arguments import as_key, numbers, optional, real_number, shown, yes
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.kernels.tables import reduction_kernel
from jitdnn.ops.user_kernel import (
    DType,
    Formulas,
    Prepared,
    UserKernel,
    check_target,
    common_dtype,
    common_shape,
    input_descriptors,
)
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.rtcg.folds import Fold, Reduction
from jitdnn.rtcg.formulas import Formula, formula
from jitdnn.tensor import REAL_DTYPES, Array, TensorDescriptor, compute_dtype

Reduce = str | Callable[[Any, Any], Any] | Expression

NAMES = ("add", "multiply", "max", "min")
_ARGS = ("argmax", "argmin")


def fold_of(reduce: Reduce, neutral: float | None) -> Reduction:
    """The reduction that a user names or writes. Raises InvalidArgument."""
    if isinstance(reduce, str):
        if reduce not in (*NAMES, *_ARGS):
            known = ", ".join((*NAMES, *_ARGS))
            raise InvalidArgument(
                f"reduce is {shown(reduce)}: it must be one of {known}, or a function of two numbers"
            )
        return reduce
    expression = trace(reduce)
    if expression.arity != 2:
        raise InvalidArgument(
            f"reduce takes {expression.arity} numbers: it must take two, results so far and the next"
        )
    if neutral is None:
        raise InvalidArgument(
            "reduce is a function: say by neutral= what it gives over no element, as 0 for a sum"
        )
    return Fold(expression, real_number(neutral, "neutral"))


def reduction(
    function: Formulas = "x: x",
    reduce: Reduce | Sequence[Reduce] = "add",
    neutral: float | None = None,
    dtype: DType | Sequence[DType] = None,
) -> ReductionKernel:
    """Make a kernel that reduces what a formula makes of every element: `kernel(*arrays, axes=..., out=...)`.

    `function` as for `jd.elementwise`; if it returns a tuple all of it is reduced in one pass. `reduce` (one, or one
    for each result): "add", "multiply", "max", "min", where NaN propagates; "argmax", "argmin", which give the
    position of the first extreme value, counted over the reduced axes; or an associative function of (the result so
    far, the next one) with its `neutral` value. `dtype`: the type of the results.

    Raises InvalidArgument for what cannot be traced, ParseError for text.
    """
    made = formula(function)
    each: Sequence[Any] = reduce if isinstance(reduce, (tuple, list)) else (reduce,) * len(made.results)
    if len(each) != len(made.results):
        raise InvalidArgument(
            f"{len(each)} reductions for {len(made.results)} results: give one, or one for each"
        )
    return ReductionKernel(made, tuple(fold_of(one, neutral) for one in each), dtype)


class ReductionKernel(UserKernel):
    """A formula over arrays of any dtype and strides, broadcast, and reduced over axes.

    Arithmetic is in float32, or in float64 where an array is float64 or an integer of 32 bits or more; long sums are
    split, so that errors stay small, in an order that does not depend on threads. Results are of the widest real type
    among the arrays; of integers int64 where the formula makes integers and sums stay below 2^53, else float64;
    positions are int64.
    """

    takes = (optional(numbers("axes")), yes("keepdims"))

    def __init__(
        self, formula: Formula, reductions: tuple[Reduction, ...], dtype: DType | Sequence[DType]
    ) -> None:
        super().__init__(formula, len(reductions), dtype)
        self.reductions = reductions

    def __repr__(self) -> str:
        return f"<reduction {self.reductions} of {'; '.join(map(str, self.formula.results))}>"

    def __call__(
        self,
        *arrays: Any,
        axes: int | Sequence[int] | None = None,
        keepdims: bool = False,
        out: Any = None,
        handle: Handle | None = None,
    ) -> Any:
        """Reduce over `axes`, all by default; `keepdims` leaves them with extent 1.

        Reduced over all axes without `keepdims` the result has shape (1,).

        Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
        """
        return self._run(arrays, out, handle, (as_key(axes), keepdims))

    def _prepare(
        self,
        arrays: Sequence[Array | None],
        targets: Sequence[Array | None],
        handle: Handle,
        options: tuple[Any, ...],
    ) -> Prepared:
        axes, keepdims = options
        present = [array.descriptor for array in arrays if array is not None]
        if not present:
            raise InvalidArgument("every argument is a number: the kernel needs an array")
        shape, library = common_shape(arrays, ())
        rank = len(shape)
        axes = tuple(range(rank)) if axes is None else (axes,) if isinstance(axes, int) else axes
        if any(not -rank <= axis < rank for axis in axes) or len({axis % rank for axis in axes}) != len(axes):
            raise InvalidArgument(f"axes are {axes}: they must be different ones of {-rank} to {rank - 1}")
        axes = tuple(sorted(axis % rank for axis in axes))
        kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
        seen = kept if keepdims else tuple(e for axis, e in enumerate(kept) if axis not in axes) or (1,)
        if 0 in [shape[axis] for axis in axes] and any(r in ("max", "min", *_ARGS) for r in self.reductions):
            raise InvalidArgument(f"shape {shape} has nothing to take an extreme value of on axes {axes}")
        common = common_dtype(self.formula, [tensor.dtype for tensor in present])
        is_real = common in REAL_DTYPES
        outputs = []
        for target, wanted, reduce in zip(targets, self.dtypes, self.reductions, strict=True):
            dtype = wanted or ("i64" if reduce in _ARGS or not is_real else common)
            outputs.append(
                TensorDescriptor.packed(seen, dtype) if target is None else check_target(target, seen)
            )
        computing = compute_dtype(
            *(tensor.dtype for tensor in present), *(o.dtype for o in outputs if o.dtype == "f64")
        )
        kernel, workspace = None, 0
        if outputs[0].size:
            rows = [output if keepdims else _with_axes(output, axes, rank) for output in outputs]
            inputs = input_descriptors(arrays, shape, computing)
            kernel, workspace = reduction_kernel(
                self.formula.results, self.reductions, [*inputs, *rows], axes, handle.device, computing
            )
        return Prepared(kernel, outputs, targets, library, computing, workspace)


def _with_axes(tensor: TensorDescriptor, axes: Sequence[int], rank: int) -> TensorDescriptor:
    """A result with the reduced axes in place."""
    if len(axes) == rank:
        return TensorDescriptor((1,) * rank, (0,) * rank, tensor.dtype)
    for axis in axes:
        tensor = tensor.insert_axis(axis)
    return tensor
