"""Scans of one's own: results so far along an axis; `jd.scan()(x)` is the sum so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import flag, integer, yes
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.kernels.tables import scan_kernel
from jitdnn.ops.call import same_order
from jitdnn.ops.reduction import NAMES, Reduce, fold_of
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
from jitdnn.rtcg.folds import Reduction
from jitdnn.rtcg.formulas import Formula, formula
from jitdnn.tensor import Array, TensorDescriptor


def scan(
    function: Formulas = "x: x",
    reduce: Reduce = "add",
    neutral: float | None = None,
    exclusive: bool = False,
    dtype: DType = None,
) -> ScanKernel:
    """Make a kernel of results so far: out[i] = reduce of the formula over elements 0 to i of an axis.

    `function` as for `jd.elementwise`, with one result. `reduce`: "add", "multiply", "max", "min", or an associative
    function of (the result so far, the next one) with its `neutral` value. `exclusive` leaves element i itself out.
    `dtype`: the type of the result. Called as `kernel(*arrays, axis=-1, reverse=False, out=...)`.

    Raises InvalidArgument for what cannot be traced, ParseError for text.
    """
    made = formula(function)
    if len(made.results) != 1:
        raise InvalidArgument(f"the function has {len(made.results)} results: a scan has one")
    chosen = fold_of(reduce, neutral)
    if isinstance(chosen, str) and chosen not in NAMES:
        raise InvalidArgument(
            f"reduce is {chosen!r}: of a scan it must be one of {', '.join(NAMES)}, or a function"
        )
    return ScanKernel(made, chosen, flag(exclusive, "exclusive"), dtype)


class ScanKernel(UserKernel):
    """Prefix results along an axis of arrays of any dtype and strides, broadcast.

    Arithmetic and results are of the types that `jd.elementwise` has. Long rows are cut into parts of a fixed size:
    results do not depend on the number of threads.
    """

    takes = (integer("axis"), yes("reverse"))

    def __init__(self, formula: Formula, reduction: Reduction, exclusive: bool, dtype: DType) -> None:
        super().__init__(formula, 1, dtype)
        self.reduction, self.exclusive = reduction, exclusive

    def __repr__(self) -> str:
        kind = "exclusive scan" if self.exclusive else "scan"
        return f"<{kind} {self.reduction} of {self.formula.results[0]}>"

    def __call__(
        self,
        *arrays: Any,
        axis: int = -1,
        reverse: bool = False,
        out: Any = None,
        handle: Handle | None = None,
    ) -> Any:
        """Scan along `axis`, from its end if `reverse`.

        Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
        """
        return self._run(arrays, out, handle, (axis, reverse))

    def _prepare(
        self,
        arrays: Sequence[Array | None],
        targets: Sequence[Array | None],
        handle: Handle,
        options: tuple[Any, ...],
    ) -> Prepared:
        axis, reverse = options
        shape, library = common_shape(arrays, targets)
        if not -len(shape) <= axis < len(shape):
            raise InvalidArgument(f"axis is {axis}: it must be {-len(shape)} to {len(shape) - 1}")
        axis %= len(shape)
        present = [array.descriptor for array in arrays if array is not None]
        dtype = self.dtypes[0] or common_dtype(self.formula, [tensor.dtype for tensor in present])
        like = next((tensor for tensor in present if tensor.shape == shape), None)
        order = TensorDescriptor.packed(shape, dtype) if like is None else same_order(like)
        chosen = TensorDescriptor(shape, order.strides, dtype)
        (target,) = targets
        output = chosen if target is None else check_target(target, shape)
        computing = computing_dtype(self.formula, [tensor.dtype for tensor in (*present, output)])
        kernel, workspace = None, 0
        if output.size:
            tensors = [*input_descriptors(arrays, shape, computing), output]
            kernel, workspace = scan_kernel(
                self.formula.results[0],
                self.reduction,
                self.exclusive,
                tensors,
                axis,
                reverse,
                handle.device,
                computing,
            )
        return Prepared(kernel, [output], targets, library, computing, workspace)
