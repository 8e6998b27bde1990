"""What an engine runs for a kind of inputs, in words, and with times as a trace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jitdnn.graph.engine import Engine, Part
from jitdnn.graph.ir import Graph, Node, Value
from jitdnn.planner.plan import format_seconds
from jitdnn.settings import format_bytes

_RUNS = 5
_HOLLOW_RUNS = 200
_MOST_ORIGIN = 60  # characters of the names of a kernel's nodes


@dataclass(frozen=True)
class Row:
    """A step of a run: the front's nodes, what computes them, seconds, and remarks."""

    origin: str
    op: str
    kernels: str
    shape: str
    seconds: float
    remark: str = ""


def rows_of(part: Part, seconds: list[float] | None, host: list[float] | None = None) -> list[Row]:
    """The steps of a part of a run. `seconds` of each step of its plan, those that were estimated without; `host`: of
    each that is run by the host behind the plan or in its place."""
    prepared, rows = part.prepared, []
    if prepared.plan is not None and prepared.graph is not None:
        remarks = unfused(prepared.graph)
        for number, event in enumerate(prepared.plan.events):
            node = event.node
            if event.host is None and event.last == event.first:
                continue  # a view
            spent = event.seconds if seconds is None else seconds[number]
            remark = remarks.get(node, "")
            op = node.attributes["name"] if node.op == "primitive" else node.op
            if event.host is not None:
                why = event.note or prepared.calls.get(node.attributes["title"], "")
                op, remark = "host", f"run by the host: {why}"
            shape = ", ".join(map(_extents, node.outputs))
            rows.append(Row(" + ".join(node.origin), op, ", ".join(event.kernels), shape, spent, remark))
    steps = (
        part.engine.steps if prepared.reason else (prepared.rest.step,) if prepared.rest is not None else ()
    )
    why = prepared.reason or (prepared.rest.reason if prepared.rest is not None else "")
    for number, step in enumerate(steps):
        spent = 0.0 if host is None else host[number]
        rows.append(Row(step.title, "host", "", "", spent, f"run by the host: {why}"))
    return rows


def _extents(value: Value) -> str:
    return "x".join(map(str, value.shape)) or "1"


def unfused(graph: Graph) -> dict[Node, str]:
    """Of formulas that are kernels of their own though they read a convolution or a product: why, in the names of the
    front's nodes."""
    uses, found = graph.uses(), {}
    for node in graph.nodes:
        if node.op != "pointwise":
            continue
        for value in node.inputs:
            root = uses.maker.get(value)
            if root is None or root.op not in ("conv", "matmul"):
                continue
            name = root.origin[-1] if root.origin else f"the {root.op}"
            if value in uses.leaving:
                found[node] = f"not fused: the result of {name} is an output of the graph"
            elif uses.only_reader(value) is None:
                others = (other for other in uses.readers[value] if other is not node and other.origin)
                by = ", ".join(dict.fromkeys(other.origin[0] for other in others))
                found[node] = f"not fused: the result of {name} is read by {by or 'other nodes'}, too"
            elif value.shape != node.output.shape or value.dtype != node.output.dtype:
                kinds = [f"{one.dtype.name} of {_extents(one)}" for one in (node.output, value)]
                found[node] = f"not fused: its result is {kinds[0]}, and that of {name} {kinds[1]}"
            else:
                found[node] = f"not fused: its operands do not fit the end of {name}"
    return found


def timed(engine: Engine, inputs: Mapping[str, Any]) -> list[Row]:
    """The steps of a run, kernels and functions of the host, in their order, with the seconds that each took: the
    least of a few runs, for others use the machine, too."""
    engine.run(inputs)  # finds out whether all kinds were foretold rightly
    return [row for part in engine.parts(inputs) for row in _timed(part)]


def _timed(part: Part) -> list[Row]:
    engine, prepared = part.engine, part.prepared
    each: list[list[float]] = []
    if prepared.plan is not None:
        arrays = engine.arrays(prepared, part.inputs)
        each = [prepared.plan.times(arrays, engine.run_body) for _ in range(_RUNS)]
    host = [engine.host_times(prepared, part.inputs) for _ in range(_RUNS)]
    return rows_of(part, _least(each), _least(host))


def _least(runs: list[list[float]]) -> list[float]:
    return [min(times) for times in zip(*runs, strict=True)]


def explained(engine: Engine, inputs: Mapping[str, Any], measure: bool) -> str:
    """A table of the steps, and what there is to say about the whole."""
    count = len(engine.steps)
    if measure:
        engine.run(inputs)
    parts = [(part, _timed(part) if measure else rows_of(part, None)) for part in engine.parts(inputs)]
    rows = [row for _, found in parts for row in found]
    total = sum(row.seconds for row in rows) or 1.0
    hosted = sum(row.op == "host" for row in rows)
    plans = [part.prepared.plan for part, _ in parts if part.prepared.plan is not None]
    lines = [
        f"{sum(plan.launches for plan in plans)} kernels and {hosted} functions of the host for {count} nodes, "
        f"{format_bytes(max((plan.nbytes for plan in plans), default=0))} of arena, "
        f"{format_seconds(total)} {'measured' if measure else 'estimated'}"
    ]
    if parts[0][0].prepared.reason:
        lines.append(f"run node by node by the host: {parts[0][0].prepared.reason}")
    if len(parts) > 1:
        lines.append(
            f"in {len(parts)} lists of kernels, each prepared when the results before it are there: no shape tells "
            f"those of {', '.join(part.prepared.rest.step.title for part, _ in parts if part.prepared.rest)}"
        )
    table = [("share", "time", "operation", "kernel", "result", "nodes", "")]
    for row in rows:
        origin = row.origin if len(row.origin) <= _MOST_ORIGIN else f"{row.origin[: _MOST_ORIGIN - 3]}..."
        share = f"{100 * row.seconds / total:.1f} %"
        table.append((share, format_seconds(row.seconds), row.op, row.kernels, row.shape, origin, row.remark))
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if measure:
        lines[0] += f" and {format_seconds(host_seconds(lambda: (engine, inputs)))} beside them"
    return "\n".join(lines)


def host_seconds(look: Callable[[], tuple[Engine, Mapping[str, Any]]]) -> float:
    """Seconds of a run beside its kernels and the functions of the host.

    They are measured, not inferred: the least of some runs of the same lists with as many tasks, each of which returns
    at once. So they have Python's part, the output's allocation, the moving of addresses, and handing out tasks to the
    threads; not the misses of a cache that kernels have filled. `look` names the engine and its inputs.
    """
    engine, inputs = look()
    engine.run(inputs)
    total = 0.0
    for number, part in enumerate(engine.parts(inputs)):
        plan = part.prepared.plan
        if plan is None:
            continue
        hollow, least = plan.hollow(), math.inf
        for _ in range(_HOLLOW_RUNS):
            begun = time.perf_counter()
            if not number:
                look()
            hollow.run(
                part.engine.arrays(part.engine.prepared(part.inputs), part.inputs), part.engine.run_body
            )
            least = min(least, time.perf_counter() - begun)
        total += least
    return total


def trace_events(rows: list[Row]) -> list[dict[str, Any]]:
    """Steps as complete events of Chrome's trace format, one after the other, in microseconds."""
    events, start = [], 0.0
    for row in rows:
        duration = row.seconds * 1e6
        events.append(
            {
                "name": row.origin or row.op, "cat": row.op, "ph": "X", "ts": start, "dur": duration,
                "pid": 1, "tid": 1,
                "args": {"kernels": row.kernels, "result": row.shape, "remark": row.remark},
            }
        )  # fmt: skip
        start += duration
    return events
