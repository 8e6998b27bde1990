"""Plans that run on the addresses of tensors, without looking at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from jitdnn.devices.launch_list import Recorder
from jitdnn.errors import DeviceError, JitdnnError
from jitdnn.frameworks.torch import rivals
from jitdnn.frameworks.torch.fresh import fresh_like
from jitdnn.frameworks.torch.kinds import DTYPES, at
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.gpu_call import stream_of_library
from jitdnn.planner.plan import Plan
from jitdnn.problems.problem import Problem
from jitdnn.recorders import NotRecordable, recorders
from jitdnn.settings import current
from jitdnn.tensor import TensorDescriptor

if TYPE_CHECKING:  # of GPUs alone
    from jitdnn.devices.cuda_kernel import Frozen


#: where operands lie while launches are recorded: nobody reads or writes there
_PLACE, _PLACE_BITS = 1 << 55, 48


def recorded(
    run: Callable[[Sequence[int]], None], count: int, handle: Handle
) -> Callable[[Sequence[int]], None] | None:
    """What `run` launches on a processor for so many addresses, as one list that takes others; None where it cannot be
    recorded."""
    recorder, addresses = Recorder(), [_PLACE + (number << _PLACE_BITS) for number in range(count)]
    for address in addresses:
        recorder.memory(address, 1 << (_PLACE_BITS - 1))
    try:
        with recorder:
            run(addresses)
    except NotRecordable:
        return None
    return handle.replayer(recorder.finish())


class Launch:
    """A problem's plan on a processor."""

    __slots__ = ("_epilogue", "_plan", "_problem", "_run", "handle")

    def __init__(self, handle: Handle, problem: Problem, epilogue: Epilogue | None) -> None:
        self.handle, self._problem, self._epilogue = handle, problem, epilogue
        self._plan: Plan | None = None
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
        if run is not None:
            run(addresses)
        elif self._plan is None:
            self._plan = self.handle.plan(self._problem, None, self._epilogue)
            self.handle.run(self._plan, addresses)
        else:  # it is called again
            self._run = self._runner(self._plan, len(addresses))
            self._run(addresses)

    def _runner(self, plan: Plan, count: int) -> Callable[[Sequence[int]], None]:
        """What runs a plan on so many addresses: as a list of its launches, where nobody looks at each."""
        slow = self.handle.runner(plan)
        replay = None if recorders else recorded(slow, count, self.handle)
        if replay is None:
            return slow

        def run(addresses: Sequence[int]) -> None:
            if recorders or current().log == "debug":
                slow(addresses)
            else:
                replay(addresses)

        return run


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


Run: TypeAlias = Callable[..., tuple[Any, ...]]


def prepared(
    handle: Handle, make: Callable[[], Problem], inputs: Sequence[Tensor | None], results: Sequence[Tensor | None],
    device: torch.device,
) -> Run | None:  # fmt: skip
    """What runs the problem that `make` gives on tensors of the forms of its `inputs`, and returns its results.

    None stands for operands that there are not, `results` may be without data. None where addresses do not do, and
    where `make` raises: what ours refuse they say when they are called.
    """
    there = [one for one in (*inputs, *results) if one is not None]
    try:
        run = direct(handle, make(), there, device)
    except (JitdnnError, KeyError):
        return None
    if run is None:
        return None
    # written out: with loops over the operands it takes twice as long
    space: dict[str, Any] = {"at": run.at}
    lines = [f"def run({', '.join(f'x{number}' for number in range(len(inputs)))}):"]
    for number, one in enumerate(results):
        if one is not None:
            space[f"made{number}"] = fresh_like(one, device)
            lines.append(f"    y{number} = made{number}()")
    named = [
        (f"{name}{number}", one)
        for name, all_of in (("x", inputs), ("y", results))
        for number, one in enumerate(all_of)
    ]
    addresses = ", ".join(f"{name}.data_ptr()" for name, one in named if one is not None)
    given = ", ".join(name if one is not None else "None" for name, one in named[len(inputs) :])
    lines += [f"    at(({addresses},))", f"    return {given},"]
    exec(compile("\n".join(lines), "<jitdnn launch>", "exec"), space)
    found: Run = space["run"]
    return found


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
