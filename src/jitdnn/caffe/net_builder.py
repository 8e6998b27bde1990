"""The layers and blobs of a net, made one after the other from a net's text; every obstacle is found, not only the
first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.graph import Node, check_count, loss_weights
from jitdnn.caffe.layers import LAYERS, Context, Layer
from jitdnn.caffe.obstacles import together
from jitdnn.caffe.schema import LayerParameter, NetParameter, NetState
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, JitdnnError, NotSupported


class NetBuilder:
    """Builds the layers of `definition`, whose splits are in it.

    `context` makes the context of a layer from its `phase` and its generator `random`; `seeds` are those generators',
    one a layer. Afterwards `blobs` and `nodes` are the net's, and `unread` names the blobs that no layer reads.
    """

    def __init__(
        self,
        definition: NetParameter,
        state: NetState,
        context: Callable[..., Context],
        seeds: Sequence[np.random.SeedSequence],
    ) -> None:
        self.blobs: dict[str, Blob] = {}
        self.nodes: list[Node] = []
        self.unread: dict[str, None] = {}
        self._layers, self._state, self._context, self._seeds = definition.layer, state, context, seeds
        # the last layer that works in place on each blob
        self._overwrites = {
            name: index
            for index, layer in enumerate(self._layers)
            for name in set(layer.bottom).intersection(layer.top)
        }

    def build(self, problems: Sequence[JitdnnError]) -> None:
        """Build all layers. Raises all obstacles at once, `problems`, which are known before, among them."""
        found = list(problems)
        unknown: set[str] = set()  # blobs of layers that cannot be built
        for parameter, seed in zip(self._layers, self._seeds, strict=True):
            if parameter.type not in LAYERS:
                unknown.update(parameter.top)
                continue
            try:
                layer = self._layer(parameter, seed)
                if unknown.isdisjoint(parameter.bottom):
                    self._append(layer)
                else:
                    unknown.update(parameter.top)
            except (InvalidArgument, NotSupported) as error:
                found.append(error)
                unknown.update(parameter.top)
        if found:
            raise together(found)

    def _layer(self, parameter: LayerParameter, seed: np.random.SeedSequence) -> Layer:
        """Make a layer, with the checks that need no shapes."""
        kind = LAYERS[parameter.type]
        if not parameter.has("phase"):
            parameter.phase = self._state.phase
        random = np.random.Generator(np.random.PCG64(seed))
        layer = kind(parameter, self._context(phase=parameter.phase, random=random))
        if kind.makes_tops or kind.is_loss:  # tops that nobody can read, and that are no outputs
            while len(parameter.top) < kind.tops[0]:
                number = f" {len(parameter.top)}" if parameter.top else ""
                parameter.top.append(f"({parameter.name}{number})")
                layer.unnamed_tops.append(parameter.top[-1])
        check_count(layer, "bottom", len(parameter.bottom), kind.bottoms)
        check_count(layer, "top", len(parameter.top), kind.tops)
        if parameter.propagate_down and len(parameter.propagate_down) != len(parameter.bottom):
            raise layer.invalid(
                f"{len(parameter.propagate_down)} propagate_down for {len(parameter.bottom)} bottoms: "
                "give one each, or none"
            )
        return layer

    def _append(self, layer: Layer) -> None:
        parameter = layer.parameter
        bottom = [self.blobs[name] for name in parameter.bottom]
        for name in parameter.bottom:
            self.unread.pop(name, None)
        top = [self._top(layer, index, name, bottom) for index, name in enumerate(parameter.top)]
        for name in parameter.top:
            if name not in layer.unnamed_tops:
                self.unread[name] = None
        node = Node(layer, bottom, top, loss_weights(layer))
        layer.is_overwritten = any(self._overwrites.get(name, -1) > len(self.nodes) for name in parameter.top)
        self.nodes.append(node)

        def build() -> None:
            layer.setup(bottom, top)
            layer.reshape(bottom, top)

        for blob in top if not bottom and not layer.is_for_gpu else ():
            blob.is_streamed = True
        guarded(parameter, build)
        set_loss_weights(node)

    def _top(self, layer: Layer, index: int, name: str, bottom: list[Blob]) -> Blob:
        names = [blob.name for blob in bottom]
        if index < len(names) and names[index] == name:
            if not layer.may_be_in_place:
                raise layer.invalid(f"top {name!r} is its bottom too, and this layer cannot work in place")
            return bottom[index]
        if name in self.blobs:
            raise layer.invalid(
                f"top {name!r} exists already: two layers make it, or this one would work in place on what "
                "another layer reads too; give it a name of its own",
                "top",
            )
        self.blobs[name] = layer.context.blob(name)
        return self.blobs[name]


def guarded(parameter: LayerParameter, action: Callable[[], None]) -> None:
    """Run the action; an error that does not name the layer gets the layer's name and line."""
    try:
        action()
    except (InvalidArgument, InvalidType, NotSupported) as error:
        message = str(error)
        if message.startswith("layer "):
            raise
        where = f"layer {parameter.name!r} ({parameter.type}){parameter.where()}: "
        kind: type[JitdnnError] = (
            type(error) if type(error) in (InvalidShape, InvalidType, NotSupported) else InvalidArgument
        )
        raise kind(where + message).at(parameter.place()).at(error) from error


def set_loss_weights(node: Node) -> None:
    """Fill the gradients of tops that have a loss weight with it; those of a net of shapes alone have no memory."""
    for blob, weight in zip(node.top, node.loss_weights, strict=True):
        if weight and not blob.shapes_only:
            blob.diff.fill(weight)
