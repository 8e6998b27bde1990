"""Plans that run on the addresses of tensors, without looking at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from jitdnn.devices.cuda_kernel import frozen_parts
from jitdnn.devices.launch_list import LaunchList, Recorder
from jitdnn.errors import DeviceError, JitdnnError
from jitdnn.frameworks.torch import rivals
from jitdnn.frameworks.torch.fresh import fresh_like
from jitdnn.frameworks.torch.kinds import DTYPES, at
from jitdnn.frameworks.torch.native_run import OnGpu, Place, on_cpu, on_gpu
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


def listed(run: Callable[[Sequence[int]], None], count: int) -> LaunchList | None:
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
    return recorder.finish()


def recorded(
    run: Callable[[Sequence[int]], None], count: int, handle: Handle
) -> Callable[[Sequence[int]], None] | None:
    """What runs that list."""
    found = listed(run, count)
    return None if found is None else handle.replayer(found)


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

    def listed(self, count: int) -> LaunchList | None:
        """Its launches for so many addresses, once it is called again and again; None where somebody looks at each."""
        plan = self._plan
        return (
            None
            if self._run is None or plan is None or recorders
            else listed(self.handle.runner(plan), count)
        )

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

    __slots__ = ("_bytes", "_epilogue", "_in_force", "_kernel", "_plan", "_problem", "_runner", "index")

    def __init__(
        self, handle: Handle, problem: Problem, epilogue: Epilogue | None, device: torch.device
    ) -> None:
        self._problem, self._epilogue = problem, epilogue
        self._runner = at(device, handle)
        self.index = device.index or 0
        self._in_force = stream_of_library(("torch",), self.index)
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

    def on_gpu(self, places: Sequence[Place]) -> OnGpu | None:
        """The same of calls of several kernels, and of those that need workspace, with addresses at these places."""
        if self._kernel is None or current().log == "debug":
            return None
        parts = frozen_parts(self._kernel, len(places))
        return None if parts is None else OnGpu(parts, places, self._bytes)

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


class KernelLaunch:
    """A kernel of a GPU that is no plan's, with its bytes of workspace, on the stream that is in force in PyTorch.

    `alignment`: of all addresses, in calls by generated code.
    """

    __slots__ = ("_alignment", "_bytes", "_in_force", "_kernel", "_runner", "index")

    def __init__(
        self,
        runner: Handle,
        kernel: Callable[..., None],
        bytes: int,
        device: torch.device,
        alignment: int = 1,
    ) -> None:
        self.index = device.index or 0
        in_force = stream_of_library(("torch",), self.index)
        assert in_force is not None
        self._runner, self._kernel, self._bytes, self._in_force = runner, kernel, bytes, in_force
        self._alignment = alignment

    def at(self, addresses: Sequence[int]) -> None:
        """Give it to the stream, on what lies at these addresses."""
        self._runner.launch(self._in_force(), self._kernel, addresses, 1.0, 0.0, self._bytes)

    def on_gpu(self, places: Sequence[Place]) -> OnGpu | None:
        """A call for generated code, with addresses at these places; None where it is more than launches."""
        parts = frozen_parts(self._kernel, len(places))
        if parts is None:
            return None
        aligned = [
            part._replace(frozen=part.frozen._replace(alignment=max(self._alignment, part.frozen.alignment)))
            for part in parts
        ]
        return OnGpu(aligned, places, self._bytes)


Direct: TypeAlias = Launch | GpuLaunch | None


Run: TypeAlias = Callable[..., tuple[Any, ...]]


def prepared(
    handle: Handle, make: Callable[[], Problem], inputs: Sequence[Tensor | None], results: Sequence[Tensor | None],
    device: torch.device, is_one: bool = False,
) -> Run | None:  # fmt: skip
    """What runs the problem that `make` gives on tensors of the forms of its `inputs`, and returns its results, or
    `is_one` result alone. It takes other arguments behind its inputs, and does not look at them.

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
    lines = [f"def run({', '.join(f'x{number}' for number in range(len(inputs)))}, *_):"]
    makers = [None if one is None else fresh_like(one, device) for one in results]
    for number, made in enumerate(makers):
        if made is not None:
            space[f"made{number}"] = made
            lines.append(f"    y{number} = made{number}()")
    named = [
        (f"{name}{number}", one)
        for name, all_of in (("x", inputs), ("y", results))
        for number, one in enumerate(all_of)
    ]
    addresses = ", ".join(f"{name}.data_ptr()" for name, one in named if one is not None)
    given = ", ".join(name if one is not None else "None" for name, one in named[len(inputs) :])
    lines += [f"    at(({addresses},))", f"    return {given}{'' if is_one else ','}"]
    exec(compile("\n".join(lines), "<jitdnn launch>", "exec"), space)
    found: Run = space["run"]
    places = [Place(number) for number, one in enumerate((*inputs, *results)) if one is not None]
    return offering(found, partial(native, run, len(inputs), makers, places, found, is_one), [run])


_NATIVE, _WAITS = "native", "waits"
"""The attributes of a function that make the same as generated code, and say whether it is too early for that."""
_TRIES = 4


def offering(
    run: Callable[..., Any], make: Callable[[], Callable[..., Any] | None], launches: Sequence[Any] = ()
) -> Callable[..., Any]:
    """`run` of these launches, of which `make` gives the same as generated code; None where that cannot be, or not
    yet."""

    def waits() -> bool:
        return any(isinstance(one, GpuLaunch) and not one.is_settled for one in launches)

    setattr(run, _NATIVE, make)
    setattr(run, _WAITS, waits)
    return run


def shortening(
    owner: Any, name: str, run: Callable[..., Any], then: Callable[[Callable[..., Any]], None] | None = None
) -> Callable[..., Any]:
    """`run` for an owner's attribute of this name, until generated code, which takes its place there, can do the same:
    behind the first calls by the plan's own kernels, which may be compiled beside some calls more, and `then` is told
    of it. What does not offer that stays as it is."""
    make: Callable[[], Callable[..., Any] | None] | None = getattr(run, _NATIVE, None)
    if make is None:
        return run
    left, waits = _TRIES, getattr(run, _WAITS)

    def first(*operands: Any) -> Any:
        nonlocal left
        result = run(*operands)
        if waits():  # another kernel stands in
            return result
        left -= 1
        found = make()
        if found is not None or not left:
            setattr(owner, name, found or run)
            if found is not None and then is not None:
                then(found)
        return result

    return first


class Placed:
    """`run(*tensors)` on so many tensors of the caller's, results among them: a launch with the addresses at these
    places, by generated code where that can be.

    `slow` is the same in Python, where that is more than a launch, or there is none.
    """

    __slots__ = ("run",)

    def __init__(
        self, launch: Launch | GpuLaunch | KernelLaunch | None, count: int, places: Sequence[Place],
        slow: Callable[..., None] | None = None,
    ) -> None:  # fmt: skip
        if launch is None:
            assert slow is not None
            self.run: Callable[..., Any] = slow
            return
        at = launch.at

        def run(*tensors: Tensor) -> None:
            given = [one.data_ptr() for one in tensors]
            at([given[operand] + offset for operand, offset in places])

        slow = slow or run
        offered = offering(slow, partial(native, launch, count, (), places, slow), [launch])
        self.run = shortening(self, "run", offered)


def native(
    launch: Launch | GpuLaunch | KernelLaunch, inputs: int, makers: Sequence[Callable[[], Tensor] | None],
    places: Sequence[Place], slow: Callable[..., Any], is_one: bool = False,
) -> Callable[..., Any] | None:  # fmt: skip
    """What runs a launch on so many inputs as generated code, with the plan's addresses at these places; None where
    that cannot be, or not yet. `slow` is the same in Python."""
    if isinstance(launch, Launch):
        found = launch.listed(len(places))
        return None if found is None else on_cpu(found, inputs, makers, places, slow, is_one)
    kernel = launch.on_gpu(places)
    return None if kernel is None else on_gpu([kernel], launch.index, inputs, makers, slow, is_one)


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
