"""What an engine runs for a kind of inputs, in words, and with times as a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jitdnn.graph.engine import Engine, Prepared
from jitdnn.graph.ir import Graph, Node
from jitdnn.planner.plan import format_seconds
from jitdnn.settings import format_bytes

_RUNS = 5
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


def rows_of(prepared: Prepared, seconds: list[float] | None) -> list[Row]:
    """The steps of a plan; `seconds` of each, those that were estimated without."""
    if prepared.plan is None or prepared.graph is None:
        return []
    remarks = unfused(prepared.graph)
    rows = []
    for number, event in enumerate(prepared.plan.events):
        spent = event.seconds if seconds is None else seconds[number]
        node = event.node
        if event.host is None and event.last == event.first:
            continue  # a view
        shape = ", ".join("x".join(map(str, value.shape)) or "1" for value in node.outputs)
        remark = remarks.get(node, "")
        if event.host is not None:
            remark = f"run by the host: {prepared.calls.get(node.attributes['title'], '')}"
        op = node.attributes["name"] if node.op == "primitive" else node.op
        rows.append(Row(" + ".join(node.origin), op, ", ".join(event.kernels), shape, spent, remark))
    return rows


def unfused(graph: Graph) -> dict[Node, str]:
    """Of formulas that are kernels of their own though they read a convolution or a product: why."""
    uses, found = graph.uses(), {}
    for node in graph.nodes:
        if node.op != "pointwise":
            continue
        for value in node.inputs:
            root = uses.maker.get(value)
            if root is None or root.op not in ("conv", "matmul"):
                continue
            if value in uses.leaving:
                found[node] = f"not fused: the result of the {root.op} is an output of the graph"
            elif uses.only_reader(value) is None:
                found[node] = f"not fused: the result of the {root.op} is read by other nodes, too"
            elif value.shape != node.output.shape or value.dtype != node.output.dtype:
                found[node] = f"not fused: its result is {node.output}, and that of the {root.op} {value}"
            else:
                found[node] = f"not fused: its operands do not fit the end of the {root.op}"
    return found


def timed(engine: Engine, inputs: Mapping[str, Any]) -> list[Row]:
    """The steps of a run with the seconds that each took: the least of a few runs, for others use the machine, too."""
    prepared = engine.prepared(inputs)
    if prepared.plan is None:
        return []
    arrays = engine.arrays(prepared, inputs)
    each = [prepared.plan.times(arrays, engine.run_body) for _ in range(_RUNS)]
    return rows_of(prepared, [min(times) for times in zip(*each, strict=True)])


def explained(engine: Engine, inputs: Mapping[str, Any], measure: bool) -> str:
    """A table of the steps, and what there is to say about the whole."""
    prepared = engine.prepared(inputs)
    if prepared.reason:
        return f"run node by node by the host: {prepared.reason}"
    rows = timed(engine, inputs) if measure else rows_of(prepared, None)
    total = sum(row.seconds for row in rows) or 1.0
    kinds = "measured" if measure else "estimated"
    lines = []
    if prepared.plan is not None:
        lines.append(
            f"{prepared.plan.launches} kernels and {len(prepared.calls)} functions of the host for "
            f"{len(engine.steps)} nodes, {format_bytes(prepared.plan.nbytes)} of arena, "
            f"{format_seconds(total)} {kinds}"
        )
    table = [("share", "time", "operation", "kernel", "result", "nodes", "")]
    for row in rows:
        origin = row.origin if len(row.origin) <= _MOST_ORIGIN else f"{row.origin[: _MOST_ORIGIN - 3]}..."
        share = f"{100 * row.seconds / total:.1f} %"
        table.append((share, format_seconds(row.seconds), row.op, row.kernels, row.shape, origin, row.remark))
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if prepared.rest is not None:
        lines.append(
            f"then {prepared.rest.step.title} by the host ({prepared.rest.reason}); "
            f"{len(prepared.rest.steps)} more nodes are prepared when its results are there"
        )
    return "\n".join(lines)


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
