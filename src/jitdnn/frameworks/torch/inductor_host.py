"""Which convolutions of a graph stay torch's, so that its calls cost the host no more than they did.

What else a program does on the host, and whether the GPU waits for it, is not known when a graph is compiled. A step
takes at least what its host needs and at least what its kernels need, and is slower for neither where neither sum has
grown. Kernels are chosen by the GPU's time; what is left are calls. Both gradients of a convolution are one call of
torch's: where only one of them is ours, there is one more.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from jitdnn.frameworks.torch.choice import Decision

Node = TypeVar("Node", bound=Hashable)


def left_to_torch(choices: Sequence[tuple[Node, Decision]]) -> set[Node]:
    """The nodes that are not to become ours, of all of a graph with what the GPU's time chose for each direction.

    Those go first that save the GPU least for what they cost the host. Where a node's host is unknown, as with
    `measure="never"`, it counts nothing.
    """
    each: dict[Node, list[Decision]] = {}
    for node, decision in choices:
        each.setdefault(node, []).append(decision)
    costs = {node: _cost(decisions) for node, decisions in each.items()}
    over, left = sum(costs.values()), set[Node]()
    dear = [node for node, cost in costs.items() if cost > 0]
    for node in sorted(dear, key=lambda node: _worth(each[node], costs[node])):
        if over <= 0:
            break
        over -= costs[node]
        left.add(node)
    return left


def _cost(decisions: Sequence[Decision]) -> float:
    """Seconds by which a node takes the host longer with ours."""
    if not any(one.is_ours for one in decisions) or any(
        one.is_ours and one.hosts is None for one in decisions
    ):
        return 0.0
    ours = sum(one.hosts[0] for one in decisions if one.is_ours and one.hosts is not None)
    stock = [(one.is_ours, one.hosts[1]) for one in decisions if one.hosts is not None]
    left = max((seconds for is_ours, seconds in stock if not is_ours), default=0.0)
    return ours + left - max(seconds for _, seconds in stock)


def _worth(decisions: Sequence[Decision], cost: float) -> float:
    saved = sum((one.stock_seconds or 0.0) - (one.seconds or 0.0) for one in decisions if one.is_ours)
    return saved / cost
