"""Measuring many problems ahead, on several devices of one model at once, into the tuning store.

Every GPU but the first has a process of its own: kernels are launched by Python, and two threads that launch would wait
for each other in the middle of what they measure.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from jitdnn.arguments import callback, real_number, sequence, shown
from jitdnn.errors import InvalidArgument, InvalidType, JitdnnError
from jitdnn.groups import Group
from jitdnn.handle import current_handle, find_device, settled_device
from jitdnn.kernels.algorithm import Device
from jitdnn.ops.tune_together import check_together, divided, exchange
from jitdnn.ops.worker import Shared, WorkerProcess, answer, given
from jitdnn.planner.net import least, partitions
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Measurement, Store
from jitdnn.problems import MOST_PROBLEMS, Problem, settled_problem
from jitdnn.settings import current, override, settings


@dataclass(frozen=True, slots=True)
class TunedProblem:
    """What became of a problem: `measured`, the rows that are new in the store (the problem's and those of its parts),
    on which device by its number in the list; none if all was there. `failure` says why nothing takes it, `rank` which
    of several processes measured it."""

    problem: Problem
    device: int
    measured: tuple[Measurement, ...]
    failure: str | None = None
    rank: int = 0

    @property
    def was_known(self) -> bool:
        """Whether the store had all of it."""
        return not self.measured and self.failure is None


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a call of `tune` did, problem by problem in the order given."""

    problems: tuple[TunedProblem, ...]
    device_name: str

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """All new rows of the store."""
        return tuple(row for each in self.problems for row in each.measured)

    @property
    def known(self) -> tuple[Problem, ...]:
        """The problems of which everything was in the store."""
        return tuple(each.problem for each in self.problems if each.was_known)

    @property
    def failures(self) -> dict[Problem, str]:
        """Why nothing takes a problem, for those."""
        return {each.problem: each.failure for each in self.problems if each.failure is not None}


def tune(
    problems: Iterable[Problem | str],
    *,
    devices: Sequence[Device | str] | None = None,
    seconds: float = 1.0,
    store: Store | None = None,
    progress: Callable[[TunedProblem], None] | None = None,
    group: Group | None = None,
    **overrides: object,
) -> Tuning:
    """Measure `problems`, and every part that dividing them may need, and keep the times in the tuning store.

        jd.tune(["conv_fwd n64 c64 h27 w27 k192 r5 s5 pad2"], devices=["cuda:0", "cuda:1"], workspace_limit="64 MiB")

    `devices`, by default that of the current handle, work side by side, the largest problem first. They must be of one
    model, for the times are those of the model. What the store has is not measured again, and what is measured is
    stored at once, so that nothing is lost if the call is interrupted. Each problem is measured for up to `seconds`,
    each part for a tenth of that. With `group` (jitdnn.distributed) several processes make this call, on other devices
    each: they divide the list, and the stores of all have all times in the end. `store` is another one than that of
    the settings. `progress` is called after each problem, from one thread at a time. `overrides` are settings
    (`workspace_limit`, `total_workspace`, `division`, `vendor`, ...): algorithms and parts are those that they allow.

    Raises ParseError and InvalidShape for text that is no problem, InvalidArgument for devices of several models and
    for a setting that there is not, DeviceError for a device that is not there. A problem that nothing takes is no
    error: its `failure` says why.
    """
    different = list(dict.fromkeys(map(settled_problem, sequence(problems, "problems", MOST_PROBLEMS))))
    seconds = real_number(seconds, "seconds", 0.0)
    callback(progress, "progress")
    if store is not None and not isinstance(store, Store):
        raise InvalidType(f"store is {shown(store)}: it must be a Store, or None for that of the settings")
    if group is not None and not _is_group(group):
        raise InvalidType(
            f"group is {shown(group)}: it must be one of jitdnn.distributed, or None for this process alone"
        )
    if devices is not None:
        devices = sequence(devices, "devices", MOST_PROBLEMS)
    if devices is not None and not devices:
        raise InvalidArgument("there are no devices to measure on: give at least one, cpu or cuda:0")
    with settings(**overrides):
        owner = current_handle()
        found = [owner.device] if devices is None else [_device(each) for each in devices]
        _check(found)
        own = different
        if group is not None:
            check_together(group, different, found)
            own = divided(different, group.size)[group.rank]
        # an owner's settings that are not in force here count too, as they do for its plans
        values = override(owner.settings, **overrides)
        limit = least(values.workspace_limit, values.total_workspace)
        request = replace(Request.of(values), choice="find", workspace_limit=limit)
        members: list[_Measures] = []
        for number, device in enumerate(found[: max(1, len(own))]):
            name = _name(device)
            arguments = (number, request, store or Store.default(), seconds)
            is_here = number == 0 or name is None
            members.append(_Here(device, *arguments) if is_here else _Worker(str(name), *arguments))
        results = _Team(own, members, progress).run()
        if group is not None:
            _take_others(group, results, store or Store.default(), progress)
    return Tuning(tuple(results[problem] for problem in different), found[0].name)


def _take_others(
    group: Group,
    results: dict[Problem, TunedProblem],
    store: Store,
    progress: Callable[[TunedProblem], None] | None,
) -> None:
    """Add what other processes found to the results and to the store."""
    told = [
        {
            "problem": str(each.problem),
            "device": each.device,
            "measured": [asdict(row) for row in each.measured],
            "failure": each.failure,
        }
        for each in results.values()
    ]
    for rank, entries in enumerate(exchange(group, told)):
        for entry in entries:
            rows = tuple(Measurement(**row) for row in entry["measured"])
            problem = settled_problem(entry["problem"])
            found = TunedProblem(problem, entry["device"], rows, entry["failure"], rank)
            results[problem] = found
            if rank != group.rank:
                store.add(rows)
                if progress is not None:
                    progress(found)


def _device(given: Device | str) -> Device:
    return find_device(given) if isinstance(given, str) else settled_device(given)


def _is_group(given: Any) -> bool:
    """Whether it has what is asked of a group here; whatever it raises when it is looked at, it is none then."""
    try:
        return not isinstance(given, type) and all(
            hasattr(given, name) for name in ("rank", "size", "gather")
        )
    except Exception:
        return False


def _check(devices: Sequence[Device]) -> None:
    for number, device in enumerate(devices):
        if device.name != devices[0].name:
            raise InvalidArgument(
                f"devices of one model are tuned together, and device 0 is {devices[0].name!r}, device {number} is "
                f"{device.name!r}: tune them in turn, and merge what is exported"
            )
        if any(
            device is other or (_name(device) and _name(device) == _name(other)) for other in devices[:number]
        ):
            raise InvalidArgument(
                f"device {number} is the same as one before it ({device.name}): two measurements at once would "
                "disturb each other, give each device once"
            )


def _name(device: Device) -> str | None:
    """What `find_device` finds it by, in another process too; None for a device that is not one of ours."""
    device_id = getattr(device, "device_id", None)
    return (
        f"{device_id[0]}:{device_id[1]}"
        if device_id is not None
        else "cpu"
        if device.target == "cpu"
        else None
    )


class _Noting(Store):
    """A store that notes what is recorded through it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.path)
        self._inner = store
        self.noted: list[Measurement] = []

    def look_up(self, problem: str, epilogue: str, device: str) -> dict[tuple[str, int], Measurement]:
        return self._inner.look_up(problem, epilogue, device)

    def add(self, rows: Sequence[Measurement]) -> None:
        self._inner.add(rows)
        self.noted += rows


class _Measures(Protocol):
    """Who measures: this process, or another one."""

    def measure(self, problem: Problem) -> TunedProblem | None: ...

    def end(self) -> None: ...


class _Here:
    """A device that this process measures on."""

    def __init__(self, device: Device, number: int, request: Request, store: Store, seconds: float) -> None:
        self._device, self._number = device, number
        self._request, self._store, self._seconds = request, store, seconds

    def measure(self, problem: Problem) -> TunedProblem:
        noting = _Noting(self._store)
        failure = None
        try:
            partitions(problem, self._device, self._request, noting, self._seconds)
        except JitdnnError as error:
            failure = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
        # the last of what was measured twice, as a problem and as a part
        rows = {row.key: row for row in noting.noted}
        return TunedProblem(problem, self._number, tuple(rows.values()), failure)

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class _Task:
    """What a worker is told before its problems."""

    settings: dict[str, Any]
    device: str
    number: int
    request: Request
    seconds: float


class _Worker:
    """A device that another process measures on."""

    def __init__(self, device: str, number: int, request: Request, store: Store, seconds: float) -> None:
        task = _Task(given(current()), device, number, request, seconds)
        self._store = store
        # all that it may find in its own memory, if there is no file that both of them read
        start = (task, store.path, store.rows() if store.path is None else [])
        self._process = WorkerProcess(__name__, start)

    def measure(self, problem: Problem) -> TunedProblem | None:
        """What became of it; None if the process is dead."""
        found: TunedProblem | None = self._process.ask(problem)
        if found is not None:
            # what it could not write to the disk is in its memory alone
            self._store.add(found.measured)
        return found

    def end(self) -> None:
        self._process.end()


def serve() -> None:
    """What a worker does: measures what it is told to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    answer(_measuring)


@contextmanager
def _measuring(
    start: tuple[_Task, Path | None, list[Measurement]],
) -> Iterator[Callable[[Problem], TunedProblem]]:
    task, path, rows = start
    with settings(**task.settings):
        store = Store(path)
        store.add(rows)
        here = _Here(find_device(task.device), task.number, task.request, store, task.seconds)
        yield here.measure


class _Team(Shared[Problem, TunedProblem]):
    """The devices, which take one problem after the other."""

    def __init__(
        self,
        problems: Sequence[Problem],
        members: Sequence[_Measures],
        progress: Callable[[TunedProblem], None] | None,
    ) -> None:
        # the largest first: at the end no device works long while the others have nothing left
        super().__init__(sorted(problems, key=lambda problem: -problem.flops), progress)
        self._members = members
        self._errors: list[BaseException] = []

    def run(self) -> dict[Problem, TunedProblem]:
        # settings in force belong to the thread: each takes them along
        threads = [
            threading.Thread(target=copy_context().run, args=(self._guarded, member), daemon=True)
            for member in self._members[1:]
        ]
        try:
            for thread in threads:
                thread.start()
            self._work(self._members[0].measure)
            for thread in threads:
                thread.join()
            if not self._errors:
                self._work(self._members[0].measure)  # of workers that died
        finally:
            self._left.clear()
            for member in self._members:
                member.end()
        if self._errors:
            raise self._errors[0]
        return self._found

    def _guarded(self, member: _Measures) -> None:
        try:
            self._work(member.measure)
        except BaseException as error:
            self._left.clear()
            self._errors.append(error)
