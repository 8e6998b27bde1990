"""The code of a net on a GPU, compiled before its first pass: several modules at once in place of one at each layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from jitdnn.caffe.graph import Node
from jitdnn.caffe.net_run import run_backward, run_forward
from jitdnn.ops.ahead import compile_ahead

if TYPE_CHECKING:
    from jitdnn.caffe.net_passes import NetPasses


def compile_passes(net: NetPasses, *, backward: bool, more: Callable[[], object] | None = None) -> None:
    """Compile what a pass forward, one `backward` and `more` need; nothing runs, and no blob changes.

    Layers of data and those that compute on the host have no code here.
    """
    assert net.device is not None

    calls: list[Callable[[], object]] = [
        partial(run_forward, node, True) for node in net.nodes if _is_for_gpu(node)
    ]
    calls.append(net.fusion.statistics.update)
    if backward:
        nodes = (node for node in reversed(net.nodes) if node.needs_backward and _is_for_gpu(node))
        calls += [partial(run_backward, node, True) for node in nodes]
    if more is not None:
        calls.append(more)
    for layer in net.layers:
        layer.is_captured = True  # what the host does for a pass is not done
    try:
        compile_ahead(net.device.handle, calls)
    finally:
        for layer in net.layers:
            layer.is_captured = False


def _is_for_gpu(node: Node) -> bool:
    return bool(node.bottom) and node.layer.is_for_gpu
