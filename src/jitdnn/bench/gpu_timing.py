"""The clock of a GPU: calls captured in CUDA graphs, which take turns; events around each replay.

So the host's share of a call is left out, on all sides alike. Where a call cannot be captured, all candidates are
called one by one instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

#: Seconds that one replay of a graph lasts at least.
REPLAY = 5e-4
LEAST_ROUNDS = 7

Call = Callable[[int], Any]  # of the number of a set of tensors; launches on the current stream


def interleaved(
    torch: Any, calls: Sequence[Call], sets: int, rounds: int, is_captured: bool = True
) -> list[list[float]]:
    """Seconds a call of each candidate, round by round, over `sets` sets of tensors in turn."""

    def repeated(call: Call, repeats: int) -> Any:
        return _captured(torch, call, sets, repeats) if is_captured else _Calls(call, sets, repeats)

    graphs = []
    for call in calls:
        once = repeated(call, 1)
        if not is_captured:
            once.replay()
        repeats = max(1, math.ceil(REPLAY / max(_replayed(torch, once), 1e-7)))
        graphs.append((repeated(call, repeats), sets * repeats))
    times: list[list[float]] = [[] for _ in calls]
    for graph, _ in graphs:
        _replayed(torch, graph)
    for _ in range(max(rounds, LEAST_ROUNDS)):
        for (graph, count), taken in zip(graphs, times, strict=True):
            taken.append(_replayed(torch, graph) / count)
    return times


class _Calls:
    """Stands in for a graph: replaying is calling."""

    def __init__(self, call: Call, sets: int, repeats: int) -> None:
        self._call, self._sets, self._repeats = call, sets, repeats

    def replay(self) -> None:
        for _ in range(self._repeats):
            for number in range(self._sets):
                self._call(number)


def _captured(torch: Any, call: Call, sets: int, repeats: int) -> Any:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is searched, compiled or allocated once for a stream
        for number in range(sets):
            call(number)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(repeats):
            for number in range(sets):
                call(number)
    return graph


def _replayed(torch: Any, graph: Any) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3
