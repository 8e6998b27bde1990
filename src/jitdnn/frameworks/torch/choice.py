"""Which of two kernels runs, ours or torch's own: measured in turns at the first call of a kind, or as stored before.

A decision holds for one operator on operands of one kind (shapes, strides, types, options, threads). Its times are kept
in the tuning store beside those of our algorithms, so that the next process does not measure again.

On a processor and one thread that thread's own time is taken, in which others that have the core meanwhile do not
count; on several threads the clock's. On a GPU two times are taken: what the GPU, kept waiting until all calls are
enqueued, needs to run one, and what the host needs to enqueue it. A call by itself costs a model whichever is more.
Where the host is ahead of the GPU, as in graphs that are captured, only the GPU's time counts (`measure="kernels"`,
`without_host`), and where the GPU is, the host's (`measure="host"`). Where they take turns in being ahead, a
microsecond of one is worth one of the other (`measure="both"`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import get_clock_info, perf_counter, thread_time
from typing import Any

import torch

from jitdnn import log
from jitdnn.devices.quiet import settle
from jitdnn.errors import DeviceError, JitdnnError
from jitdnn.frameworks.torch.variety import REASON, may_try
from jitdnn.handle import Handle
from jitdnn.locks import lock
from jitdnn.planner.plan import Pending, noting_stand_ins
from jitdnn.planner.store import Store

SECONDS = 0.2
"""Time that measuring the two takes at most, after their first runs, by the clock that they are measured with."""
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 12
# after so many rounds all is clear where each sample of one takes more than so many times any of the other's: whatever
# disturbs one of them makes its longest sample longer, and another round is taken
_CLEAR = {"cpu": ((2, 2.0), (3, 1.25), (5, 1.05)), "cuda": ((2, 1.25), (4, 1.0))}
_LONG = 0.02  # seconds of a call beside which those in which threads wake up are nothing
_SAMPLE_SECONDS, _MOST_CALLS = 5e-4, 200  # a shorter sample would measure the clock
_MOST_ENQUEUED = 100  # a host that is so many calls ahead is kept waiting by the driver
_LEAST_CYCLES, _MOST_CYCLES = 1 << 18, 1 << 28
OURS, STOCK = "jitdnn", "torch"
_HOSTS = ("jitdnn's host", "torch's host")
_VERSIONS = {"cpu": 8, "cuda": 8}  # of the way of measuring: times of another one are not used

_made = 0
_lock = lock()
_is_host_free: ContextVar[bool] = ContextVar("jitdnn_torch_host_free", default=False)


@contextmanager
def without_host() -> Iterator[None]:
    """Choices on a GPU by the GPU's time alone in the block: for graphs that the host does not enqueue node by node."""
    token = _is_host_free.set(True)
    try:
        yield
    finally:
        _is_host_free.reset(token)


_NONE = "jitdnn's kernels: none"
"""In place of times of calls as a whole for whose parts torch's kernels were chosen, each of them."""
PARTS = "parts"
"""The option `measure` of kernels that are parts of a call which is chosen as a whole besides."""
_SHARE = 0.25  # of the host's time that counts of parts: whether it counts at all is not known


def _counted(kernels: float, host: float, how: str) -> float:
    """What counts of a call on a GPU, by the option `measure`."""
    if _is_host_free.get() or how == "kernels":
        return kernels
    if how == "host":
        return host
    if how == "both":
        return kernels + host
    return kernels + _SHARE * host if how == PARTS else max(kernels, host)


@dataclass(frozen=True)
class Decision:
    """Whether ours runs, and why. `seconds` and `stock_seconds` are those of one call that count, where both were
    measured.

    `waits_for`: kernels of ours that are being compiled, without which there is nothing to measure: torch's runs until
    then, and it is decided anew. `hosts`: what the host needs to enqueue ours and torch's, of calls on a GPU.
    """

    is_ours: bool
    reason: str
    seconds: float | None = None
    stock_seconds: float | None = None
    waits_for: tuple[Pending, ...] = field(default=(), compare=False)
    hosts: tuple[float, float] | None = field(default=None, compare=False)

    @property
    def is_for_now(self) -> bool:
        """Whether something is waited for still."""
        return not all(pending.is_done for pending in self.waits_for)

    @property
    def ratio(self) -> float | None:
        """How many times as fast as torch's ours is."""
        if self.seconds is None or self.stock_seconds is None:
            return None
        return self.stock_seconds / self.seconds


def decide(
    what: str,
    handle: Handle,
    device: torch.device,
    how: str,
    ours: Callable[[], Any],
    stock: Callable[[], Any],
    layer: Hashable = None,
) -> Decision:
    """Choose between two callables that compute the same.

    `what` names the operator and its operands for the store; `how` is the option `measure`. Where ours refuses, the
    reason is logged once and torch's is chosen. `layer`: see variety.py; None for what comes in few kinds.
    """
    if how == "never":
        return _unmeasured(what, ours)
    known = stored(what, handle, device, how)
    if known is not None:
        return known
    if layer is not None and not may_try(layer):
        return Decision(False, REASON)
    with _lock:  # one at a time: what is measured must not run against each other
        try:
            with noting_stand_ins() as waits_for:
                ours()
        except JitdnnError as error:
            return _refused(what, error)
        if waits_for:
            return Decision(False, "ours is being compiled", waits_for=tuple(waits_for))
        return measured(what, handle, device, ours, stock, how)


def stored(what: str, handle: Handle, device: torch.device, how: str = "first") -> Decision | None:
    """The choice by times of an earlier process, None if there are none."""
    times = recorded(what, handle, device)
    if _NONE in times:
        return Decision(False, "stored: torch's kernels are faster, each of them")
    if OURS not in times or STOCK not in times:
        return None
    hosts = tuple(times[who] for who in _HOSTS if who in times)
    return _compared((times[OURS], times[STOCK]), "stored", hosts, how)


def measured(
    what: str, handle: Handle, device: torch.device, ours: Callable[[], Any], stock: Callable[[], Any],
    how: str = "first",
) -> Decision:  # fmt: skip
    """The choice by times taken now, which are stored; both callables have run before."""
    hosts: tuple[float, ...] = ()
    with torch._C.DisableTorchFunction():  # a mode that watches the model is none of theirs
        if device.type == "cpu":
            seconds = _measured(ours, stock, device, clock_of(handle, device))
        else:
            seconds, hosts = _measured_on_gpu(ours, stock, device)
    global _made
    _made += 1
    times = dict(zip((OURS, STOCK, *_HOSTS), (*seconds, *hosts), strict=False))
    record(what, handle, device, times)
    return _compared(seconds, "measured", hosts, how)


def none_is_ours(what: str, handle: Handle, device: torch.device) -> Decision:
    """The choice of torch's function for a call of whose parts none is ours, which is stored: that is no time, but
    later processes need not run the call to know."""
    record(what, handle, device, {_NONE: 1.0})
    return Decision(False, "torch's kernels are faster, each of them")


def recorded(what: str, handle: Handle, device: torch.device) -> dict[str, float]:
    """The times that are stored, by whose they are."""
    times, version = Store.default().look_up(what, "", _device_name(handle, device)), _VERSIONS[device.type]
    return {who: one.seconds for (who, of), one in times.items() if of == version}


def record(what: str, handle: Handle, device: torch.device, times: Mapping[str, float]) -> None:
    """Store times."""
    rows = [(who, _VERSIONS[device.type], seconds, 0) for who, seconds in times.items()]
    Store.default().record(what, "", _device_name(handle, device), rows)


def made() -> int:
    """How often this process has measured."""
    return _made


def clock_of(handle: Handle, device: torch.device) -> Callable[[], float]:
    """Seconds of calls on a processor: by the calling thread's own time where it does all the work."""
    if device.type != "cpu":
        return perf_counter
    is_alone = handle.device.threads == 1 and torch.get_num_threads() == 1
    return thread_time if is_alone and get_clock_info("thread_time").resolution <= 1e-6 else perf_counter


def _measured(
    ours: Callable[[], Any],
    stock: Callable[[], Any],
    device: torch.device,
    clock: Callable[[], float] = perf_counter,
) -> tuple[float, float]:
    """Seconds of one call of each on a processor."""
    seconds, stock_seconds = least_seconds((ours, stock), device, clock)
    return seconds, stock_seconds


def least_seconds(
    ways: Sequence[Callable[[], Any]], device: torch.device, clock: Callable[[], float]
) -> list[float]:
    """Seconds of one call of each on a processor: the least of samples taken in turns, so that a busy machine decides
    nothing; no more of them than it needs where one is far ahead in all.
    """
    deadline = clock() + SECONDS  # others that have the core meanwhile leave as many samples
    calls, least, most = [1] * len(ways), [math.inf] * len(ways), [0.0] * len(ways)
    # the first runs also start threads and fault pages in, which takes as long as several short calls
    last = [_seconds(way, 1, clock) for way in ways]
    for place, way in enumerate(ways):
        if last[place] < _LONG:
            last[place] = _seconds(way, 1, clock)
    for number in range(_MOST_ROUNDS):
        for place, way in enumerate(ways):
            settle()  # threads of the other one go to sleep
            if last[place] < _LONG:
                way()  # its own wake up
            last[place] = seconds = _seconds(way, calls[place], clock)
            least[place], most[place] = min(least[place], seconds), max(most[place], seconds)
            calls[place] = min(_MOST_CALLS, max(1, math.ceil(_SAMPLE_SECONDS / max(seconds, 1e-9))))
        if _is_clear(device, number + 1, least, most):
            break
        if number + 1 >= _LEAST_ROUNDS and clock() > deadline:
            break
    return least


def _measured_on_gpu(
    ours: Callable[[], Any], stock: Callable[[], Any], device: torch.device
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds that the GPU needs for one call of each, samples in turns; and the host's, to enqueue one of each."""
    deadline = perf_counter() + SECONDS
    calls = [1, 1]
    # the least and the most of the GPU, the host, and whichever takes longer
    least, most = ([[start] * 2 for _ in range(3)] for start in (math.inf, 0.0))
    for way in (ours, stock):
        way()
    for number in range(_MOST_ROUNDS):
        for place, way in enumerate((ours, stock)):
            seconds, host = _behind_others(way, calls[place], device)
            for which, one in enumerate((seconds, host, max(seconds, host))):
                least[which][place] = min(least[which][place], one)
                most[which][place] = max(most[which][place], one)
            calls[place] = min(_MOST_ENQUEUED, max(1, math.ceil(_SAMPLE_SECONDS / max(seconds, 1e-9))))
        if all(_is_clear(device, number + 1, least[which], most[which]) for which in range(3)):
            break
        if number + 1 >= _LEAST_ROUNDS and perf_counter() > deadline:
            break
    return (least[0][0], least[0][1]), (least[1][0], least[1][1])


def _is_clear(device: torch.device, rounds: int, least: Sequence[float], most: Sequence[float]) -> bool:
    """Whether the samples of so many rounds leave no doubt: all of one's are below all of the others'."""
    first = min(range(len(least)), key=least.__getitem__)
    others = min((one for place, one in enumerate(least) if place != first), default=math.inf)
    apart = others / most[first] if most[first] > 0.0 else 0.0
    return any(rounds >= enough and apart > clear for enough, clear in _CLEAR[device.type])


def _unmeasured(what: str, ours: Callable[[], Any]) -> Decision:
    try:
        ours()
    except JitdnnError as error:
        return _refused(what, error)
    return Decision(True, "not measured, as asked")


def _refused(what: str, error: JitdnnError) -> Decision:
    if isinstance(error, DeviceError):
        raise error
    log.fallback_once(("torch", what), f"{what} runs by PyTorch's own kernel: {error}")
    return Decision(False, f"refused: {error}")


def _compared(
    seconds: tuple[float, float], how: str, hosts: tuple[float, ...] = (), measure: str = "first"
) -> Decision:
    """The choice by two times, and with those of the hosts where these count."""
    both = (hosts[0], hosts[1]) if len(hosts) == 2 else None
    counted = seconds
    if both is not None:
        counted = _counted(seconds[0], both[0], measure), _counted(seconds[1], both[1], measure)
    is_ours = counted[0] <= counted[1]
    ours, stock = seconds if measure == PARTS else counted
    return Decision(is_ours, f"{how}: {'faster' if is_ours else 'slower'}", ours, stock, hosts=both)


def _device_name(handle: Handle, device: torch.device) -> str:
    own = handle if device.type == "cpu" else handle.at((device.type, device.index or 0))
    return f"{own.device.name} torch {torch.__version__}"


def _seconds(run: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    """Seconds of one call on a processor."""
    begin = clock()
    for _ in range(calls):
        run()
    return (clock() - begin) / calls


_cycles: dict[torch.device, int] = {}
"""For how long each GPU waits until calls that are timed are enqueued: as long as was enough the last time."""


def _behind_others(run: Callable[[], Any], calls: int, device: torch.device) -> tuple[float, float]:
    """Seconds that the GPU needs for one of several calls, and the host to enqueue one.

    The GPU is kept waiting until all are enqueued, or a host that is slower than it would be timed in its place.
    """
    stream = torch.cuda.current_stream(device)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = _cycles.get(device, _LEAST_CYCLES)
    while True:
        stream.synchronize()
        with torch.cuda.device(device):
            torch.cuda._sleep(cycles)
        first.record(stream)
        begin = perf_counter()
        for _ in range(calls):
            run()
        host = (perf_counter() - begin) / calls
        last.record(stream)
        was_ahead = not first.query()
        last.synchronize()
        if was_ahead:
            _cycles[device] = cycles
        if was_ahead or cycles >= _MOST_CYCLES:
            return float(first.elapsed_time(last)) / 1e3 / calls, host
        cycles *= 2
