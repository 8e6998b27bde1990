"""A handle: one device and stream, the plans made for it, and the scratch memory that they run in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import numpy as np

from jitdnn import log
from jitdnn.kernels.algorithm import Device, Epilogue
from jitdnn.planner.choose import get
from jitdnn.planner.find import find
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems.problem import Problem
from jitdnn.settings import Settings, current, override

# With more plans than this (shapes that change all the time) the handle forgets all and begins again.
MOST_PLANS = 4096
_ALIGNMENT = 64


def _host(values: Settings) -> Device:
    from jitdnn.devices import cpu  # and with it the compiler of the CPU's kernels

    return cpu.host(values.threads, values.cpu)


_DEVICES: dict[str, Callable[[Settings], Device]] = {"cpu": _host}


class _Block:
    __slots__ = ("bytes", "memory", "pointer")

    def __init__(self, size: int) -> None:
        self.bytes = size
        self.memory = np.empty(size + _ALIGNMENT, np.uint8)
        start: int = self.memory.ctypes.data
        self.pointer = start + -start % _ALIGNMENT


def _take(free: list[_Block], size: int) -> _Block:
    """A block that nobody uses, from `free` or new."""
    try:
        # list.pop is atomic, so threads that share the handle never get the same block
        block = free.pop()
    except IndexError:
        return _Block(size)
    if block.bytes < size:
        del block  # the small block is freed before the larger one is made
        block = _Block(size)
    return block


class Workspace:
    """A piece of a handle's scratch memory for the time of a `with` block, which gives its address.

    The address is 64-byte aligned; it is 0 for 0 bytes. The content is whatever the last user left.
    """

    __slots__ = ("_block", "_bytes", "_free")

    def __init__(self, free: list[_Block], bytes: int) -> None:
        self._free = free
        self._bytes = bytes
        self._block: _Block | None = None

    def __enter__(self) -> int:
        if self._bytes == 0:
            return 0
        self._block = _take(self._free, self._bytes)
        return self._block.pointer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._block is not None:
            self._free.append(self._block)
            self._block = None


class Handle:
    """A context for calls: device, stream, settings, plans and workspace.

    `device` and `stream` default to the CPU that the settings describe (`threads`, `cpu`) and to no stream.
    Settings given by keyword hold for every call through the handle, before those of `jitdnn.settings`. Every
    thread has a default handle; `with handle:` makes another one current. A handle may be shared by threads:
    each call gets scratch memory of its own.

    Raises InvalidArgument for an unknown setting or a value out of range.
    """

    def __init__(self, device: Device | None = None, stream: Any = None, **settings: object) -> None:
        override(current(), **settings)  # raises now rather than at the first call
        self.stream = stream
        #: for the public functions: calls by what is known before a problem is made; forgotten with the plans
        self.calls: dict[Hashable, Any] = {}
        self._device = device
        self._overrides = settings
        self._plans: dict[Hashable, Plan] = {}
        self._resolved: dict[int, Settings] = {}
        self._blocks: list[_Block] = []
        self._lock = threading.RLock()

    @property
    def settings(self) -> Settings:
        """The settings in force for a call made here and now through this handle."""
        values = current()
        if not self._overrides:
            return values
        found = self._resolved.get(values.serial)
        if found is None:
            found = self._resolved[values.serial] = override(values, **self._overrides)
        return found

    @property
    def device(self) -> Device:
        """The device given, or that of the target and settings in force."""
        if self._device is not None:
            return self._device
        values = self.settings
        return _DEVICES[values.target](values)

    def plan(
        self, problem: Problem, request: Request | None = None, epilogue: Epilogue | None = None
    ) -> Plan:
        """The plan for a problem: one look-up in a dictionary on every call but the first.

        `request` defaults to what the settings in force ask for. Raises NotSupported, with the reason of
        every algorithm, if none fulfils it.
        """
        values = self.settings
        key = (problem, request, epilogue, values.serial)
        found = self._plans.get(key)
        return self._make(key, problem, request or Request.of(values), epilogue) if found is None else found

    def _make(self, key: Hashable, problem: Problem, request: Request, epilogue: Epilogue | None) -> Plan:
        # one at a time: kernels that are measured must not run against each other
        with self._lock:
            found = self._plans.get(key)
            if found is not None:
                return found
            if request.choice == "find":
                plan = find(problem, self.device, request, epilogue, is_fresh=False)
            else:
                plan = get(problem, self.device, request, epilogue)
            if len(self._plans) >= MOST_PLANS:
                self.forget()
            self._plans[key] = plan
            return plan

    def workspace(self, bytes: int) -> Workspace:
        """A `with` block that gives the address of `bytes` bytes of scratch memory."""
        return Workspace(self._blocks, bytes)

    def run(
        self, plan: Plan, pointers: Sequence[int], alpha: float = 1.0, beta: float = 0.0, kept: int = 0
    ) -> None:
        """Run a plan on the handle's stream. `pointers`: the inputs, the output, the epilogue's operands.

        `kept`: the address of what the kernel prepared of its filter, for a plan that has `kept`; 0 to prepare it in
        this call.
        """
        if kept:
            assert plan.kept is not None
            block = _take(self._blocks, plan.workspace - plan.kept.bytes)
            try:
                plan.run.run_kept(self.stream, pointers, alpha, beta, block.pointer, kept)
            finally:
                self._blocks.append(block)
        elif plan.workspace:
            block = _take(self._blocks, plan.workspace)
            try:
                plan.run(self.stream, pointers, alpha, beta, block.pointer)
            finally:
                self._blocks.append(block)
        else:
            plan.run(self.stream, pointers, alpha, beta, 0)
        if log.is_enabled(logging.DEBUG):
            log.ran(plan.problem, plan.algorithm)

    def forget(self) -> None:
        """Drop all plans, so that the next calls plan anew (with times stored meanwhile, for one)."""
        self._plans.clear()
        self.calls.clear()

    def trim(self) -> None:
        """Free the scratch memory that no call is using."""
        self._blocks.clear()

    def __enter__(self) -> Self:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.set(_entered.get()[:-1])


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
