"""Elementwise kernels of one's own, made from a formula: `jd.elementwise(lambda x, y: x * y + 1)(a, b)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.handle import Handle
from jitdnn.kernels.tables import elementwise_kernel
from jitdnn.ops.call import same_order
from jitdnn.ops.user_kernel import (
    DType,
    Formulas,
    Prepared,
    UserKernel,
    check_target,
    common_dtype,
    common_shape,
    computing_dtype,
    input_descriptors,
)
from jitdnn.rtcg.formulas import Formula, formula
from jitdnn.tensor import Array, TensorDescriptor


def elementwise(function: Formulas, dtype: DType | Sequence[DType] = None) -> ElementwiseKernel:
    """Make a kernel that computes a formula for every element: `kernel(*arrays, out=...)`.

    `function`: a Python function of numbers, written with operators, this package's functions and NumPy's, which
    returns a value or a tuple of them; a traced expression; or text such as `"a, x, y: a * x + y"`, where statements
    between semicolons give names to values. It is traced once, here. `dtype` (a name such as "f16", or a NumPy
    dtype; one for all results or one for each) is what results have where no `out` says otherwise.

    Raises InvalidArgument for what cannot be traced, ParseError for text.
    """
    return ElementwiseKernel(formula(function), dtype)


class ElementwiseKernel(UserKernel):
    """A formula over arrays of any dtype and any strides, broadcast against each other as in NumPy.

    Called with arrays, and Python numbers in the place of some, it returns the result, or a tuple of the results,
    made by the library of the first array and in its order in memory, or written into `out` (an array, or a tuple
    with None for what is to be allocated). Each may be the very memory of an input, not a shifted part of it.

    Arithmetic is in float32, in float64 where an array is float64 or an integer of 32 bits or more; where all are
    integers and the formula only adds, multiplies, compares and the like, in 64-bit integers that wrap. Results are
    of the widest real type among the arrays; of integers, of their common integer type where the arithmetic is
    theirs and of a real type else; conditions are bool. Reals that are stored as integers are rounded to the
    nearest and saturated. Numbers take the type of the arithmetic, and are refused where it is in integers and they are
    none of 64 bits.
    """

    takes_in_place = True

    def __init__(
        self, formula: Formula, dtype: DType | Sequence[DType] = None, computing: str | None = None
    ) -> None:
        super().__init__(formula, len(formula.results), dtype)
        #: the type of the arithmetic where it is not that of the arrays
        self._computing = computing

    def __repr__(self) -> str:
        return f"<elementwise {'; '.join(map(str, self.formula.results))}>"

    def __call__(self, *arrays: Any, out: Any = None, handle: Handle | None = None) -> Any:
        """Compute the formula.

        Raises InvalidShape for shapes that do not broadcast or an `out` of another shape, InvalidType for what cannot
        be borrowed, InvalidArgument for another number of arrays, or an `out` that cannot be written.
        """
        return self._run(arrays, out, handle, ())

    def _prepare(
        self,
        arrays: Sequence[Array | None],
        targets: Sequence[Array | None],
        handle: Handle,
        options: tuple[Any, ...],
    ) -> Prepared:
        shape, library = common_shape(arrays, targets)
        present = [array.descriptor for array in arrays if array is not None]
        like = next((descriptor for descriptor in present if descriptor.shape == shape), None)
        common = common_dtype(self.formula, [descriptor.dtype for descriptor in present])
        outputs = []
        for target, wanted, is_truth in zip(targets, self.dtypes, self.formula.is_truth, strict=True):
            dtype = wanted or ("bool" if is_truth else common)
            order = TensorDescriptor.packed(shape, dtype) if like is None else same_order(like)
            chosen = TensorDescriptor(shape, order.strides, dtype)
            outputs.append(chosen if target is None else check_target(target, shape))
        computing = self._computing or computing_dtype(
            self.formula, [tensor.dtype for tensor in (*present, *outputs)]
        )
        kernel = None
        if outputs[0].size:
            tensors = [*input_descriptors(arrays, shape, computing), *outputs]
            kernel = elementwise_kernel(self.formula.results, tensors, handle.device, computing)
        return Prepared(kernel, outputs, targets, library, computing)
