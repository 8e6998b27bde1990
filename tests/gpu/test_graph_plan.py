"""Plans of graphs on GPUs: where inputs, outputs and the arena lie, and orders of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import jitdnn as jd
from jitdnn.errors import NotSupported
from test_graph import AnyArray, close


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(3)


def planned(name: str, build: Any, *inputs: AnyArray) -> Any:
    """A plan of what a function of operands does to arrays of these kinds."""
    from jitdnn.graph.engine import new_shared
    from jitdnn.graph.gpu_plan import GpuPlan
    from jitdnn.graph.handle import EngineHandle
    from jitdnn.graph.lower.gpu import GpuBuilder
    from jitdnn.graph.passes import optimized
    from jitdnn.graph.tracer import Tracer
    from jitdnn.handle import find_device

    handle, shared, tracer = (
        EngineHandle(device=find_device(name), compile="wait"),
        new_shared(True),
        Tracer(),
    )
    operands = [tracer.input(one.shape, one.dtype) for one in inputs]
    graph = optimized(tracer.graph(operands, build(*operands)), shared.memo)
    return GpuPlan(graph, GpuBuilder(graph, shared, handle))


def test_a_plan_runs_where_the_caller_s_memory_is(
    device: Any, name: str, random: np.random.Generator
) -> None:
    """With copies of inputs and outputs, and without any as somebody's capture takes it."""
    from jitdnn.graph import primitives

    w = random.standard_normal((5, 3, 3, 3)).astype(np.float32)
    x = random.standard_normal((2, 3, 9, 7)).astype(np.float32)

    def build(v: Any) -> list[Any]:
        y = primitives.relu(primitives.conv(v, w))
        return [y, primitives.softmax(y, 1)]

    plan = planned(name, build, x)
    wanted = [np.maximum(jd.conv(x, w), 0.0)]
    wanted.append(jd.softmax(wanted[0], 1))
    made = [jd.to_device(np.full(one.shape, np.nan, np.float32), name) for one in wanted]
    arena, given = jd.to_device(np.zeros(plan.arena_bytes, np.int8), name), jd.to_device(x, name)
    where = [given.pointer], [one.pointer for one in made]
    stream = device.default_stream
    with pytest.raises(NotSupported, match="before"):
        plan.run_at_once(*where, arena.pointer, stream)
    for number in range(3):
        plan.run_at(*where, stream)
        close(made, wanted)
        for one in made:
            one[...] = np.nan if number % 2 else 0.0
    plan.run_at_once(*where, arena.pointer, stream)
    close(made, wanted)


def test_results_that_are_turned_are_written_so(name: str, random: np.random.Generator) -> None:
    """Channels last, by the convolution itself; a formula in any order."""
    from jitdnn.graph import primitives

    w = random.standard_normal((5, 3, 3, 3)).astype(np.float32)
    x = random.standard_normal((2, 3, 9, 7)).astype(np.float32)

    def build(v: Any) -> list[Any]:
        y = primitives.conv(v, w)
        return [y.transpose(0, 2, 3, 1), primitives.tanh(v).transpose(3, 0, 2, 1)]

    plan = planned(name, build, x)
    y = jd.conv(x, w)
    close(plan.run([x]), [y.transpose(0, 2, 3, 1), np.tanh(x).transpose(3, 0, 2, 1)])
    copies = [
        event for event in plan.events if event.node.op in ("copy", "view") and event.last > event.first
    ]
    assert not copies
