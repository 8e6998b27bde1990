"""Engines: values that decide, results that nobody can foretell, threads, memory."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from jitdnn.graph import primitives as jd
from jitdnn.graph.engine import MOST_PLANS, Engine
from jitdnn.graph.tracer import Tracer

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(5)
W = rng.standard_normal((6, 4, 3, 3)).astype(np.float32)


class Step(NamedTuple):
    """A function as a step."""

    function: Callable[..., Any]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    kind: Any = None
    is_pure: bool = True

    @property
    def title(self) -> str:
        return self.function.__name__

    def compute(self, values: Mapping[str, Any], bodies: Any = None) -> tuple[Any, ...]:
        result = self.function(*(values[name] for name in self.reads))
        return result if isinstance(result, tuple) else (result,)

    def kinds(self, values: Mapping[str, Any]) -> Any:
        return self.kind


def filled(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def interpreted(steps: list[Step], outputs: tuple[str, ...], values: dict[str, Any]) -> list[Any]:
    held = dict(values)
    for step in steps:
        held.update(zip(step.makes, step.compute(held), strict=True))
    return [held[name] for name in outputs]


def conv(x: Any) -> Any:
    return jd.relu(jd.conv(x, W, padding=1))


def pooled(y: Any) -> Any:
    return jd.max_pool(y, 2, 2)


def positives(y: Any) -> Any:
    """As many as there are: no shape tells."""
    return np.asarray(y)[np.asarray(y) > 1.0]


def host_sorted(y: Any) -> Any:
    return np.sort(np.asarray(y), axis=-1)


def doubled(y: Any) -> Any:
    return y.tracer.pointwise(TWICE, [y], y.dtype) if hasattr(y, "tracer") else y + y


from jitdnn.rtcg.expression import trace  # noqa: E402

TWICE = trace(lambda v: v + v)


def agree(steps: list[Step], outputs: tuple[str, ...], **values: Any) -> Engine:
    engine = Engine(steps, tuple(values), outputs, {})
    for _ in range(2):
        for one, other in zip(engine.run(values), interpreted(steps, outputs, values), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
            assert one.dtype == other.dtype
    return engine


@pytest.mark.parametrize("size", [1, 6, 7])
def test_steps_become_launches(size: int) -> None:
    x = filled(size, 4, 9, 8)
    engine = agree([Step(conv, ("x",), ("y",)), Step(pooled, ("y",), ("z",))], ("z", "y"), x=x)
    prepared = engine.prepared({"x": x})
    assert prepared.plan is not None
    assert not prepared.calls


def test_a_function_of_the_host_runs_between_launches() -> None:
    x = filled(2, 4, 5, 6)
    kind = [((2, 6, 5, 6), np.dtype(np.float32))]
    steps = [
        Step(conv, ("x",), ("y",)), Step(host_sorted, ("y",), ("s",), kind), Step(doubled, ("s",), ("z",)),
    ]  # fmt: skip
    engine = agree(steps, ("z",), x=x)
    assert list(engine.prepared({"x": x}).calls) == ["host_sorted"]


def test_a_kind_that_was_foretold_wrongly_is_found_out() -> None:
    steps = [
        Step(host_sorted, ("x",), ("s",), [((9, 9), np.dtype(np.float32))]),
        Step(doubled, ("s",), ("z",)),
    ]
    agree(steps, ("z",), x=filled(3, 4))


def test_what_follows_an_unknown_shape_is_prepared_when_it_is_known() -> None:
    steps = [Step(conv, ("x",), ("y",)), Step(positives, ("y",), ("p",)), Step(doubled, ("p",), ("z",))]
    x = filled(1, 4, 6, 6)
    engine = agree(steps, ("z", "y"), x=x)
    assert engine.prepared({"x": x}).rest is not None
    agree(steps, ("p",), x=-1e3 * np.ones((1, 4, 6, 6), np.float32) * 0)


def reshaped(x: Any, shape: Any) -> Any:
    return x.reshape([int(n) for n in np.asarray(shape)])


def test_values_of_small_inputs_are_part_of_the_kind() -> None:
    x = filled(4, 6)
    steps = [Step(reshaped, ("x", "shape"), ("y",)), Step(doubled, ("y",), ("z",))]
    engine = agree(steps, ("z",), x=x, shape=np.array([3, 8]))
    prepared = engine.prepared({"x": x, "shape": np.array([2, 12])})
    assert prepared.plan is not None
    assert prepared.rest is None
    assert engine.run({"x": x, "shape": np.array([2, 12])})[0].shape == (2, 12)


def test_too_many_values_are_no_part_of_it() -> None:
    steps = [Step(reshaped, ("x", "shape"), ("y",)), Step(doubled, ("y",), ("z",))]
    engine = Engine(steps, ("x", "shape"), ("z",), {})
    for number in range(80):
        n = number + 1
        (y,) = engine.run({"x": np.ones(n * 2, np.float32), "shape": np.array([n, 2])})
        assert y.shape == (n, 2)
        assert (y == 2).all()


def test_plans_are_bounded() -> None:
    engine = Engine([Step(doubled, ("x",), ("y",))], ("x",), ("y",), {})
    for n in range(1, 3 * MOST_PLANS):
        engine.run({"x": np.ones(n, np.float32)})
    assert len(engine._prepared) <= 2 * MOST_PLANS


def same(x: Any) -> Any:
    return x


def test_numbers_of_numpy_are_told_apart_though_they_are_gone() -> None:
    """They are no arrays, and may be freed while the tracer knows them by their identity."""
    tracer = Tracer()
    values = [tracer.value(np.float32(number)) for number in range(40)]
    assert [float(value.array) for value in values if value.array is not None] == list(range(40))
    one = np.float32(3)
    assert tracer.value(one) is tracer.value(one)


def test_results_share_no_memory() -> None:
    x = filled(3, 4)
    constant = filled(2)
    steps = [Step(same, ("x",), ("a",)), Step(same, ("c",), ("b",)), Step(doubled, ("x",), ("d",))]
    engine = Engine(steps, ("x",), ("a", "b", "d", "x", "d"), {"c": constant})
    first, second = engine.run({"x": x}), engine.run({"x": x})
    every = [*first, *second, x, constant]
    for number, one in enumerate(every):
        assert not any(np.shares_memory(one, other) for other in every[:number])
    np.testing.assert_array_equal(first[0], x)
    np.testing.assert_array_equal(first[1], constant)


def test_inputs_of_any_strides() -> None:
    x = filled(5, 4, 3, 2).transpose(3, 1, 2, 0)[:, ::1, ::-1]
    agree([Step(conv, ("x",), ("y",))], ("y",), x=x)


@pytest.mark.parametrize("shape", [(0, 4, 5, 5), (1, 4, 1, 1)])
def test_empty_and_small(shape: tuple[int, ...]) -> None:
    agree([Step(conv, ("x",), ("y",)), Step(doubled, ("y",), ("z",))], ("z",), x=filled(*shape))


def test_threads_share_an_engine() -> None:
    kind = [((2, 6, 8, 8), np.dtype(np.float32))]
    steps = [
        Step(conv, ("x",), ("y",)), Step(host_sorted, ("y",), ("s",), kind), Step(pooled, ("s",), ("z",)),
    ]  # fmt: skip
    engine = Engine(steps, ("x",), ("z", "y"), {})
    wrong: list[Any] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((2, 4, 8, 8)).astype(np.float32)
        wanted = interpreted(steps, ("z", "y"), {"x": x})
        for _ in range(20):
            for one, other in zip(engine.run({"x": x}), wanted, strict=True):
                if not np.allclose(one, other, rtol=1e-4, atol=1e-4):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_runs_take_no_more_memory_each() -> None:
    steps = [Step(conv, ("x",), ("y",)), Step(pooled, ("y",), ("z",))]
    engine, x = Engine(steps, ("x",), ("z",), {}), filled(1, 4, 32, 32)
    engine.run({"x": x})
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(50):
        engine.run({"x": x})
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 20_000


def test_many_steps_of_unknown_shapes() -> None:
    """Each is prepared by an engine of its own, and none of them inside of another."""
    names = [f"p{number}" for number in range(300)]
    steps = [Step(positives, (one,), (other,)) for one, other in itertools.pairwise(["x", *names])]
    x = np.full((4,), 2.0, np.float32)
    engine = Engine(steps, ("x",), (names[-1],), {})
    for _ in range(2):
        np.testing.assert_array_equal(engine.run({"x": x})[0], x)


def test_an_error_of_the_host_leaves_the_engine_usable() -> None:
    def refusing(y: Any) -> Any:
        array = np.asarray(y)
        if array.max() > 100:
            raise ValueError("too large")
        return array

    steps = [Step(doubled, ("x",), ("y",)), Step(refusing, ("y",), ("z",), [((3,), np.dtype(np.float32))])]
    engine = Engine(steps, ("x",), ("z",), {})
    with pytest.raises(ValueError, match="too large"):
        engine.run({"x": np.full(3, 99, np.float32)})
    assert engine.run({"x": np.ones(3, np.float32)})[0].tolist() == [2, 2, 2]
