"""What stays torch's in a graph, so that its host has no more to do than by torch alone."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from hypothesis import given
from hypothesis import strategies as st

from jitdnn.frameworks.torch.choice import Decision
from jitdnn.frameworks.torch.inductor_host import left_to_torch


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
