"""A net of Caffe's as a module of PyTorch, with the same weights: its loss, for comparisons of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from jitdnn.caffe import Net
from jitdnn.caffe.layers import Layer

functional = nn.functional


def _pair(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


class TorchNet(nn.Module):
    """The layers that CaffeNet, GoogLeNet and ResNet-50 have, as PyTorch would write them.

    BatchNorm and Scale become one BatchNorm2d; Caffe's fractions of running statistics are of another kind, and are not
    taken over. Pooling rounds up, as Caffe's does.
    """

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.steps: list[tuple[Any, list[str], list[str]]] = []
        layers = list(net.layers)
        for node in net.nodes:
            layer = node.layer
            names = [blob.name for blob in node.bottom], [blob.name for blob in node.top]
            if not node.bottom:
                continue
            module = self._module(layer, layers)
            if isinstance(module, nn.Module):
                self.add_module(layer.name.replace("/", "_").replace(".", "_"), module)
            if module is not None:
                self.steps.append((module, *names))
        self.loss_weights = {
            blob.name: weight
            for node in net.nodes
            for blob, weight in zip(node.top, node.loss_weights, strict=True)
            if weight
        }

    def _module(self, layer: Layer, layers: list[Layer]) -> Any:
        made = getattr(self, f"_make_{layer.type.lower()}", None)
        if made is None:
            raise ValueError(f"no module for {layer.type}")
        return made(layer, layers)

    def _make_convolution(self, layer: Any, _: Any) -> nn.Module:
        w, arguments = layer.weights[0].data, layer.arguments
        module = nn.Conv2d(
            w.shape[1] * arguments["groups"],
            w.shape[0],
            layer.kernel,
            _pair(arguments["stride"]),
            _pair(arguments["padding"]),
            groups=arguments["groups"],
            bias=len(layer.weights) == 2,
        )
        return _with(module, layer)

    def _make_innerproduct(self, layer: Any, _: Any) -> nn.Module:
        module = _with(nn.Linear(layer.columns, layer.outputs), layer)
        return nn.Sequential(nn.Flatten(), module)

    def _make_batchnorm(self, layer: Any, layers: list[Layer]) -> nn.Module:
        scale: Any = layers[layers.index(layer) + 1]
        module = nn.BatchNorm2d(layer.weights[0].shape[0], eps=layer.epsilon)
        return _with(module, scale)

    def _make_scale(self, layer: Any, _: Any) -> None:
        return None  # in the BatchNorm2d

    def _make_relu(self, layer: Any, _: Any) -> nn.Module:
        return nn.ReLU(inplace=True)

    def _make_dropout(self, layer: Any, _: Any) -> nn.Module:
        return nn.Dropout(layer.ratio)

    def _make_pooling(self, layer: Any, _: Any) -> nn.Module:
        arguments = layer.arguments
        kind = nn.MaxPool2d if layer.parameter.pooling_param.pool == "MAX" else nn.AvgPool2d
        return kind(layer.window, _pair(arguments["stride"]), _pair(arguments["padding"]), ceil_mode=True)

    def _make_lrn(self, layer: Any, _: Any) -> nn.Module:
        return nn.LocalResponseNorm(layer.size, layer.factor, layer.exponent, layer.offset)

    def _make_concat(self, layer: Any, _: Any) -> Any:
        return lambda *parts: torch.cat(parts, 1)

    def _make_eltwise(self, layer: Any, _: Any) -> Any:
        return torch.add

    def _make_softmaxwithloss(self, layer: Any, _: Any) -> Any:
        return functional.cross_entropy

    def _make_split(self, layer: Any, _: Any) -> Any:
        return lambda x: x

    def forward(self, data: Tensor, label: Tensor) -> Tensor:
        blobs: dict[str, Tensor] = {"data": data, "label": label}
        for step, bottom, top in self.steps:
            made = step(*(blobs[name] for name in bottom))
            for name in top:
                blobs[name] = made
        return sum((weight * blobs[name] for name, weight in self.loss_weights.items()), data.new_zeros(()))


def _with(module: nn.Module, layer: Any) -> nn.Module:
    """The module with the weights of a layer."""
    with torch.no_grad():
        for parameter, blob in zip(module.parameters(), layer.weights, strict=True):
            parameter.copy_(torch.from_numpy(blob.data.copy()).view(parameter.shape))
    return module
