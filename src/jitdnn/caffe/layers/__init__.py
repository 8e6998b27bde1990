"""The layers of Caffe's nets. LAYERS maps each type to its class."""

from __future__ import annotations

from jitdnn.caffe.layers.accuracy import AccuracyLayer
from jitdnn.caffe.layers.activation import (
    ELULayer,
    ReLU6Layer,
    ReLULayer,
    SigmoidLayer,
    TanHLayer,
)
from jitdnn.caffe.layers.base import Context, Layer
from jitdnn.caffe.layers.batch_norm import BatchNormLayer
from jitdnn.caffe.layers.convolution import (
    ConvolutionDepthwiseLayer,
    ConvolutionLayer,
    DepthwiseConvolutionLayer,
)
from jitdnn.caffe.layers.data import DataLayer, ImageDataLayer
from jitdnn.caffe.layers.deconvolution import DeconvolutionLayer
from jitdnn.caffe.layers.detection_output import DetectionOutputLayer
from jitdnn.caffe.layers.dropout import DropoutLayer
from jitdnn.caffe.layers.eltwise import EltwiseLayer
from jitdnn.caffe.layers.embed import EmbedLayer
from jitdnn.caffe.layers.filter import FilterLayer
from jitdnn.caffe.layers.formulas import (
    AbsValLayer,
    BNLLLayer,
    ClipLayer,
    ExpLayer,
    LogLayer,
    PowerLayer,
    SwishLayer,
    ThresholdLayer,
)
from jitdnn.caffe.layers.hdf5 import HDF5DataLayer, HDF5OutputLayer
from jitdnn.caffe.layers.im2col import Im2colLayer
from jitdnn.caffe.layers.infogain import InfogainLossLayer
from jitdnn.caffe.layers.inner_product import InnerProductLayer
from jitdnn.caffe.layers.input import InputLayer
from jitdnn.caffe.layers.interp import InterpLayer
from jitdnn.caffe.layers.losses import (
    ContrastiveLossLayer,
    EuclideanLossLayer,
    HingeLossLayer,
    MultinomialLogisticLossLayer,
    SigmoidCrossEntropyLossLayer,
)
from jitdnn.caffe.layers.lrn import LRNLayer
from jitdnn.caffe.layers.lstm import LSTMLayer, LSTMUnitLayer
from jitdnn.caffe.layers.memory_data import MemoryDataLayer
from jitdnn.caffe.layers.movement import (
    BatchReindexLayer,
    ConcatLayer,
    CropLayer,
    PermuteLayer,
    ShuffleChannelLayer,
    SliceLayer,
    TileLayer,
)
from jitdnn.caffe.layers.normalize import NormalizeLayer
from jitdnn.caffe.layers.pooling import PoolingLayer
from jitdnn.caffe.layers.prelu import PReLULayer
from jitdnn.caffe.layers.prior_box import PriorBoxLayer
from jitdnn.caffe.layers.python import PythonLayer
from jitdnn.caffe.layers.reduction import ArgMaxLayer, MVNLayer, ReductionLayer
from jitdnn.caffe.layers.rnn import RNNLayer
from jitdnn.caffe.layers.scale import (
    AxpyLayer,
    BiasLayer,
    ScaleLayer,
)
from jitdnn.caffe.layers.shapes import FlattenLayer, ReshapeLayer, SilenceLayer, SplitLayer
from jitdnn.caffe.layers.softmax import SoftmaxLayer, SoftmaxWithLossLayer
from jitdnn.caffe.layers.sources import DummyDataLayer, ParameterLayer
from jitdnn.caffe.layers.spp import SPPLayer
from jitdnn.caffe.layers.upsample import UpsampleLayer
from jitdnn.caffe.layers.window_data import WindowDataLayer

__all__ = ["LAYERS", "Context", "Layer"]

LAYERS: dict[str, type[Layer]] = {
    layer.type: layer
    for layer in (
        AbsValLayer,
        AccuracyLayer,
        ArgMaxLayer,
        AxpyLayer,
        BatchNormLayer,
        BatchReindexLayer,
        BiasLayer,
        BNLLLayer,
        ClipLayer,
        ConcatLayer,
        ContrastiveLossLayer,
        ConvolutionDepthwiseLayer,
        ConvolutionLayer,
        CropLayer,
        DataLayer,
        DeconvolutionLayer,
        DepthwiseConvolutionLayer,
        DetectionOutputLayer,
        DropoutLayer,
        DummyDataLayer,
        EltwiseLayer,
        ELULayer,
        EmbedLayer,
        EuclideanLossLayer,
        ExpLayer,
        FilterLayer,
        FlattenLayer,
        HDF5DataLayer,
        HDF5OutputLayer,
        HingeLossLayer,
        Im2colLayer,
        ImageDataLayer,
        InfogainLossLayer,
        InnerProductLayer,
        InputLayer,
        InterpLayer,
        LogLayer,
        LRNLayer,
        LSTMLayer,
        LSTMUnitLayer,
        MemoryDataLayer,
        MultinomialLogisticLossLayer,
        MVNLayer,
        NormalizeLayer,
        ParameterLayer,
        PermuteLayer,
        PoolingLayer,
        PowerLayer,
        PReLULayer,
        PriorBoxLayer,
        PythonLayer,
        ReductionLayer,
        ReLU6Layer,
        ReLULayer,
        ReshapeLayer,
        RNNLayer,
        ScaleLayer,
        ShuffleChannelLayer,
        SigmoidCrossEntropyLossLayer,
        SigmoidLayer,
        SilenceLayer,
        SliceLayer,
        SoftmaxLayer,
        SoftmaxWithLossLayer,
        SplitLayer,
        SPPLayer,
        SwishLayer,
        TanHLayer,
        ThresholdLayer,
        TileLayer,
        UpsampleLayer,
        WindowDataLayer,
    )
}
