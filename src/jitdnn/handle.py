"""A handle: one device and stream, the plans made for it, and the scratch memory that they run in."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from jitdnn import locks, log, retention, targets
from jitdnn.arguments import shown
from jitdnn.devices.gpu import GpuDevice, Graph
from jitdnn.devices.host_scratch import HostScratch, Workspace
from jitdnn.devices.scratch import Block, Scratch
from jitdnn.errors import DeviceError, InvalidArgument, InvalidType
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.planner.background import get_in_background
from jitdnn.planner.choose import get
from jitdnn.planner.find import find
from jitdnn.planner.fronts import Point
from jitdnn.planner.net import least, partitions
from jitdnn.planner.plan import Plan, Request, note_stand_in
from jitdnn.planner.shares import shares
from jitdnn.planner.store import Store
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.recorders import recorder_here, recorders
from jitdnn.retention import Recent
from jitdnn.settings import Settings, current, override
from jitdnn.tensor import DeviceId
from jitdnn.tensor.device_array import compute_readers

if TYPE_CHECKING:  # which needs the compiler of processors' code, and a GPU does not
    from jitdnn.devices.launch_list import LaunchList

# until the first is kept, which says what the settings say
_MOST_PLANS = 4096


class Usage(NamedTuple):
    """What a process, or a handle, keeps for calls to come.

    `plans` are those that handles keep by problem, `calls` the kinds of calls that they remember. `scratch` is in bytes
    and includes what running calls use. `code` is in bytes too: machine code that is loaded, that of all handles,
    with what its loader takes.
    """

    handles: int
    plans: int
    calls: int
    scratch: int
    code: int


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
_handles_lock = locks.lock()


def settled_device(given: Any) -> Device:
    """A device as it is. Raises InvalidType for what is none."""
    if not isinstance(getattr(type(given), "target", getattr(given, "target", None)), (str, property)):
        raise InvalidType(f"the device is {shown(given)}: it must be a device, or its name, cuda:1")
    device: Device = given
    return device


def find_device(name: str) -> Device:
    """The device called `cpu`, `cuda`, `cuda:1`, `opencl:0`, ... Raises InvalidArgument, and DeviceError without it."""
    target_name, _, number = name.strip().lower().partition(":")
    target = targets.find(target_name)
    is_number = number.isascii() and number.isdecimal() and len(number) < 5
    if target is None or (number and not (target.is_gpu and is_number)):
        raise InvalidArgument(
            f"the device is {shown(name)}: it must be {', '.join(targets.names())}, or one of those by number, cuda:1"
        )
    device: Device = target.device(int(number or 0), current())
    return device


class Handle:
    """A context for calls: device, stream, settings, plans and workspace.

    `device` is a device or its name, `cuda:1`. Without one, calls run where their arrays are: in host memory on the CPU
    that the settings describe (`threads`, `cpu`), on a GPU by kernels of its target. A handle with a device takes no
    arrays from elsewhere. `stream`: of a GPU, as a number or an object of PyTorch, CuPy or cuda-core (on opencl a
    command queue); without one a call runs on the stream that is in force where its arrays come from.

    Settings given by keyword hold for every call through the handle, before those of `jitdnn.settings`. Every
    thread has a default handle; `with handle:` makes another one current. A handle may be shared by threads:
    each call gets scratch memory of its own.

    Raises InvalidArgument for an unknown setting or a value out of range, DeviceError for a device that is not there.
    """

    #: whether kernels of calls are launched; of some handles calls are only planned
    launches = True

    def __init__(self, device: Device | str | None = None, stream: Any = None, **settings: object) -> None:
        override(current(), **settings)  # raises now rather than at the first call
        self.stream = stream
        #: for the public functions: calls by what is known before a problem is made; forgotten with the plans
        self.calls: Recent[Hashable, Any] = Recent(_MOST_PLANS)
        #: those of them on a GPU that the cached fast path finds, by what it reads of their arrays
        self.fast_calls: Recent[Hashable, Any] = Recent(_MOST_PLANS)
        if device is not None:
            device = find_device(device) if isinstance(device, str) else settled_device(device)
        self._device = device
        self._overrides = settings
        self._plans: Recent[Hashable, Plan] = Recent(_MOST_PLANS)
        self._resolved: Recent[int, Settings] = Recent(128)
        self._blocks = HostScratch(settings)
        self._lock = locks.lock()
        self._elsewhere: dict[DeviceId, Handle] = {}
        self._gpu: Any = None
        #: of a GPU: the stream of all calls, in the driver's terms; None for that of the arrays
        self.gpu_stream: Any = None
        #: of a GPU: what is being captured by `capture`
        self.graph: Graph | None = None
        if getattr(self._device, "device_id", None) is not None:
            self._gpu = gpu = cast(GpuDevice, self._device)
            self._scratch = Scratch(gpu, settings)
            if stream is not None:
                self.gpu_stream = gpu.stream(stream)
        with _handles_lock:
            _handles.add(self)
        retention.code.register(self)

    def at(self, device_id: DeviceId | None) -> Handle:
        """The handle for arrays on a GPU (None: host memory): this one, or, if it has no device of its own, one that
        it keeps for that GPU. Raises DeviceError if the arrays are not where the handle is.
        """
        own = getattr(self._device, "device_id", None) if self._device is not None else None
        if self._device is not None and device_id == own:
            return self
        if self._device is not None:
            raise DeviceError(
                f"arrays are {_where(device_id)}, and the handle is for those {_where(own)}: move them "
                "(jitdnn.to_device, .numpy()) or use another handle"
            )
        if device_id is None:
            target = self.settings.target
            if targets.is_gpu(target):
                raise DeviceError(
                    f"arrays are in host memory, and the target is {target}: move them with "
                    f"jitdnn.to_device(x, '{target}')"
                )
            return self
        found = self._elsewhere.get(device_id)
        if found is None:
            target, index = device_id
            made = Handle(targets.get(target).device(index), self.stream, **self._overrides)
            found = self._elsewhere.setdefault(device_id, made)
        return found

    @property
    def on_gpu(self) -> Any:
        """The GPU that the handle was made for; None for the processor, or if calls run where their arrays are."""
        return self._gpu

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings that the handle was made with."""
        return dict(self._overrides)

    @property
    def settings(self) -> Settings:
        """The settings in force for a call made here and now through this handle."""
        values = current()
        if not self._overrides:
            return values
        found = self._resolved.get(values.serial)
        if found is None:
            found = self._resolved.put(values.serial, override(values, **self._overrides))
        return found

    @property
    def device(self) -> Device:
        """The device given, or that of the target and settings in force."""
        if self._device is not None:
            return self._device
        values = self.settings
        device: Device = targets.get(values.target).device(0, values)
        return device

    def plan(
        self, problem: Problem, request: Request | None = None, epilogue: Epilogue | None = None
    ) -> Plan:
        """The plan for a problem: one look-up in a dictionary on every call but the first.

        `request` defaults to what the settings in force ask for. Raises NotSupported, with the reason of
        every algorithm, if none fulfils it.
        """
        values = self.settings
        key = (problem, request, epilogue, values.serial)
        found = self._plans.recall(key)
        if found is not None:
            return found
        request = request or Request.of(values)
        if values.total_workspace is not None and isinstance(problem, Convolution):
            limited = self._within(values.total_workspace, problem, request)
            plan = self._make(key, problem, limited, epilogue)
            shares(self.device.name, values.total_workspace).made(self, (problem, request), plan)
            return plan
        return self._make(key, problem, request, epilogue)

    def _within(self, total: int, problem: Problem, request: Request) -> Request:
        """The request with no more workspace than the handle's share of a budget."""
        device = self.device

        def front() -> Sequence[Point]:
            most = least(request.workspace_limit, total)
            return partitions(problem, device, replace(request, workspace_limit=most), Store.default())

        share = shares(device.name, total).limit(self, (problem, request), front, self.settings.plans_limit)
        return replace(request, workspace_limit=least(request.workspace_limit, share))

    def _make(self, key: Hashable, problem: Problem, request: Request, epilogue: Epilogue | None) -> Plan:
        # one at a time: kernels that are measured must not run against each other
        with self._lock:
            found = self._plans.recall(key)
            if found is not None:
                return found
            if request.choice == "find":
                plan = find(problem, self.device, request, epilogue, is_fresh=False)
            elif self.settings.compile == "background" and self._gpu is not None and self.graph is None:
                plan = get_in_background(problem, self.device, request, epilogue)
            else:
                plan = get(problem, self.device, request, epilogue)
            return self._plans.put(key, plan, self.settings.plans_limit)

    def workspace(self, bytes: int, stream: Any = None) -> Workspace | Block:
        """A `with` block that gives the address of `bytes` bytes of scratch memory.

        On a GPU it is memory for launches on `stream`, and may be used by those that follow on the same stream.
        """
        if self._gpu is None or not bytes:
            return Workspace(self._blocks, bytes)
        return self._scratch.reserve(self._gpu.default_stream if stream is None else stream, bytes)

    def run(
        self, plan: Plan, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0, kept: int = 0
    ) -> None:
        """Run a plan on the handle's stream. `pointers`: the inputs, the output, the epilogue's operands.

        `kept`: the address of what the kernel prepared of its filter, for a plan that has `kept`; 0 to prepare it in
        this call.
        """
        if plan.device_id is not None:
            self.at(plan.device_id).run_on_gpu(None, plan, pointers, alpha, beta)
            return
        if recorders and self._is_recorded(plan, pointers, alpha, beta, kept):
            return
        if kept:
            assert plan.kept is not None
            block = self._blocks.take(plan.workspace - plan.kept.bytes)
            try:
                plan.run.run_kept(self.stream, pointers, alpha, beta, block.pointer, kept)
            finally:
                self._blocks.give_back(block)
        elif plan.workspace:
            block = self._blocks.take(plan.workspace)
            try:
                plan.run(self.stream, pointers, alpha, beta, block.pointer)
            finally:
                self._blocks.give_back(block)
        else:
            plan.run(self.stream, pointers, alpha, beta, 0)
        if log.is_enabled(logging.DEBUG):
            log.ran(plan.problem, plan.algorithm)

    def runner(self, plan: Plan) -> Callable[[Sequence[int]], None]:
        """`run(plan, pointers)` for who calls it often: what is the same in each call is looked up now."""
        if plan.device_id is not None:
            return lambda pointers: self.run(plan, pointers)
        kernel, stream, size, blocks = plan.run, self.stream, plan.workspace, self._blocks

        def run(pointers: Sequence[int]) -> None:
            if recorders or log.is_enabled(logging.DEBUG):
                self.run(plan, pointers)
            elif size:
                block = blocks.take(size)
                try:
                    kernel(stream, pointers, 1.0, 0.0, block.pointer)
                finally:
                    blocks.give_back(block)
            else:
                kernel(stream, pointers, 1.0, 0.0, 0)

        return run

    def replayer(self, launches: LaunchList) -> Callable[[Sequence[int]], None]:
        """`launches.run(addresses)` with the handle's scratch memory, on a processor, for who calls it often."""
        return launches.runner(self._blocks)

    def _is_recorded(self, plan: Plan, pointers: Sequence[int], alpha: float, beta: float, kept: int) -> bool:
        """Whether the launches of this thread are recorded, and those of the plan have been noted."""
        recorder = recorder_here()
        if recorder is None or not recorder.takes(pointers):
            return False
        recorder.keep(plan)
        if kept:
            assert plan.kept is not None
            workspace = recorder.scratch(max(1, plan.workspace - plan.kept.bytes))
            plan.run.run_kept(self.stream, pointers, alpha, beta, workspace, kept)
        else:
            plan.run(self.stream, pointers, alpha, beta, recorder.scratch(plan.workspace))
        return True

    def run_on_gpu(
        self, stream: Any, plan: Plan, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """Give a plan of the handle's GPU to a stream; None for the handle's, or the default one.

        Returns before it is done. Raises DeviceError with the problem and the kernel if the driver refuses it, and
        what compiling its kernel in the background has raised.
        """
        if stream is None:
            stream = self._gpu.default_stream if self.gpu_stream is None else self.gpu_stream
        pending = plan.pending
        if pending is not None:
            # a graph would keep for ever what runs for now
            if self.graph is not None or self._gpu.is_capturing(stream):
                pending.wait()
            pending.check()
            note_stand_in(pending)
        run, bytes = plan.launch
        try:
            self.launch(stream, run, pointers, alpha, beta, bytes)
        except DeviceError as error:
            raise self.explained(error, plan) from None
        if log.is_enabled(logging.DEBUG):
            log.ran(plan.problem, plan.algorithm)

    def launch(
        self, stream: Any, kernel: Kernel, pointers: Sequence[int], alpha: float, beta: float, bytes: int
    ) -> None:
        """Give a kernel of the handle's GPU to a stream, with so many bytes of workspace."""
        if bytes:
            with self._scratch.reserve(stream, bytes) as workspace:
                kernel(stream, pointers, alpha, beta, workspace)
        else:
            kernel(stream, pointers, alpha, beta, 0)

    def explained(self, error: DeviceError, plan: Plan) -> DeviceError:
        """The error of a plan that could not be run, with its problem."""
        return type(error)(f"{plan.problem}: {error}")

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Capture the calls of a `with` block into a graph (of CUDA), which `replay` runs again as one launch.

            with handle.capture() as graph:
                jd.conv(x, w, out=y)
            graph.replay()

        Nothing runs in the block. The calls must have been made once before, so that their kernels are compiled and
        loaded; `out` should be given, since replays write to the same memory. All calls of the block go to one stream:
        the handle's, or one that is made for it. Raises DeviceError for a handle whose target has no graphs.
        """
        own = self.at(getattr(self.device, "device_id", None))
        gpu = own.on_gpu
        target = targets.find(self.device.target)
        if gpu is None or target is None or not target.has_graphs:
            having = [known.name for known in targets.registered() if known.has_graphs]
            raise DeviceError(
                f"the handle is for {self.device.target}: graphs are there for {', '.join(having)}, "
                f"Handle('{having[0]}') or target='{having[0]}'"
            )
        before, held = own.gpu_stream, None
        if not before:  # the default stream cannot be captured
            held = gpu.own_stream()
            own.gpu_stream = gpu.stream(held)
        compute_readers()  # what is only captured is not computed
        graph: Graph = gpu.capture(own.gpu_stream, (own, held))
        graph.begin()
        own.graph = graph
        try:
            with own:
                yield graph
        except BaseException:
            graph.end(is_failed=True)
            raise
        else:
            graph.end()
        finally:
            own.graph, own.gpu_stream = None, before

    def forget(self) -> None:
        """Drop all plans, so that the next calls plan anew (with times stored meanwhile, for one)."""
        self._plans.clear()
        self.calls.clear()
        self.fast_calls.clear()
        for other in tuple(self._elsewhere.values()):
            other.forget()

    def age(self) -> None:
        """Drop the plans and calls that were not used since the last time; what is used now stays until the next."""
        for kept in (self._plans, self.calls, self.fast_calls):
            kept.age()

    def halve(self) -> bool:
        """Drop half of the plans and calls that were not used since the last `age`; False if there are none."""
        had_some = [kept.halve() for kept in (self._plans, self.calls, self.fast_calls)]
        return any(had_some)

    @property
    def usage(self) -> Usage:
        """What this handle keeps, without those that it has made for other devices; the code is that of the process."""
        scratch = self._blocks.bytes if self._gpu is None else self._scratch.bytes
        return Usage(1, len(self._plans), len(self.calls), scratch, retention.code.account.bytes)

    def trim(self) -> None:
        """Free the scratch memory that no call is using, and on GPUs what no graph refers to."""
        self._blocks.clear()
        if self._gpu is not None:
            self._scratch.trim()
            self._gpu.trim()
        for other in tuple(self._elsewhere.values()):
            other.trim()

    def __enter__(self) -> Self:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.set(_entered.get()[:-1])


def settled_handle(handle: Any) -> Handle:
    """A handle that was given, or the current one for None. Raises InvalidType."""
    if handle is None:
        return current_handle()
    if not isinstance(handle, Handle):
        raise InvalidType(
            f"handle is {shown(handle)}: it must be a jitdnn.Handle, or None for that of the thread"
        )
    return handle


def usage() -> Usage:
    """What all handles of this process keep together.

    The settings `plans_limit`, `code_limit` and `scratch_limit` bound it; `Handle.forget` and `Handle.trim` let go of
    it.
    """
    with _handles_lock:
        each = [handle.usage for handle in tuple(_handles)]
    handles, plans, calls, scratch = (sum(one[n] for one in each) for n in range(4))
    return Usage(handles, plans, calls, scratch, retention.code.account.bytes)


def _where(device_id: DeviceId | None) -> str:
    return "in host memory" if device_id is None else f"on {device_id[0]}:{device_id[1]}"


_entered: ContextVar[tuple[Handle, ...]] = ContextVar("jitdnn_handles", default=())
_local = threading.local()


def current_handle() -> Handle:
    """The handle of the innermost `with` block of this thread or task, or the thread's own default handle."""
    entered = _entered.get()
    if entered:
        return entered[-1]
    found: Handle | None = getattr(_local, "handle", None)
    if found is None:
        found = _local.handle = Handle()
    return found
