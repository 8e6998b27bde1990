"""Which algorithms run which problem on which target, best first, the reference last.

Each target brings its table (`targets/`), which is imported when it is first used: nobody needs the compilers of other
targets. The planner considers all algorithms of a table; the order only breaks ties and is the order in which `explain`
prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jitdnn import targets
from jitdnn.errors import NotSupported
from jitdnn.kernels.algorithm import Algorithm, Device, Kernel
from jitdnn.kernels.formulas.row_algorithms import Step
from jitdnn.kernels.reference import REFERENCE
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Reduction
from jitdnn.tensor import TensorDescriptor

Table = Mapping[tuple[type[Problem], str | None], tuple[Algorithm, ...]]


def table(target: str) -> Table:
    """The algorithms of a target by problem class and direction, None for problems that have only one.

    A target that is not registered has none.
    """
    found = targets.find(target)
    return {} if found is None else found.table().ALGORITHMS


def elementwise_kernel(
    expressions: Sequence[Expression], tensors: Sequence[TensorDescriptor], device: Device, computing: str
) -> Kernel:
    """The kernel of formulas over tensors of one shape, inputs first; `computing` is the type of the arithmetic."""
    kernel: Kernel = _generator(device, "elementwise")(expressions, tensors, device, computing=computing)
    return kernel


def reduction_kernel(
    expressions: Sequence[Expression],
    reductions: Sequence[Reduction],
    tensors: Sequence[TensorDescriptor],
    axes: Sequence[int],
    device: Device,
    computing: str,
) -> tuple[Kernel, int]:
    """The kernel that reduces each formula over `axes`, and its bytes of workspace.

    `tensors`: the inputs, of one shape, then a result for each formula with extent 1 on the axes.
    """
    found: tuple[Kernel, int] = _generator(device, "reduction")(
        expressions, reductions, tensors, axes, device, computing
    )
    return found


def rows_kernel(step: Step, device: Device) -> tuple[Kernel, int]:
    """The kernel of a program over rows on a GPU, and its bytes of workspace."""
    found: tuple[Kernel, int] = _generator(device, "rows")(step, device)
    return found


def scan_kernel(
    expression: Expression,
    reduction: Reduction,
    is_exclusive: bool,
    tensors: Sequence[TensorDescriptor],
    axis: int,
    is_reverse: bool,
    device: Device,
    computing: str,
) -> tuple[Kernel, int]:
    """The kernel of a scan along an axis of tensors of one shape, and its bytes of workspace."""
    found: tuple[Kernel, int] = _generator(device, "scan")(
        expression, reduction, is_exclusive, tensors, axis, is_reverse, device, computing
    )
    return found


def multi_tensor_kernel(
    expressions: Sequence[Expression],
    dtypes: Sequence[str],
    numbers: Sequence[int],
    lengths: Sequence[int],
    device: Device,
    computing: str,
) -> tuple[Kernel, Callable[[Sequence[Sequence[int]]], Any]]:
    """The kernel of formulas over rows of arrays of these lengths, all in one launch, and what makes its table of the
    rows' addresses.

    `dtypes`: of the inputs, then of the outputs; `numbers`: the positions of the inputs that are one number a row.
    """
    found: tuple[Kernel, Any] = _generator(device, "multi_tensor")(
        expressions, dtypes, numbers, lengths, device, computing
    )
    return found


def summed_convolution_kernel(
    problem: Problem,
    formulas: Sequence[Expression],
    operands: Sequence[TensorDescriptor],
    place: int,
    by_image: bool,
    device: Device,
) -> tuple[Kernel, int] | str:
    """The kernel of a convolution and of sums by channel of formulas of its results, and its bytes of workspace; or why
    a device has none (`kernels/cuda/convolution/boxes/algorithm.py` says more)."""
    if not has_generator("summed_convolution", device.target):
        return f"{device.target} sums results in a pass of their own"
    found: tuple[Kernel, int] | str = _generator(device, "summed_convolution")(
        problem, formulas, operands, place, by_image, device
    )
    return found


def image_transform_kernel(
    strides: Sequence[int], mean: TensorDescriptor | None, scale: float, out: TensorDescriptor, device: Device
) -> Kernel:
    """The kernel from a batch of images of bytes with these strides, its table and a mean to numbers
    (`ops/image_transform.py`)."""
    found: Kernel = _generator(device, "image_transform")(strides, mean, scale, out, device)
    return found


def has_generator(name: str, target: str) -> bool:
    """Whether a target makes kernels of one's own formulas (`elementwise`, `multi_tensor`, `reduction`, `scan`), or
    `image_transform`."""
    return targets.get(target).generator(name) is not None


def _generator(device: Device, name: str) -> Callable[..., Any]:
    """A target's generator of kernels that have no table of algorithms."""
    found = targets.get(device.target).generator(name)
    if found is None:
        raise NotSupported(f"{name} kernels are not there on {device.target} yet: use cpu")
    return found


def algorithms(problem: Problem, target: str, vendor: str = "off") -> tuple[Algorithm, ...]:
    """List the algorithms of a problem on a target, best first; any problem at all has the reference.

    `vendor`: whether those of the vendor's own library (cuDNN, on `cuda`) are listed "also", or "only" they where the
    library has any for such problems. With "off" the modules that call the library are not even imported.
    """
    key = type(problem), getattr(problem, "direction", None)
    own = table(target).get(key, (REFERENCE,))
    found = targets.find(target)
    if vendor == "off" or found is None or found.vendor is None:
        return own
    theirs: tuple[Algorithm, ...] = found.vendor().ALGORITHMS.get(key, ())
    if vendor == "only" and theirs:
        return theirs
    last = tuple(algorithm for algorithm in own if algorithm is REFERENCE)
    return (*(algorithm for algorithm in own if algorithm is not REFERENCE), *theirs, *last)
