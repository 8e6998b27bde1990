"""What stays torch's in a graph, so that its host has no more to do than by torch alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given
from hypothesis import strategies as st

from jitdnn.frameworks.torch.choice import Decision
from jitdnn.frameworks.torch.inductor_host import NEAR, left_to_torch, taken_from_torch


def decision(is_ours: bool, saved: float, ours: float, stock: float) -> Decision:
    """Times in microseconds; of kernels torch's takes 100."""
    seconds = 100.0 - saved if is_ours else 200.0
    return Decision(is_ours, "", seconds / 1e6, 1e-4, hosts=(ours / 1e6, stock / 1e6))


def cost(decisions: list[Decision], left: bool) -> float:
    """Microseconds of the host for the calls of one node: torch's gradients are one call, each of ours is one."""
    hosts = [one.hosts or (0.0, 0.0) for one in decisions]
    ours = [host[0] for one, host in zip(decisions, hosts, strict=True) if one.is_ours and not left]
    stock = [host[1] for one, host in zip(decisions, hosts, strict=True) if left or not one.is_ours]
    return 1e6 * (sum(ours) + max(stock, default=0.0))


DECISIONS = st.builds(decision, st.booleans(), st.integers(0, 90), st.integers(1, 40), st.integers(20, 40))
NODES = st.lists(st.lists(DECISIONS, min_size=1, max_size=2), max_size=8)


@given(NODES)
def test_the_host_never_has_more_to_do(nodes: list[list[Decision]]) -> None:
    left = left_to_torch([(place, one) for place, node in enumerate(nodes) for one in node])
    now = sum(cost(node, place in left) for place, node in enumerate(nodes))
    assert now <= sum(cost(node, True) for node in nodes) + 1e-6
    for place in left:  # each of them costs the host more than torch's
        assert cost(nodes[place], False) > cost(nodes[place], True)


@given(NODES)
def test_nothing_is_left_that_the_host_can_afford(nodes: list[list[Decision]]) -> None:
    left = left_to_torch([(place, one) for place, node in enumerate(nodes) for one in node])
    bound = sum(cost(node, True) for node in nodes)
    if sum(cost(node, False) for node in nodes) <= bound - 1e-6:
        assert not left


def test_what_saves_most_for_the_host_stays_ours() -> None:
    """Two nodes of which one gradient is ours each: the saving of a third pays for one of them."""
    third = [("c", decision(True, 1, 25, 35))]
    for first, second, expected in ((50, 20, "b"), (20, 50, "a")):
        one = [("a", decision(True, first, 8, 30)), ("a", decision(False, 0, 8, 30))]
        other = [("b", decision(True, second, 8, 30)), ("b", decision(False, 0, 8, 30))]
        assert left_to_torch([*one, *other, *third]) == {expected}


def test_what_was_not_timed_costs_nothing() -> None:
    assert not left_to_torch(
        [("a", Decision(True, "not measured, as asked")), ("b", decision(True, 5, 9, 9))]
    )


SLOWER = st.builds(
    lambda saved, ours, stock: Decision(
        saved >= 0, "", 1e-4 - saved / 1e6, 1e-4, hosts=(ours / 1e6, stock / 1e6)
    ),
    st.integers(-9, 20), st.integers(1, 40), st.integers(20, 40),
)  # fmt: skip


@given(st.lists(st.lists(SLOWER, min_size=1, max_size=2), max_size=8))
def test_neither_sum_grows(nodes: list[list[Decision]]) -> None:
    """What is taken is near torch's, costs the host less, and the GPU no more than ours save it elsewhere."""
    taken = taken_from_torch([(place, one) for place, node in enumerate(nodes) for one in node])
    saved = sum(
        (one.stock_seconds or 0.0) - (one.seconds or 0.0)
        for place, node in enumerate(nodes)
        for one in node
        if one.is_ours or place in taken
    )
    assert saved >= -1e-12
    for place in taken:
        assert any(not one.is_ours for one in nodes[place])
        assert all((one.seconds or 0.0) <= NEAR * 1e-4 for one in nodes[place])
        all_ours = [replace(one, is_ours=True) for one in nodes[place]]
        assert cost(all_ours, False) < cost(nodes[place], False)


def test_what_costs_the_gpu_least_is_taken_first() -> None:
    """A gradient of ours saves 5 us: room for one of two nodes, of which torch runs all and one, or for both."""

    def near(lost: float) -> Decision:
        return Decision(False, "", (100.0 + lost) / 1e6, 1e-4, hosts=(8e-6, 30e-6))

    room = [("a", decision(True, 5, 8, 30))]
    one = [("b", near(2)), ("b", near(2))]
    other = [("c", decision(True, 0, 8, 30)), ("c", near(3))]
    assert taken_from_torch([*room, *one]) == {"b"}
    assert taken_from_torch([*room, *one, *other]) == {"c"}
    assert taken_from_torch([*room, *room, *one, *other]) == {"b", "c"}
    assert taken_from_torch([*one, *other]) == set()


def test_what_is_not_near_or_not_known_is_not_taken() -> None:
    room = [("a", decision(True, 50, 8, 30))]
    far = [("b", Decision(False, "", 106e-6, 1e-4, hosts=(8e-6, 30e-6)))]
    refused = [
        ("c", Decision(False, "refused")),
        ("c", Decision(False, "", 101e-6, 1e-4, hosts=(8e-6, 30e-6))),
    ]
    dear = [("d", Decision(False, "", 101e-6, 1e-4, hosts=(31e-6, 30e-6)))]
    assert not taken_from_torch([*room, *far, *refused, *dear])
