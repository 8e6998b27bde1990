"""The layer message of 2013 (V0): one list of fields for all types, inside of `layers { layer { ... } }`."""

from __future__ import annotations

from jitdnn.caffe import schema_layers as params
from jitdnn.caffe.message import Message, boolean, enum, int32, real, repeated, string, sub, uint32


class V0LayerParameter(Message):
    """One layer in V0 syntax; upgrade_v0.py makes a V1LayerParameter of it."""

    name = string(number=1)
    type = string(number=2)
    num_output = uint32(number=3)
    biasterm = boolean(True, number=4)
    weight_filler = sub(params.FillerParameter, number=5)
    bias_filler = sub(params.FillerParameter, number=6)
    pad = uint32(number=7)
    kernelsize = uint32(number=8)
    group = uint32(1, number=9)
    stride = uint32(1, number=10)
    pool = enum({"MAX": 0, "AVE": 1, "STOCHASTIC": 2}, "MAX", number=11)
    dropout_ratio = real(0.5, number=12)
    local_size = uint32(5, number=13)
    alpha = real(1.0, number=14)
    beta = real(0.75, number=15)
    k = real(1.0, number=22)
    source = string(number=16)
    scale = real(1.0, number=17)
    meanfile = string(number=18)
    batchsize = uint32(number=19)
    cropsize = uint32(number=20)
    mirror = boolean(number=21)
    blobs_lr = repeated(real(), number=51)
    weight_decay = repeated(real(), number=52)
    rand_skip = uint32(number=53)
    det_fg_threshold = real(0.5, number=54)
    det_bg_threshold = real(0.5, number=55)
    det_fg_fraction = real(0.25, number=56)
    det_context_pad = uint32(number=58)
    det_crop_mode = string("warp", number=59)
    new_num = int32(number=60)
    new_channels = int32(number=61)
    new_height = int32(number=62)
    new_width = int32(number=63)
    shuffle_images = boolean(number=64)
    concat_dim = uint32(1, number=65)
    hdf5_output_param = sub(params.HDF5OutputParameter, number=1001)
