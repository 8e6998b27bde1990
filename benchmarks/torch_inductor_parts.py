"""What a step of a compiled model consists of: calls in the code that Inductor generated, and kernels on the GPU.

For `torch_inductor_apart.py --parts N`. Each call between two looks at the clock, the GPU kept free of other work, so
that no launch waits; what is left of the step is the engine of gradients, Dynamo and the program itself.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

#: functions of Inductor's code that are calls of its own
PLAIN = ("empty_strided_cuda", "reinterpret_tensor", "assert_size_stride")
Note = Callable[[str, float], None]


class _Called:
    """A function, or what has functions as attributes, whose calls are timed."""

    def __init__(self, real: Any, name: str, note: Note) -> None:
        self._real, self._name, self._note = real, name, note

    def __getattr__(self, name: str) -> Any:
        found = _Called(getattr(self._real, name), f"{self._name}.{name}".lstrip("."), self._note)
        setattr(self, name, found)
        return found

    def __call__(self, *args: Any, **named: Any) -> Any:
        begin = perf_counter()
        result = self._real(*args, **named)
        self._note(self._name, perf_counter() - begin)
        return result


class _Torch:
    """The module of that name, its operators timed."""

    def __init__(self, note: Note) -> None:
        self.ops = _Called(torch.ops, "", note)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def _timed(note: Note) -> Iterator[None]:
    """Have all calls in Inductor's code of this process timed."""
    from torch._inductor.codecache import PyCodeCache

    kept = []
    for module in list(PyCodeCache.modules):
        names = vars(module)
        kept.append((names, dict(names)))
        for name, value in list(names.items()):
            if name.startswith("triton_") and hasattr(value, "run"):
                kind = "triton, several" if name.startswith("triton_for") else "triton"
                proxy = _Called(value, kind, note)
                proxy.run = _Called(value.run, kind, note)
                names[name] = proxy
            elif name in PLAIN:
                names[name] = _Called(value, name, note)
            elif name == "extern_kernels":
                names[name] = _Called(value, "", note)
            elif name == "torch":
                names[name] = _Torch(note)
    try:
        yield
    finally:
        for names, values in kept:
            names.update(values)


def host_parts(step: Callable[[], Any], steps: int = 7) -> str:
    """How often a step makes each kind of call, microseconds of one and milliseconds of all, medians of some steps."""
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
    totals, plain = [], []
    now: dict[str, list[float]] = defaultdict(list)
    for _ in range(steps):
        torch.cuda.synchronize()
        begin = perf_counter()
        step()
        plain.append(perf_counter() - begin)
    with _timed(lambda name, seconds: now[name].append(seconds)):
        step()
        for _ in range(steps):
            torch.cuda.synchronize()
            now.clear()
            begin = perf_counter()
            step()
            totals.append(perf_counter() - begin)
            for name, found in now.items():
                seen[name].append((len(found), sum(found)))
    torch.cuda.synchronize()
    rows = []
    for name, found in seen.items():
        count, seconds = found[0][0], statistics.median(each for _, each in found)
        rows.append((seconds, f"{count:5d} {1e6 * seconds / count:7.1f} us {1e3 * seconds:6.2f} ms {name}"))
    inside = sum(seconds for seconds, _ in rows)
    head = (
        f"step {1e3 * statistics.median(plain):.2f} ms; with looks at the clock {1e3 * statistics.median(totals):.2f}, "
        f"{1e3 * inside:.2f} of them in {sum(found[0][0] for found in seen.values())} calls"
    )
    return "\n".join([head, *(text for _, text in sorted(rows, reverse=True))])


def kernel_table(step: Callable[[], Any], count: int) -> tuple[float, str]:
    """Seconds of all kernels of a step, and those that take most: milliseconds, how many, and names."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda one: -one.device_time_total)
    rows = [one for one in rows if one.device_time_total]
    total = sum(one.device_time_total for one in rows)
    head = f"{total / 1e3:.2f} ms in {sum(one.count for one in rows)} kernels of {len(rows)} names"
    told = (f"{one.device_time_total / 1e3:8.3f} {one.count:4d} {one.key[:110]}" for one in rows[:count])
    return total / 1e6, "\n".join([head, *told])
