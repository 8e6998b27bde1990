"""Kernels of fused graphs: a group of nodes prepared for its operands, and run by their addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

from jitdnn.errors import NotSupported
from jitdnn.frameworks.torch.folded import folded_of
from jitdnn.frameworks.torch.fused_memory import Budget, Listing
from jitdnn.frameworks.torch.fusion import Group, Tail, tail_of, through
from jitdnn.frameworks.torch.kinds import DTYPES
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.tables import elementwise_kernel
from jitdnn.ops.kept_filter import KeptFilter
from jitdnn.planner.plan import Request
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.formulas import Formula
from jitdnn.tensor import TensorDescriptor, compute_dtype

aten = torch.ops.aten
Operand: TypeAlias = Node | Tensor


@dataclass(frozen=True)
class Kernel:
    """A prepared kernel: `run(addresses)` writes its result.

    `operands` are those whose addresses it takes, in order, with None in the place of the result. `allocate` makes the
    result's tensor as the group's last node shows it, of memory that `empty(shape, strides)` gives. `name` tells it
    from every other. `filter`: the operand whose values it does not read, but what is prepared of them, which `kept`
    names, with its bytes. `over`: operands in whose memory the result may lie, if nobody reads them afterwards.
    """

    operands: tuple[Operand | None, ...]
    allocate: Callable[[Callable[[Sequence[int], Sequence[int]], Tensor]], Tensor]
    run: Callable[[Sequence[int]], None]
    name: str
    filter: Operand | None = None
    kept: tuple[tuple[int, str], int] | None = None
    over: tuple[Node, ...] = ()


def channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor (N, C, space) whose channels are neighbours."""
    strides = [0] * len(shape)
    step = 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor in the order of its axes."""
    step, strides = 1, [0] * len(shape)
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def described(tensor: Tensor) -> TensorDescriptor:
    """The descriptor of a tensor, counted from its own address."""
    return TensorDescriptor(tuple(tensor.shape), tuple(tensor.stride()), DTYPES[tensor.dtype])


class Preparer:
    """Makes kernels of groups for tensors that are there.

    `env` holds the tensor of each node that is known, `constants` those that never change, `shared` what is prepared of
    them, for all programs of the same constants. `budget`: what kernels may keep and need; with a Listing what they
    could is noted, and their `run` does nothing.
    """

    def __init__(
        self,
        env: Mapping[Node, Any],
        constants: Mapping[Node, Tensor],
        handle: Handle,
        shared: dict[Any, Any],
        budget: Budget | Listing | None = None,
    ) -> None:
        self._env, self._constants, self._handle, self._shared = env, constants, handle, shared
        self._budget = budget

    def kernel(self, group: Group, strides: Sequence[int] | None, is_last: bool) -> Kernel:
        """The kernel of a group. `strides` are what its result should have, None for channels first or last.

        Raises NotSupported, or RuntimeError for views that would copy.
        """
        if group.is_pointwise:
            return self._pointwise(group, strides)
        if group.root.target is aten.convolution.default:
            return self._convolution(group, strides, is_last)
        return self._product(group)

    def _tensor(self, operand: Operand) -> Tensor:
        if isinstance(operand, Tensor):
            return operand
        found = self._constants.get(operand)
        return self._env[operand] if found is None else found

    def _filter(self, weight: Tensor) -> KeptFilter:
        folded = folded_of(self._shared, weight)
        if folded is not None:
            return folded.filter
        key = ("filter", weight.data_ptr(), weight.shape, weight.stride())
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = KeptFilter(weight)
        kept: KeptFilter = found
        return kept

    def _convolution(self, group: Group, strides: Sequence[int] | None, is_last: bool) -> Kernel:
        x, w, bias, stride, padding, dilation, _, _, groups = group.root.args[:9]
        root = group.root.meta["val"]
        space = root.dim() - 2
        if strides is None:
            order = channels_last_strides if is_last else contiguous_strides
            strides = order(root.shape)
        y = TensorDescriptor(tuple(root.shape), tuple(strides), DTYPES[root.dtype])
        weight = self._tensor(w)
        problem = Convolution.make(
            "fwd", described(self._tensor(x)), described(weight), _each(stride, space), _each(padding, space),
            _each(dilation, space), groups, y=y,
        )  # fmt: skip
        tail = tail_of(group, bias)
        operands = [self._operand(tail, number, lambda t: t) for number in range(len(tail.operands))]
        return self._planned(
            group.root.name, problem, tail, operands, x, weight,
            lambda empty: empty(problem.y.shape, problem.y.strides),
        )  # fmt: skip

    def _product(self, group: Group) -> Kernel:
        """A product as a convolution by 1x1 taps of one row of pixels, whose channels are neighbours."""
        root = group.root
        bias, x, w = root.args if len(root.args) == 3 else (None, *root.args)
        rows, columns = root.meta["val"].shape
        matrix = self._tensor(w)
        weight = matrix.t()[:, :, None, None]

        def pixels(tensor: Tensor) -> Tensor:
            return tensor.t()[None, :, None, :]

        y = TensorDescriptor(
            (1, columns, 1, rows), (rows * columns, 1, rows * columns, columns), DTYPES[matrix.dtype]
        )
        problem = Convolution.make("fwd", described(pixels(self._tensor(x))), described(weight), y=y)
        tail = tail_of(group, bias)
        operands = [self._operand(tail, number, pixels) for number in range(len(tail.operands))]

        def allocate(empty: Callable[[Sequence[int], Sequence[int]], Tensor]) -> Tensor:
            return through(group, empty((rows, columns), (columns, 1)))

        allocate(
            lambda shape, steps: torch.empty_strided(shape, steps, device="meta")
        )  # refused now, not later
        return self._planned(root.name, problem, tail, operands, x, weight, allocate)

    def _operand(self, tail: Tail, number: int, shown: Callable[[Tensor], Tensor]) -> TensorDescriptor:
        """An operand of the tail as the problem's result counts its elements."""
        tensor, shape = self._tensor(tail.operands[number]), tail.shapes[number]
        if number == 0 and tail.has_bias and len(shape) > 2:
            tensor = tensor.view(-1, *[1] * (len(shape) - 2))
        return described(shown(tail.backs[number](tensor.expand(shape))))

    def _planned(
        self, node: str, problem: Convolution, tail: Tail, operands: list[TensorDescriptor], x: Operand, weight: Tensor,
        allocate: Callable[[Callable[[Sequence[int], Sequence[int]], Tensor]], Tensor],
    ) -> Kernel:  # fmt: skip
        epilogue = None
        if operands or len(tail.expression.instructions) > 1:
            epilogue = Epilogue(tail.expression, tuple(operands))
        handle, budget = self._handle, self._budget
        read = (x, weight, None, *tail.operands)
        name = f"{problem} {epilogue}"
        over = _over(tail.operands, operands, problem.y)
        if isinstance(budget, Listing):
            budget.add(node, problem, handle, epilogue)
            return Kernel(read, allocate, lambda addresses: None, name, over=over)
        request = replace(Request.of(handle.settings), keeps_filter=True)
        if budget is not None:
            request = budget.request(node, problem, handle, epilogue)
            name += f" {request}"
        plan = handle.plan(problem, request, epilogue)
        if len(plan.parts) != 1 or not plan.parts[0].algorithm.may_overwrite_operands:
            over = ()
        if not request.keeps_filter:
            return Kernel(read, allocate, handle.runner(plan), name, over=over)
        filter = self._filter(weight)

        def run(addresses: Sequence[int]) -> None:
            filter.run(handle, plan, addresses)  # type: ignore[arg-type]

        if plan.kept is None:
            return Kernel(read, allocate, run, name, over=over)
        kept = (id(filter), plan.kept_key), plan.kept.bytes
        return Kernel(read, allocate, run, name, weight, kept, over)

    def _pointwise(self, group: Group, strides: Sequence[int] | None) -> Kernel:
        tail = tail_of(group, None)
        shape = tail.shapes[0]
        wide = [self._tensor(o).expand(shape) for o in tail.operands]
        if strides is None:
            full = [t for o, t in zip(tail.operands, wide, strict=True) if self._tensor(o).shape == t.shape]
            strides = next((t.stride() for t in full if is_dense(t)), contiguous_strides(shape))
        out = TensorDescriptor(shape, tuple(strides), DTYPES[group.last.meta["val"].dtype])
        tensors = [*(described(t) for t in wide), out]
        if any(t.dtype != out.dtype for t in tensors):
            raise NotSupported("operands of several types")
        handle = self._handle
        kernel = elementwise_kernel(
            Formula((tail.expression,), (False,)).results, tensors, handle.device, compute_dtype(out.dtype)
        )

        def run(addresses: Sequence[int]) -> None:
            kernel(None, addresses, 1.0, 0.0, 0)

        steps = tuple(strides)
        name = f"elementwise {tail.expression.key} {', '.join(map(str, tensors))}"
        # the loops compute vectors of all results before they store one; those that transpose go through squares
        are_alike = all(_lies_as(t, out) or t.strides[-1] == 0 or t.size == 1 for t in tensors)
        over = _over(tail.operands, tensors[:-1], out) if are_alike else ()
        return Kernel((*tail.operands, None), lambda empty: empty(shape, steps), run, name, over=over)


def _over(
    operands: Sequence[Operand], tensors: Sequence[TensorDescriptor], out: TensorDescriptor
) -> tuple[Node, ...]:
    """The operands that lie in memory as the result does, and are read in that order alone."""
    return tuple(
        operand
        for operand, tensor in zip(operands, tensors, strict=True)
        if isinstance(operand, Node) and _lies_as(tensor, out) and operands.count(operand) == 1
    )


def _lies_as(tensor: TensorDescriptor, other: TensorDescriptor) -> bool:
    """Whether two tensors of one shape and type have every element at the same place."""
    return (tensor.shape, tensor.dtype) == (other.shape, other.dtype) and all(
        a == b for a, b, n in zip(tensor.strides, other.strides, tensor.shape, strict=True) if n > 1
    )


def _each(numbers: Sequence[int], space: int) -> list[int]:
    return list(numbers) * space if len(numbers) == 1 else list(numbers)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor fills its memory, each element once."""
    step = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1:
            if stride != step:
                return False
            step *= extent
    return True
