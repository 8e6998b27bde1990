"""How a layer runs in its net: on the processor as it is, on a GPU where the blobs are, or on the host in between."""

from __future__ import annotations

from functools import cache

from jitdnn import log
from jitdnn.caffe.graph import Node
from jitdnn.handle import Handle
from jitdnn.settings import format_bytes


def run_forward(node: Node, is_on_gpu: bool) -> None:
    """Run the forward pass of a layer."""
    layer = node.layer
    if node.is_absorbed:
        layer.absorbed(node.top)
        return
    if not is_on_gpu or layer.is_for_gpu:
        layer.forward(node.bottom, node.top)
        return
    if node.bottom:
        _tell(node)
    if layer.fills_tops:
        for blob in node.top:
            if blob not in node.bottom:
                blob.overwrite_host()
    for blob in node.bottom:
        blob.enter()
    with _host():
        layer.forward(node.bottom, node.top)
    for blob in node.bottom:
        if blob not in node.top:
            blob.leave()


def run_backward(node: Node, is_on_gpu: bool) -> None:
    """Run the backward pass of a layer."""
    layer = node.layer
    if node.has_no_backward:
        return
    if not is_on_gpu or layer.is_for_gpu:
        layer.backward(node.backward_top, node.fills, node.bottom)
    else:
        for blob in (*node.bottom, *node.top, *layer.weights):
            blob.enter()
        for blob in node.top:
            blob.enter(is_gradient=True)
        with _host():
            layer.backward(node.top, node.propagate, node.bottom)
        for blob in (*node.bottom, *node.top, *layer.weights):
            blob.leave()
        for blob in node.top:
            if blob not in node.bottom:
                blob.leave(is_gradient=True)


@cache
def _host() -> Handle:
    """The handle of layers that compute on the host, in the place of the net's."""
    return Handle()


def is_on_host(node: Node) -> bool:
    """Whether a layer of a net on a GPU computes on the host, and not only fills what goes there."""
    return not node.layer.is_for_gpu and bool(node.bottom)


def _tell(node: Node) -> None:
    """Say once for each layer what its place costs."""
    layer = node.layer
    down, up = (sum(blob.nbytes for blob in blobs) for blobs in (node.bottom, node.top))
    log.fallback_once(
        ("caffe layer on the host", layer.type, layer.name, down, up),
        f"layer {layer.name!r} ({layer.type}) has no kernels for GPUs and computes on the host: every forward pass "
        f"waits for the GPU, copies {format_bytes(down)} down and {format_bytes(up)} up; no CUDA graph is made",
    )
