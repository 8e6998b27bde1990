"""The layers of Caffe's nets. LAYERS maps each type to its class."""

from __future__ import annotations

from jitdnn.caffe.layers.accuracy import AccuracyLayer
from jitdnn.caffe.layers.activation import ELULayer, ReLULayer, SigmoidLayer, TanHLayer
from jitdnn.caffe.layers.base import Context, Layer
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.caffe.layers.data import DataLayer
from jitdnn.caffe.layers.dropout import DropoutLayer
from jitdnn.caffe.layers.inner_product import InnerProductLayer
from jitdnn.caffe.layers.input import InputLayer
from jitdnn.caffe.layers.lrn import LRNLayer
from jitdnn.caffe.layers.pooling import PoolingLayer
from jitdnn.caffe.layers.power import PowerLayer
from jitdnn.caffe.layers.prelu import PReLULayer
from jitdnn.caffe.layers.shapes import FlattenLayer, SplitLayer
from jitdnn.caffe.layers.softmax import SoftmaxLayer, SoftmaxWithLossLayer

__all__ = ["LAYERS", "Context", "Layer"]

LAYERS: dict[str, type[Layer]] = {
    layer.type: layer
    for layer in (
        AccuracyLayer,
        ConvolutionLayer,
        DataLayer,
        DropoutLayer,
        ELULayer,
        FlattenLayer,
        InnerProductLayer,
        InputLayer,
        LRNLayer,
        PoolingLayer,
        PowerLayer,
        PReLULayer,
        ReLULayer,
        SigmoidLayer,
        SoftmaxLayer,
        SoftmaxWithLossLayer,
        SplitLayer,
        TanHLayer,
    )
}
