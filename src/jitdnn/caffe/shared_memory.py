"""Blobs of nets that a solver trains and tests, in one block of memory: what is not needed at the same time lies in the
same place.

Data of a blob is needed from the layer that makes it to the last one that reads it, in the forward pass or the backward
pass (`Layer.backward_reads`), a gradient from the first layer of the backward pass that fills it to the last one that
reads it. So gradients lie where data was that no layer reads any more, and the block is as large as what is needed at
the end of the forward pass, and little more. Places are found once for the shapes of a net (graph/arena.py) and stay,
so that CUDA graphs find their arrays; all calls of a net go to one stream, in whose order they may be used again.

Sources, inputs, outputs and losses have memory of their own, as what programs fill and read between passes. Between
the passes of a solver other blobs have none: asking for them is an error and not somebody else's values. Where
weights are updated within the backward pass (early_update.py), so it is with their gradients. Nets that test do not run
while one is trained, and lie in the same block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.device import NetDevice
from jitdnn.caffe.graph import LayerGraph, Node
from jitdnn.caffe.memory_layout import Layout, lay_out
from jitdnn.caffe.synced import Synced
from jitdnn.errors import InvalidArgument
from jitdnn.graph.arena import Need, place

_GRAIN = 256  # bytes that a place is a multiple of, as an allocation of its own would be


class _Tenant(NamedTuple):
    """A blob whose data, or gradient, lies in the block, the blobs that view it, and when it is needed."""

    blob: Blob
    views: list[Blob]
    is_gradient: bool
    need: Need


class Block:
    """Memory for nets that never run at the same time, of any contents: as much as the largest of them asks for."""

    def __init__(self, device: NetDevice | None) -> None:
        self._device = device
        self._users: list[SharedMemory] = []
        self._memory: Any = None
        self.bytes = 0

    def join(self, user: SharedMemory) -> None:
        """Note who has to look for its places again when the block becomes larger."""
        self._users.append(user)

    def reserve(self, bytes: int) -> None:
        """Have so many bytes."""
        if self._memory is not None and self.bytes >= bytes:
            return
        self._memory = None
        for user in self._users:
            user.leave_places()  # before the larger one is allocated
        self._memory, self.bytes = _allocated(self._device, bytes), bytes

    def at(self, start: int, blob: Blob) -> Any:
        """The memory of a blob at a place in the block."""
        if self._device is not None:
            array = self._device.within(self._memory, start, blob.shape, blob.dtype, blob.is_channels_last)
            return Synced.of(self._device, blob.shape, array, blob.is_channels_last)
        memory: Any = self._memory[start : start + blob.nbytes]
        return memory.view(blob.dtype).reshape(blob.shape)


class SharedMemory:
    """A net's part in a block.

    Inside of `lent` its blobs lie in the block. `bytes` is what they need of it, 0 before the first time. `refusal`
    says why the net's blobs keep memory of their own, None where they need not.
    """

    def __init__(
        self,
        net: LayerGraph,
        block: Block,
        spans: Sequence[tuple[int, int] | None] | None = None,
        *,
        is_forced: bool = False,
        is_trained: bool = True,
    ) -> None:
        """Nothing is taken yet. `spans`: of the gradient of each parameter the layer of the backward pass that is the
        first to add to it, and the one behind which nobody needs it (fusion.gradient_spans); those without one have
        memory of their own. `is_forced`: the net computes gradients that no training needs
        (force_backward). Without `is_trained` it runs forward alone.
        """
        self._net, self._block, self._spans, self._is_trained = net, block, spans, is_trained
        block.join(self)
        self._places: list[tuple[_Tenant, int]] | None = None  # None: to be planned
        self._lent: list[tuple[_Tenant, Any]] = []  # with the memory of each; empty: to be looked for
        self._unfilled: list[Blob] = []  # whose gradients no pass fills (backward_fusion.py)
        self._is_lent = self._is_withheld = self._is_wanted = False
        self.bytes = 0
        self.refusal = _refusal(net, is_forced)

    @contextmanager
    def lent(self) -> Iterator[bool]:
        """Have the blobs lie in the block for the passes inside, which run whole; whether they do is what it gives.

        They do not once somebody has asked for what an iteration left, nor with an observer, who may ask for anything.
        """
        if self.refusal is None and self._is_wanted:
            self.refusal = "a program asked for values of blobs after a pass of the solver"
        if self.refusal is not None or self._net.observer is not None:
            self.forget()
            yield False
            return
        if self._places is None:
            self._plan()
        if self.bytes:
            self._block.reserve(self.bytes)
        if not self._lent:
            self._lent = [
                (tenant, self._block.at(start, tenant.blob)) for tenant, start in self._places or ()
            ]
        for tenant, memory in self._lent:
            (tenant.blob.swap_diff if tenant.is_gradient else tenant.blob.swap_data)(memory)
        self._is_lent, self._is_withheld = True, True
        try:
            yield True
        finally:
            self._withhold()

    def step_aside(self, *, is_start: bool) -> None:
        """A pass is about to run: outside of `lent` the blobs have memory of their own for it, zeros at first.

        Raises InvalidArgument if it does not begin with the first layer (`is_start`) and would read what an iteration
        left.
        """
        if self._is_lent or not self._is_withheld:
            return
        if not is_start:
            self._is_wanted = True
            raise InvalidArgument(
                f"this pass begins with values of the one before, and they are gone: {_RULE}"
            )
        self._lift()

    def give_gradients(self) -> None:
        """Outside of `lent` the gradients of weights are about to be cleared: they have memory of their own for it."""
        if not self._is_lent and self._is_withheld:
            weights = {id(parameter.blob) for parameter in self._net.parameters}
            for tenant, _ in self._places or ():
                if id(tenant.blob) in weights:
                    for blob in (tenant.blob, *tenant.views):
                        blob.lift_diff()

    def forget(self) -> None:
        """Give up the places, and have the blobs take memory of their own when it is asked for."""
        if self._places is not None:
            self._lift()
            self._places, self._lent, self.bytes = None, [], 0

    def leave_places(self) -> None:
        """The block is about to be another one."""
        self._lent = []

    def _lift(self) -> None:
        for blob in self._unfilled:
            blob.lift_diff()
        for tenant, _ in self._places or ():
            for blob in (tenant.blob, *tenant.views):
                (blob.lift_diff if tenant.is_gradient else blob.lift)()
        self._is_withheld = False

    def _withhold(self) -> None:
        self._is_lent = False
        for blob in self._unfilled:
            blob.withhold_diff(self._refuse)
        for tenant, _ in self._lent:
            # on a GPU views look at what they view each time
            for blob in (tenant.blob, *tenant.views) if tenant.blob.device is None else (tenant.blob,):
                (blob.withhold_diff if tenant.is_gradient else blob.withhold)(self._refuse)

    def _refuse(self, blob: Blob) -> InvalidArgument:
        self._is_wanted = True
        return InvalidArgument(f"blob {blob.name!r} has no values now: {_RULE}")

    def _plan(self) -> None:
        layout = lay_out(self._net, is_trained=self._is_trained)
        tenants = [*_tenants(self._net, layout), *self._weights(layout)]
        starts, self.bytes = place([tenant.need for tenant in tenants])
        self._places = list(zip(tenants, starts, strict=True))
        lying = {
            id(blob) for tenant in tenants if tenant.is_gradient for blob in (tenant.blob, *tenant.views)
        }
        left = [node.bottom[index] for node in self._net.nodes for index in sorted(node.unfilled)]
        self._unfilled = [blob for blob in left if id(blob) not in lying]

    def _weights(self, layout: Layout) -> Iterator[_Tenant]:
        """The gradients of weights."""
        if self._spans is None:
            return
        step_of = [step for step, members in enumerate(layout.steps) for _ in members]
        last = 2 * len(layout.steps) - 1
        for parameter, span in zip(self._net.parameters, self._spans, strict=True):
            blob = parameter.blob
            if span is None:
                continue
            first, ready = span
            if blob.gradient_owner is blob and blob.size:
                views = [
                    other
                    for blobs in self._net.weights.values()
                    for other in blobs
                    if other.gradient_owner is blob and other is not blob
                ]
                need = Need(_rounded(blob.nbytes), last - step_of[first], last - step_of[ready])
                yield _Tenant(blob, views, True, need)


def passes_bytes(trained: LayerGraph, *tested: LayerGraph) -> int:
    """Bytes of data and gradients of blobs, and of what layers keep, of a net that a solver trains and those that test
    it, by their shapes: the block, and what has memory of its own.
    """
    block = own = 0
    for net in (trained, *tested):
        is_trained = net is trained
        with net.redirected():
            layout = lay_out(net, is_trained=is_trained)
            tenants = _tenants(net, layout)
        _, needed = place([tenant.need for tenant in tenants])
        block = max(block, needed)
        lying = {(id(tenant.blob), tenant.is_gradient) for tenant in tenants}
        data = {id(blob.owner): blob.owner for blob in net.blobs.values()}
        own += sum(blob.nbytes for key, blob in data.items() if (key, False) not in lying)
        gradients = [blob for blobs in layout.gradient_blobs for blob in blobs[:1]]
        own += sum(blob.nbytes for blob in gradients if (id(blob), True) not in lying)
    return block + own


_RULE = (
    "the passes of a solver keep blobs in memory that other blobs have, too. From the next one on all have memory of "
    "their own, since you asked; load_solver(..., keep_blobs=True) gives it to them from the first one on"
)


def _refusal(net: LayerGraph, is_forced: bool) -> str | None:
    if is_forced:
        return "force_backward asks for gradients that no training needs"
    for layer in net.layers:
        if layer.may_resize:
            return f"layer {layer.name!r} ({layer.type}) has tops whose shapes may change in each pass"
    return None


def _tenants(net: LayerGraph, layout: Layout) -> list[_Tenant]:
    """What lies in the block. Times are steps: those of the forward pass, and those of the backward pass behind."""
    last = 2 * len(layout.steps) - 1
    # what sources fill, by the host and ahead of the passes, and what layers keep that others compute in their place
    kept = {id(blob.owner) for node in net.nodes if not node.bottom for blob in node.top}
    kept |= {id(blob) for node in net.nodes if node.has_no_backward for blob in node.layer.saved.values()}
    found = []
    for buffer, blobs in zip(layout.buffers, layout.blobs, strict=True):
        owner, *views = blobs
        if owner.owner is owner and owner.size and id(owner) not in kept:
            until = max([buffer.last_read, *(last - step for step in buffer.needed)])
            found.append(_Tenant(owner, views, False, Need(_rounded(owner.nbytes), buffer.made, until)))
    for gradient, blobs in zip(layout.gradients, layout.gradient_blobs, strict=True):
        owner, *views = blobs
        if owner.gradient_owner is owner and owner.size and _is_filled_first(owner, net.nodes):
            need = Need(_rounded(owner.nbytes), last - gradient.taken, last - gradient.free)
            found.append(_Tenant(owner, views, True, need))
    return found


def _is_filled_first(owner: Blob, nodes: list[Node]) -> bool:
    """Whether the first layer of a backward pass that has a blob's gradient fills it: otherwise its zeros are read."""
    for node in reversed(nodes):
        if not node.needs_backward or node.has_no_backward:
            continue
        if any(blob.gradient_owner is owner for blob in node.backward_top):
            return False
        for blob, is_filled in zip(node.bottom, node.fills, strict=True):
            if is_filled and blob.gradient_owner is owner:
                return True
    return False


def _rounded(bytes: int) -> int:
    return -(-bytes // _GRAIN) * _GRAIN


def _allocated(device: NetDevice | None, bytes: int) -> Any:
    if device is not None:
        return device.block(bytes)
    whole = np.empty(bytes + _GRAIN, np.uint8)
    skipped = -whole.ctypes.data % _GRAIN
    return whole[skipped : skipped + bytes]
