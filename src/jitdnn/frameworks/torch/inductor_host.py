"""Who runs the convolutions of a graph so that its calls cost the host no more than torch's, or less.

What else a program does on the host, and whether the GPU waits for it, is not known when a graph is compiled. A step
takes at least what its host needs and at least what its kernels need, and is slower for neither where neither sum has
grown. Kernels are chosen by the GPU's time; what is left are calls. Both gradients of a convolution are one call of
torch's: where only one of them is ours, there is one more; where both are, torch's is gone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from jitdnn.frameworks.torch.choice import Decision

Node = TypeVar("Node", bound=Hashable)
#: how many times as long as torch's a kernel of ours may take where the host has less to do for it
NEAR = 1.05


def taken_from_torch(choices: Sequence[tuple[Node, Decision]]) -> set[Node]:
    """The nodes that are to become ours altogether though torch's kernels are a little faster, of all of a graph with
    what the GPU's time chose for each direction.

    Those for which the host has less to do then, first those that cost the GPU least for it, and no more of them than
    ours save the GPU elsewhere in the graph.
    """
    each = _by_node(choices)
    room = sum(_saved(decisions) for decisions in each.values())
    found = []
    for node, decisions in each.items():
        lost = sum(_lost(one) for one in decisions)
        gain = _hosts(decisions, False) - _hosts(decisions, True)
        if 0.0 < lost < float("inf") and gain > 0.0:
            found.append((lost / gain, lost, node))
    taken = set[Node]()
    for _, lost, node in sorted(found, key=lambda one: one[0]):
        if lost <= room:
            room -= lost
            taken.add(node)
    return taken


def left_to_torch(choices: Sequence[tuple[Node, Decision]]) -> set[Node]:
    """The nodes that are not to become ours, of all of a graph with what the GPU's time chose for each direction.

    Those go first that save the GPU least for what they cost the host. Where a node's host is unknown, as with
    `measure="never"`, it counts nothing.
    """
    each = _by_node(choices)
    costs = {node: _cost(decisions) for node, decisions in each.items()}
    over, left = sum(costs.values()), set[Node]()
    dear = [node for node, cost in costs.items() if cost > 0]
    for node in sorted(dear, key=lambda node: _worth(each[node], costs[node])):
        if over <= 0:
            break
        over -= costs[node]
        left.add(node)
    return left


def _by_node(choices: Sequence[tuple[Node, Decision]]) -> dict[Node, list[Decision]]:
    each: dict[Node, list[Decision]] = {}
    for node, decision in choices:
        each.setdefault(node, []).append(decision)
    return each


def _cost(decisions: Sequence[Decision]) -> float:
    """Seconds by which a node takes the host longer with ours."""
    if not any(one.is_ours for one in decisions) or any(
        one.is_ours and one.hosts is None for one in decisions
    ):
        return 0.0
    return _hosts(decisions, False) - max(one.hosts[1] for one in decisions if one.hosts is not None)


def _hosts(decisions: Sequence[Decision], is_all_ours: bool) -> float:
    """Seconds that the host takes for a node's calls, as far as they are known."""
    known = [(one.is_ours or is_all_ours, *one.hosts) for one in decisions if one.hosts is not None]
    ours = sum(own for is_ours, own, _ in known if is_ours)
    return ours + max((stock for is_ours, _, stock in known if not is_ours), default=0.0)


def _saved(decisions: Sequence[Decision]) -> float:
    """Seconds that ours save the GPU."""
    return sum((one.stock_seconds or 0.0) - (one.seconds or 0.0) for one in decisions if one.is_ours)


def _lost(decision: Decision) -> float:
    """Seconds that the GPU takes longer if a choice is ours, too; infinite if it cannot be, or that is not known."""
    if decision.is_ours:
        return 0.0
    ours, stock = decision.seconds, decision.stock_seconds
    if ours is None or stock is None or decision.hosts is None or ours > NEAR * stock:
        return float("inf")
    return ours - stock


def _worth(decisions: Sequence[Decision], cost: float) -> float:
    return _saved(decisions) / cost
