"""Caffe's own way to compute convolutions and inner products, for comparison: im2col and a product by BLAS for each
image and group, on a GPU by cuBLAS.

PyTorch's `unfold` and `fold` are Caffe's im2col and col2im, and its `mm` calls BLAS or cuBLAS; both are handed this
library's arrays without a copy. All other layers, and the updates, are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers import LAYERS, Layer
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.caffe.layers.inner_product import InnerProductLayer

fold, unfold = torch.nn.functional.fold, torch.nn.functional.unfold


def _tensor(array: Any) -> torch.Tensor:
    """The array as PyTorch's, without a copy."""
    return torch.from_dlpack(array) if hasattr(array, "gpu") else torch.from_numpy(array)


def _on_stream(layer: Layer) -> Any:
    device = layer.context.device
    if device is None or not torch.cuda.is_available():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(int(device.stream)))


class Im2colConvolution(ConvolutionLayer):
    """As conv_layer.cpp: for each image a matrix of all windows, then a product for each group; the bias by another."""

    def _geometry(self) -> dict[str, Any]:
        names = {"stride": "stride", "padding": "padding", "dilation": "dilation"}
        return {"kernel_size": self.kernel} | {name: self.arguments[key] for key, name in names.items()}

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        with torch.no_grad(), _on_stream(self):
            groups, w = self.arguments["groups"], _tensor(self.weights[0].values)
            w = w.reshape(groups, w.shape[0] // groups, -1)
            bias = _tensor(self.weights[1].values).reshape(-1, 1) if len(self.weights) == 2 else None
            x, y = _tensor(bottom[0].values), _tensor(top[0].values)
            for image, result in zip(x, y, strict=True):
                columns = self._columns(image, groups)
                out = result.view(groups, w.shape[1], -1)
                for group in range(groups):
                    torch.mm(w[group], columns[group], out=out[group])
                if bias is not None:
                    result.view(result.shape[0], -1).add_(bias)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        with torch.no_grad(), _on_stream(self):
            groups, w = self.arguments["groups"], _tensor(self.weights[0].values)
            w = w.reshape(groups, w.shape[0] // groups, -1)
            dw = _tensor(self.weights[0].gradient).view(w.shape)
            x, dy = _tensor(bottom[0].values), _tensor(top[0].gradient)
            if len(self.weights) == 2 and self.weight_needs_gradient[1]:
                _tensor(self.weights[1].gradient).add_(dy.sum((0, 2, 3)))
            dx = _tensor(bottom[0].gradient) if propagate[0] else None
            for number, (image, gradient) in enumerate(zip(x, dy, strict=True)):
                dg = gradient.view(groups, w.shape[1], -1)
                if self.weight_needs_gradient[0]:
                    columns = self._columns(image, groups)
                    for group in range(groups):
                        dw[group].addmm_(dg[group], columns[group].t())
                if dx is not None:
                    wide = torch.empty(groups, w.shape[2], dg.shape[2], dtype=dg.dtype, device=dg.device)
                    for group in range(groups):
                        torch.mm(w[group].t(), dg[group], out=wide[group])
                    sums = fold(wide.view(1, -1, dg.shape[2]), image.shape[1:], **self._geometry())
                    dx[number].copy_(sums[0])

    def _columns(self, image: torch.Tensor, groups: int) -> torch.Tensor:
        columns: torch.Tensor = unfold(image[None], **self._geometry())[0]
        return columns.view(groups, -1, columns.shape[-1])


class BlasInnerProduct(InnerProductLayer):
    """As inner_product_layer.cpp."""

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        with torch.no_grad(), _on_stream(self):
            x, y = self._rows_of(bottom[0].values, top[0].values)
            torch.addmm(_tensor(self.weights[1].values), x, _tensor(self.weights[0].values).t(), out=y)

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        with torch.no_grad(), _on_stream(self):
            x, dy = self._rows_of(bottom[0].values, top[0].gradient)
            _tensor(self.weights[0].gradient).addmm_(dy.t(), x)
            _tensor(self.weights[1].gradient).add_(dy.sum(0))
            if propagate[0]:
                dx = _tensor(bottom[0].gradient).view(x.shape)
                torch.mm(dy, _tensor(self.weights[0].values), out=dx)

    def _rows_of(self, x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return _tensor(x).view(self.rows, self.columns), _tensor(y).view(self.rows, self.outputs)


@contextmanager
def caffes_own_way() -> Iterator[None]:
    """A block in which nets are built of these layers."""
    theirs = {"Convolution": Im2colConvolution, "InnerProduct": BlasInnerProduct}
    before = {name: LAYERS[name] for name in theirs}
    LAYERS.update(theirs)
    try:
        yield
    finally:
        LAYERS.update(before)
