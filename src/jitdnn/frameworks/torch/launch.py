"""Plans that run on the addresses of tensors, without looking at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from jitdnn.errors import DeviceError
from jitdnn.frameworks.torch import rivals
from jitdnn.frameworks.torch.kinds import DTYPES, at
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.gpu_call import stream_of_library
from jitdnn.planner.plan import Plan
from jitdnn.problems.problem import Problem
from jitdnn.settings import current
from jitdnn.tensor import TensorDescriptor

if TYPE_CHECKING:  # of GPUs alone
    from jitdnn.devices.cuda_kernel import Frozen


class Launch:
    """A problem's plan on a processor."""

    __slots__ = ("_epilogue", "_problem", "_run", "handle")

    def __init__(self, handle: Handle, problem: Problem, epilogue: Epilogue | None) -> None:
        self.handle, self._problem, self._epilogue = handle, problem, epilogue
        self._run: Callable[[Sequence[int]], None] | None = None

    def __call__(self, *operands: Tensor) -> None:
        self.at([operand.data_ptr() for operand in operands])

    def prepare(self) -> None:
        """Make the plan now. Raises what the planner does where nothing runs the problem."""
        self.handle.plan(self._problem, None, self._epilogue)

    def settle(self, addresses: Sequence[int]) -> None:
        """Choose between algorithms whose estimates are close by running them on what lies at these addresses."""
        rivals.settle(self.handle, self._problem, self._epilogue, addresses)

    def at(self, addresses: Sequence[int]) -> None:
        """Run it on what lies at these addresses, which may be those of a recording."""
        run = self._run
        if run is None:
            plan = self.handle.plan(self._problem, None, self._epilogue)
            self._run = self.handle.runner(plan)
            self.handle.run(plan, addresses)
        else:
            run(addresses)


class GpuLaunch:
    """A problem's plan on a GPU, on the stream that is in force in PyTorch."""

    __slots__ = ("_bytes", "_epilogue", "_in_force", "_kernel", "_plan", "_problem", "_runner")

    def __init__(
        self, handle: Handle, problem: Problem, epilogue: Epilogue | None, device: torch.device
    ) -> None:
        self._problem, self._epilogue = problem, epilogue
        self._runner = at(device, handle)
        self._in_force = stream_of_library(("torch",), device.index or 0)
        self._plan: Plan | None = None
        #: what a call is nothing but a launch of, and the workspace that it is given
        self._kernel: Callable[..., None] | None = None
        self._bytes = 0

    def __call__(self, *operands: Tensor) -> None:
        self.at([operand.data_ptr() for operand in operands])

    def prepare(self) -> None:
        """Make the plan now. Raises what the planner does where nothing runs the problem."""
        self._plan = self._runner.plan(self._problem, None, self._epilogue)

    def at(self, addresses: Sequence[int]) -> None:
        """Give it to the stream, on what lies at these addresses."""
        kernel, in_force = self._kernel, self._in_force
        if kernel is None or in_force is None or current().log == "debug":
            self._at(addresses)
            return
        try:
            if self._bytes:
                self._runner.launch(in_force(), kernel, addresses, 1.0, 0.0, self._bytes)
            else:
                kernel(in_force(), addresses, 1.0, 0.0, 0)
        except DeviceError as error:
            assert self._plan is not None
            raise self._runner.explained(error, self._plan) from None

    @property
    def is_settled(self) -> bool:
        """Whether the plan's own kernel has run, and no other stands in for it."""
        return self._kernel is not None

    def frozen(self) -> Frozen | None:
        """What a call was, for generated code; None where calls are more than launches with other addresses."""
        frozen: Callable[[], Frozen | None] | None = getattr(self._kernel, "frozen", None)
        return None if frozen is None or self._bytes or current().log == "debug" else frozen()

    def _at(self, addresses: Sequence[int]) -> None:
        """The same in the long way: of plans that are to be made, or whose kernel another one stands in for."""
        if self._plan is None:
            self.prepare()
        plan = self._plan
        assert plan is not None
        self._runner.run_on_gpu(self._in_force and self._in_force(), plan, addresses)
        if plan.pending is None:
            kernel, self._bytes = plan.launch
            self._kernel = kernel  # last, for other threads


Direct: TypeAlias = Launch | GpuLaunch | None


def direct(
    handle: Handle, problem: Problem | None, operands: Sequence[Tensor], device: torch.device,
    epilogue: Epilogue | None = None, given: Sequence[TensorDescriptor] = (),
) -> Direct:  # fmt: skip
    """What runs a problem's plan on the addresses of its operands, without looking at them; None if that cannot be.

    `operands` are tensors of the shapes, strides and types that all calls of the kind have, in the order of the plan:
    the inputs, the results, and what the epilogue is `given`; they may be without data. Plans within a sum of
    workspaces may change from call to call.
    """
    if problem is None or handle.settings.total_workspace is not None:
        return None
    expected = [*(operand.descriptor for operand in (*problem.inputs, *problem.outputs)), *given]
    if [descriptor(operand) for operand in operands] != expected:
        return None  # nothing may be read or written where no element is
    if device.type == "cpu":
        return Launch(handle, problem, epilogue)
    return GpuLaunch(handle, problem, epilogue, device)


def descriptor(operand: Tensor) -> TensorDescriptor:
    """The descriptor of a tensor of one of the types that ours take."""
    return TensorDescriptor(tuple(operand.shape), operand.stride(), DTYPES[operand.dtype]).normalized()
