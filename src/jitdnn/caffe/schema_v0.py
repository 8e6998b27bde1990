"""The layer message of 2013 (V0): one list of fields for all types, inside of `layers { layer { ... } }`."""

from __future__ import annotations

from jitdnn.caffe import schema_layers as params
from jitdnn.caffe.message import Message, boolean, enum, int32, real, repeated, string, sub, uint32


class V0LayerParameter(Message):
    """One layer in V0 syntax; upgrade_v0.py makes a V1LayerParameter of it."""

    name = string()
    type = string()
    num_output = uint32()
    biasterm = boolean(True)
    weight_filler = sub(params.FillerParameter)
    bias_filler = sub(params.FillerParameter)
    pad = uint32()
    kernelsize = uint32()
    group = uint32(1)
    stride = uint32(1)
    pool = enum({"MAX": 0, "AVE": 1, "STOCHASTIC": 2}, "MAX")
    dropout_ratio = real(0.5)
    local_size = uint32(5)
    alpha = real(1.0)
    beta = real(0.75)
    k = real(1.0)
    source = string()
    scale = real(1.0)
    meanfile = string()
    batchsize = uint32()
    cropsize = uint32()
    mirror = boolean()
    blobs_lr = repeated(real())
    weight_decay = repeated(real())
    rand_skip = uint32()
    det_fg_threshold = real(0.5)
    det_bg_threshold = real(0.5)
    det_fg_fraction = real(0.25)
    det_context_pad = uint32()
    det_crop_mode = string("warp")
    new_num = int32()
    new_channels = int32()
    new_height = int32()
    new_width = int32()
    shuffle_images = boolean()
    concat_dim = uint32(1)
    hdf5_output_param = sub(params.HDF5OutputParameter)
