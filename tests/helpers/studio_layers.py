"""A net of every type of layer that has a form in ONNX, with random weights."""

from __future__ import annotations

import numpy as np

from jitdnn.caffe import Net, NetParameter, NetState, parse

# each line: a layer of the input "data" (2 to 6 channels, 9 x 11 pixels), or of what a line before it made
LAYERS = """
Convolution conv data convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 stride: 2 pad_h: 1 dilation: 1 }
Convolution conv2 data convolution_param { num_output: 4 kernel_size: 3 group: 2 dilation: 2 pad: 2 bias_term: false }
DepthwiseConvolution depthwise data convolution_param { num_output: 4 kernel_size: 3 pad: 1 }
ConvolutionDepthwise depthwise2 data convolution_param { num_output: 4 kernel_size: 3 }
Deconvolution deconv data convolution_param { num_output: 6 kernel_size: 4 stride: 2 pad: 1 group: 2 }
Pooling max data pooling_param { pool: MAX kernel_size: 3 stride: 2 }
Pooling max2 data pooling_param { pool: MAX kernel_h: 2 kernel_w: 3 stride: 3 pad_h: 0 pad_w: 1 }
Pooling ave data pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }
Pooling ave2 data pooling_param { pool: AVE kernel_size: 4 stride: 3 }
Pooling whole data pooling_param { pool: AVE global_pooling: true }
Pooling whole2 data pooling_param { pool: MAX global_pooling: true }
Pooling floor data pooling_param { pool: AVE kernel_size: 2 stride: 2 round_mode: FLOOR }
InnerProduct ip data inner_product_param { num_output: 5 }
InnerProduct ip2 data inner_product_param { num_output: 5 transpose: true bias_term: false }
InnerProduct ip3 data inner_product_param { num_output: 5 axis: 2 }
ReLU relu data
ReLU leaky data relu_param { negative_slope: 0.3 }
ReLU6 relu6 data
PReLU prelu data
PReLU prelu2 ip prelu_param { channel_shared: true }
ELU elu data elu_param { alpha: 0.7 }
Sigmoid sigmoid data
TanH tanh data
AbsVal abs data
BNLL bnll data
Clip clip data clip_param { min: -0.5 max: 0.8 }
Exp exp data exp_param { base: 2 scale: 0.5 shift: 0.25 }
Log log exp log_param { base: 3 scale: 2 shift: 1 }
Power power exp power_param { power: 1.5 scale: 0.5 shift: 0.1 }
Power linear data power_param { scale: -2 shift: 3 }
Power constant data power_param { power: 2 scale: 0 shift: 3 }
Swish swish data swish_param { beta: 1.5 }
Threshold threshold data threshold_param { threshold: 0.1 }
BatchNorm norm data
Scale scale data scale_param { bias_term: true }
Scale scale2 data scale_param { axis: 2 num_axes: 2 }
Scale scale3 data,ip4 scale_param { axis: 0 }
Bias bias data bias_param { axis: -1 }
Eltwise sum data,relu,tanh eltwise_param { operation: SUM coeff: 1 coeff: -0.5 coeff: 2 }
Eltwise prod data,tanh eltwise_param { operation: PROD }
Eltwise most data,tanh,sigmoid eltwise_param { operation: MAX }
Axpy axpy whole,data,tanh
LRN across data lrn_param { local_size: 3 alpha: 0.2 beta: 0.6 k: 2 }
LRN within data lrn_param { local_size: 3 alpha: 0.2 beta: 0.6 norm_region: WITHIN_CHANNEL }
MVN mvn data
MVN mvn2 data mvn_param { across_channels: true normalize_variance: false }
Normalize normalize data
Normalize normalize2 data norm_param { across_spatial: false channel_shared: false }
Softmax softmax data
Softmax softmax2 ip softmax_param { axis: -1 }
Concat concat data,tanh,conv2
Concat concat2 data,tanh concat_param { axis: 2 }
Slice slice data>slice_a,slice_b slice_param { slice_point: 1 }
Crop crop data,conv2x crop_param { axis: 2 offset: 1 offset: 2 }
Tile tile data tile_param { tiles: 3 axis: 2 }
Permute permute data permute_param { order: 0 order: 2 order: 3 order: 1 }
Flatten flatten data
Flatten flatten2 data flatten_param { axis: 2 }
Reshape reshape data reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 11 } }
Reshape merge data reshape_param { shape { dim: -1 dim: 99 } }
ShuffleChannel shuffle data shuffle_channel_param { group: 2 }
Reduction reduce data reduction_param { operation: MEAN axis: 1 coeff: 2 }
Reduction reduce2 data reduction_param { operation: ASUM axis: 2 }
Reduction reduce3 data reduction_param { operation: SUMSQ axis: 3 }
Upsample upsample data upsample_param { scale: 3 }
Interp interp data interp_param { height: 17 width: 13 }
Interp interp2 data interp_param { zoom_factor: 2 pad_beg: -1 pad_end: -2 }
Dropout dropout data
"""
FIRST = """
name: "everything"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 4 dim: 9 dim: 11 } } }
layer { name: "ip4" type: "InnerProduct" bottom: "data" top: "ip4" inner_product_param { num_output: 4 } }
layer { name: "conv2x" type: "Convolution" bottom: "data" top: "conv2x"
  convolution_param { num_output: 4 kernel_h: 4 kernel_w: 5 } }
layer { name: "place" type: "Convolution" bottom: "data" top: "place"
  convolution_param { num_output: 3 kernel_size: 1 } }
layer { name: "place relu" type: "ReLU" bottom: "place" top: "place" }
layer { name: "place scale" type: "Scale" bottom: "place" top: "place" }
layer { name: "quiet" type: "Silence" bottom: "relu" }
"""


def everything() -> Net:
    """A net of every type that has a form, with random weights."""
    texts = []
    for line in LAYERS.strip().splitlines():
        kind, name, bottoms, *parameter = line.split(" ", 3)
        bottoms, _, tops = bottoms.partition(">")
        blobs = "".join(f' bottom: "{b}"' for b in bottoms.split(","))
        blobs += "".join(f' top: "{t}"' for t in (tops or name).split(","))
        texts.append(f'layer {{ name: "{name}" type: "{kind}"{blobs} {" ".join(parameter)} }}')
    *first, last = FIRST.strip().rsplit("\n", 1)
    net = Net(parse("\n".join([*first, *texts, last]), NetParameter), NetState(phase="TEST"), seed=1)
    random = np.random.default_rng(2)
    for name, blobs in net.weights.items():
        for index, blob in enumerate(blobs):
            positive = name == "norm" and index > 0
            blob.data[...] = (
                random.random(blob.shape) + 0.5 if positive else random.normal(0, 0.4, blob.shape)
            )
    return net
