"""Plans of training within a limit on memory, against brute force over all cuts and points."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.errors import InvalidArgument
from jitdnn.planner.fronts import Point, front
from jitdnn.planner.recompute import (
    Buffer,
    Chain,
    Gradient,
    RecomputePlan,
    Segment,
    Step,
    least,
    plan,
    without_recomputing,
)

pytest.importorskip("scipy")


def chain_of(
    sizes: Sequence[int], fronts: Sequence[tuple[Point, ...]] | None = None, constant: int = 0
) -> Chain:
    """Layers one after another that read their input in the backward pass; all take as long."""
    count = len(sizes)
    points = fronts or [(Point(1.0, 0, None),)] * count
    steps = tuple(Step(f"l{t}", points[t], (points[t],)) for t in range(count))
    buffers = tuple(
        Buffer(f"y{t}", size, t, (t + 1,) if t + 1 < count else (), (t + 1,) if t + 1 < count else (t,))
        for t, size in enumerate(sizes)
    )
    gradients = tuple(Gradient(f"dy{t}", size, min(t + 1, count - 1), t) for t, size in enumerate(sizes))
    return Chain(steps, buffers, gradients, constant)


def cuts(count: int) -> Iterator[tuple[Segment, ...]]:
    """All ways to cut steps into segments, kept or rerun."""
    for length in range(count):
        for places in itertools.combinations(range(1, count), length):
            bounds = [0, *places, count]
            pairs = list(itertools.pairwise(bounds))
            kinds = [(True, False) if stop == start + 1 else (True,) for start, stop in pairs]
            for kind in itertools.product(*kinds):
                yield tuple(Segment(a, b, k) for (a, b), k in zip(pairs, kind, strict=True))


def brute(chain: Chain, limit: int) -> float | None:
    """The least seconds of all plans within the limit."""
    every = [step.forward for step in chain.steps]
    backward = [list(itertools.product(*step.backward)) for step in chain.steps]
    best = None
    for segments in cuts(len(chain.steps)):
        for forward in itertools.product(*every):
            for back in itertools.product(*backward):
                made = RecomputePlan(chain, segments, forward, back, limit)
                if made.peak <= limit and (best is None or made.seconds < best):
                    best = made.seconds
    return best


def brute_least(chain: Chain) -> int:
    smallest = [tuple(front[0] for front in step.backward) for step in chain.steps]
    forward = tuple(step.forward[0] for step in chain.steps)
    return min(
        RecomputePlan(chain, segments, forward, tuple(smallest), 0).peak
        for segments in cuts(len(chain.steps))
    )


@st.composite
def points(draw: st.DrawFn, most: int = 3) -> tuple[Point, ...]:
    many = draw(st.integers(1, most))
    each = [
        Point(float(draw(st.integers(1, 9))), 0 if k == 0 else draw(st.integers(1, 40)), k)
        for k in range(many)
    ]
    return front(each)


@st.composite
def chains(draw: st.DrawFn, most: int = 5, points_most: int = 2) -> Chain:
    """Steps one after another: each reads what the one before made, and its backward pass any of the two."""
    count = draw(st.integers(2, most))
    steps = tuple(
        Step(
            f"l{t}",
            draw(points(points_most)),
            tuple(draw(points(points_most)) for _ in range(draw(st.integers(0, 1)))),
            draw(st.integers(0, 5)),
            draw(st.integers(0, 5)),
            may_rerun=t > 0 or draw(st.booleans()),
        )
        for t in range(count)
    )
    buffers = []
    for t in range(count):
        needed = {s for s in (t, t + 1) if s < count and draw(st.booleans())}
        buffers.append(
            Buffer(f"y{t}", draw(st.integers(1, 50)), t, (t + 1,) if t + 1 < count else (), tuple(needed))
        )
        if draw(st.booleans()):
            buffers.append(Buffer(f"mask{t}", draw(st.integers(1, 50)), t, (), (t,)))
    gradients = tuple(
        Gradient(f"dy{t}", draw(st.integers(0, 50)), min(t + 1, count - 1), t) for t in range(count)
    )
    return Chain(steps, tuple(buffers), gradients, draw(st.integers(0, 20)), draw(st.sampled_from([0, 2])))


@given(chains(), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_program_finds_what_brute_force_finds(chain: Chain, part: float) -> None:
    smallest, most = brute_least(chain), without_recomputing(chain).peak
    assert least(chain).peak == smallest
    limit = round(smallest + part * (most - smallest))
    found = plan(chain, limit)
    assert found.peak <= limit
    assert found.seconds == pytest.approx(brute(chain, limit))


@st.composite
def graphs(draw: st.DrawFn) -> Chain:
    """Steps that read any of those before, and backward passes that need anything they read or make."""
    count = draw(st.integers(2, 7))
    steps = tuple(
        Step(f"l{t}", draw(points()), (draw(points()),), may_rerun=draw(st.integers(0, 4)) > 0)
        for t in range(count)
    )
    buffers = []
    for t in range(count):
        for part in range(draw(st.integers(1, 2))):
            later = [s for s in range(t + 1, count) if draw(st.integers(0, 2)) == 0]
            needed = tuple(s for s in (t, *later) if draw(st.booleans()))
            buffers.append(Buffer(f"b{t}.{part}", draw(st.integers(1, 50)), t, tuple(later), needed))
    gradients = tuple(
        Gradient(f"d{t}", draw(st.integers(0, 50)), draw(st.integers(t, count - 1)), t) for t in range(count)
    )
    return Chain(steps, tuple(buffers), gradients)


@given(graphs(), st.floats(0, 1))
@settings(max_examples=80, deadline=None)
def test_plans_of_graphs_keep_to_their_limit(chain: Chain, part: float) -> None:
    smallest, most = least(chain), without_recomputing(chain)
    check(smallest)
    limit = round(smallest.peak + part * max(0, most.peak - smallest.peak))
    found = plan(chain, limit)
    assert found.peak <= limit
    check(found)
    for segments in itertools.islice(cuts(len(chain.steps)), 40):
        check(RecomputePlan(chain, segments, smallest.forward, smallest.backward, 0))


def check(found: RecomputePlan) -> None:
    """Every action finds what it reads, with the contents that the forward pass gave it."""
    chain = found.chain
    there: set[int] = set()
    for action in found.actions:
        assert not there & set(action.takes)
        there |= set(action.takes)
        buffers = chain.buffers
        if action.direction == "backward":
            needs = {i for i, b in enumerate(buffers) if action.step in b.needed}
        else:
            needs = {*chain.read_by(action.step), *chain.made_by(action.step)}
        assert needs <= there, [buffers[i] for i in needs - there]
        there -= set(action.frees)
    assert not there


def test_square_root_of_a_long_chain() -> None:
    """A chain of 36 equal layers does with a small part of the memory, for at most one more forward pass."""
    chain = chain_of([100] * 36)
    most, smallest = without_recomputing(chain), least(chain)
    assert most.peak == 36 * 100 + 2 * 100
    assert smallest.peak <= 16 * 100
    assert smallest.seconds <= most.seconds * 1.5
    half = plan(chain, most.peak // 2)
    assert half.peak <= most.peak // 2
    assert most.seconds < half.seconds < smallest.seconds


def test_workspace_is_given_up_before_anything_is_computed_twice() -> None:
    fronts = [(Point(1.1, 0, "slow"), Point(1.0, 500, "fast"))] * 4
    chain = chain_of([100] * 4, fronts)
    found = plan(chain, 600)
    assert not found.rerun
    assert {point.what for point in found.forward} == {"slow", "fast"}
    assert all(points[0].what == "slow" for points in found.backward[1:])


def test_a_step_that_runs_twice_pays_twice_for_a_slow_way() -> None:
    """The faster of two ways is worth its workspace if the step runs again."""
    for limit in range(300, 800, 50):
        chain = chain_of([100] * 4, [(Point(3.0, 0, 0), Point(1.0, 90, 1))] * 4)
        expected = brute(chain, limit) if limit >= brute_least(chain) else None
        if expected is not None:
            assert plan(chain, limit).seconds == pytest.approx(expected)


def test_too_small_a_limit_names_the_least() -> None:
    chain = chain_of([100, 200, 300, 50], constant=1000)
    smallest = least(chain).peak
    with pytest.raises(InvalidArgument, match=f"at least {smallest} bytes"):
        plan(chain, smallest - 1)
    assert plan(chain, smallest).peak == smallest


def test_what_may_not_run_again_is_kept() -> None:
    chain = chain_of([100] * 6)
    steps = (Step("data", may_rerun=False), *chain.steps[1:])
    chain = Chain(steps, chain.buffers, chain.gradients)
    found = least(chain)
    assert found.rerun
    assert 0 not in found.rerun


def test_explain_says_what_is_kept_and_where_the_peak_is() -> None:
    found = least(chain_of([2**20] * 9))
    text = found.explain()
    assert "steps run again" in text
    assert text.count("<") == 1
    assert f"{len(found.rerun)} of 9 steps" in text
    assert len(text.splitlines()) == 3 + 1 + 9


def test_long_nets_are_planned_in_reasonable_time() -> None:
    random = np.random.default_rng(1)
    chain = chain_of([int(size) for size in random.integers(1, 100, 150)])
    found = plan(chain, without_recomputing(chain).peak // 3)
    assert found.peak <= without_recomputing(chain).peak // 3
