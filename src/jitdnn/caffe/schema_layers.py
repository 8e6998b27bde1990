"""The *_param messages of Caffe's layers: field names and defaults of Caffe 1.0."""

from __future__ import annotations

from jitdnn.caffe.message import (
    Field,
    Message,
    boolean,
    enum,
    int32,
    int64,
    real,
    repeated,
    string,
    sub,
    uint32,
)

_POOLS = {"MAX": 0, "AVE": 1, "STOCHASTIC": 2}


def _engine() -> Field[str]:
    return enum({"DEFAULT": 0, "CAFFE": 1, "CUDNN": 2}, "DEFAULT")


class BlobShape(Message):
    """The shape of a blob."""

    dim = repeated(int64())


class FillerParameter(Message):
    """How a weight starts; fillers.py has the formulas."""

    type = string("constant")
    value = real()
    min = real()
    max = real(1.0)
    mean = real()
    std = real(1.0)
    sparse = int32(-1)
    variance_norm = enum({"FAN_IN": 0, "FAN_OUT": 1, "AVERAGE": 2}, "FAN_IN")


class TransformationParameter(Message):
    """What a data layer does to an image."""

    scale = real(1.0)
    mirror = boolean()
    crop_size = uint32()
    mean_file = string()
    mean_value = repeated(real())
    force_color = boolean()
    force_gray = boolean()


class LossParameter(Message):
    """What a loss leaves out and divides by."""

    ignore_label = int32()
    normalization = enum({"FULL": 0, "VALID": 1, "BATCH_SIZE": 2, "NONE": 3}, "VALID")
    normalize = boolean()


class AccuracyParameter(Message):
    top_k = uint32(1)
    axis = int32(1)
    ignore_label = int32()


class ArgMaxParameter(Message):
    out_max_val = boolean()
    top_k = uint32(1)
    axis = int32()


class BatchNormParameter(Message):
    use_global_stats = boolean()
    moving_average_fraction = real(0.999)
    eps = real(1e-5)


class BiasParameter(Message):
    axis = int32(1)
    num_axes = int32(1)
    filler = sub(FillerParameter)


class ClipParameter(Message):
    min = real()
    max = real()


class ConcatParameter(Message):
    axis = int32(1)
    concat_dim = uint32(1)


class ContrastiveLossParameter(Message):
    margin = real(1.0)
    legacy_version = boolean()


class ConvolutionParameter(Message):
    num_output = uint32()
    bias_term = boolean(True)
    pad = repeated(uint32())
    kernel_size = repeated(uint32())
    stride = repeated(uint32())
    dilation = repeated(uint32())
    pad_h = uint32()
    pad_w = uint32()
    kernel_h = uint32()
    kernel_w = uint32()
    stride_h = uint32()
    stride_w = uint32()
    group = uint32(1)
    weight_filler = sub(FillerParameter)
    bias_filler = sub(FillerParameter)
    engine = _engine()
    axis = int32(1)
    force_nd_im2col = boolean()


class CropParameter(Message):
    axis = int32(2)
    offset = repeated(uint32())


class DataParameter(Message):
    source = string()
    batch_size = uint32()
    rand_skip = uint32()
    backend = enum({"LEVELDB": 0, "LMDB": 1}, "LEVELDB")
    scale = real(1.0)
    mean_file = string()
    crop_size = uint32()
    mirror = boolean()
    force_encoded_color = boolean()
    prefetch = uint32(4)


class NonMaximumSuppressionParameter(Message):
    """Of SSD's fork."""

    nms_threshold = real(0.3)
    top_k = int32()
    eta = real(1.0)


class SaveOutputParameter(Message):
    """Of SSD's fork; what would be written to files is not."""

    output_directory = string()
    output_name_prefix = string()
    output_format = string()
    label_map_file = string()
    name_size_file = string()
    num_test_image = uint32()


class DetectionOutputParameter(Message):
    """Of SSD's fork."""

    num_classes = uint32()
    share_location = boolean(True)
    background_label_id = int32()
    nms_param = sub(NonMaximumSuppressionParameter)
    save_output_param = sub(SaveOutputParameter)
    code_type = enum({"CORNER": 1, "CENTER_SIZE": 2, "CORNER_SIZE": 3}, "CORNER")
    keep_top_k = int32(-1)
    variance_encoded_in_target = boolean()
    confidence_threshold = real()


class DropoutParameter(Message):
    dropout_ratio = real(0.5)


class DummyDataParameter(Message):
    data_filler = repeated(sub(FillerParameter))
    shape = repeated(sub(BlobShape))
    num = repeated(uint32())
    channels = repeated(uint32())
    height = repeated(uint32())
    width = repeated(uint32())


class EltwiseParameter(Message):
    operation = enum({"PROD": 0, "SUM": 1, "MAX": 2}, "SUM")
    coeff = repeated(real())
    stable_prod_grad = boolean(True)


class ELUParameter(Message):
    alpha = real(1.0)


class EmbedParameter(Message):
    num_output = uint32()
    input_dim = uint32()
    bias_term = boolean(True)
    weight_filler = sub(FillerParameter)
    bias_filler = sub(FillerParameter)


class ExpParameter(Message):
    base = real(-1.0)
    scale = real(1.0)
    shift = real()


class FlattenParameter(Message):
    axis = int32(1)
    end_axis = int32(-1)


class HDF5DataParameter(Message):
    source = string()
    batch_size = uint32()
    shuffle = boolean()


class HDF5OutputParameter(Message):
    file_name = string()


class HingeLossParameter(Message):
    norm = enum({"L1": 1, "L2": 2}, "L1")


class ImageDataParameter(Message):
    source = string()
    batch_size = uint32(1)
    rand_skip = uint32()
    shuffle = boolean()
    new_height = uint32()
    new_width = uint32()
    is_color = boolean(True)
    scale = real(1.0)
    mean_file = string()
    crop_size = uint32()
    mirror = boolean()
    root_folder = string()


class InfogainLossParameter(Message):
    source = string()
    axis = int32(1)


class InnerProductParameter(Message):
    num_output = uint32()
    bias_term = boolean(True)
    weight_filler = sub(FillerParameter)
    bias_filler = sub(FillerParameter)
    axis = int32(1)
    transpose = boolean()


class InputParameter(Message):
    shape = repeated(sub(BlobShape))


class InterpParameter(Message):
    """Of DeepLab's fork."""

    height = int32()
    width = int32()
    zoom_factor = int32(1)
    shrink_factor = int32(1)
    pad_beg = int32()
    pad_end = int32()


class LogParameter(Message):
    base = real(-1.0)
    scale = real(1.0)
    shift = real()


class LRNParameter(Message):
    local_size = uint32(5)
    alpha = real(1.0)
    beta = real(0.75)
    norm_region = enum({"ACROSS_CHANNELS": 0, "WITHIN_CHANNEL": 1}, "ACROSS_CHANNELS")
    k = real(1.0)
    engine = _engine()


class MemoryDataParameter(Message):
    batch_size = uint32()
    channels = uint32()
    height = uint32()
    width = uint32()


class MVNParameter(Message):
    normalize_variance = boolean(True)
    across_channels = boolean()
    eps = real(1e-9)


class NormalizeParameter(Message):
    """Of SSD's fork."""

    across_spatial = boolean(True)
    scale_filler = sub(FillerParameter)
    channel_shared = boolean(True)
    eps = real(1e-10)


class ParameterParameter(Message):
    shape = sub(BlobShape)


class PermuteParameter(Message):
    """Of SSD's fork."""

    order = repeated(uint32())


class PoolingParameter(Message):
    pool = enum(_POOLS, "MAX")
    pad = uint32()
    pad_h = uint32()
    pad_w = uint32()
    kernel_size = uint32()
    kernel_h = uint32()
    kernel_w = uint32()
    stride = uint32(1)
    stride_h = uint32()
    stride_w = uint32()
    engine = _engine()
    global_pooling = boolean()
    round_mode = enum({"CEIL": 0, "FLOOR": 1}, "CEIL")
    ceil_mode = boolean(True)  # of forks


class PowerParameter(Message):
    power = real(1.0)
    scale = real(1.0)
    shift = real()


class PriorBoxParameter(Message):
    """Of SSD's fork."""

    min_size = repeated(real())
    max_size = repeated(real())
    aspect_ratio = repeated(real())
    flip = boolean(True)
    clip = boolean()
    variance = repeated(real())
    img_size = uint32()
    img_h = uint32()
    img_w = uint32()
    step = real()
    step_h = real()
    step_w = real()
    offset = real(0.5)


class PReLUParameter(Message):
    filler = sub(FillerParameter)
    channel_shared = boolean()


class PythonParameter(Message):
    module = string()
    layer = string()
    param_str = string()
    share_in_parallel = boolean()


class RecurrentParameter(Message):
    num_output = uint32()
    weight_filler = sub(FillerParameter)
    bias_filler = sub(FillerParameter)
    debug_info = boolean()
    expose_hidden = boolean()


class ReductionParameter(Message):
    operation = enum({"SUM": 1, "ASUM": 2, "SUMSQ": 3, "MEAN": 4}, "SUM")
    axis = int32()
    coeff = real(1.0)


class ReLUParameter(Message):
    negative_slope = real()
    engine = _engine()


class ReshapeParameter(Message):
    shape = sub(BlobShape)
    axis = int32()
    num_axes = int32(-1)


class ScaleParameter(Message):
    axis = int32(1)
    num_axes = int32(1)
    filler = sub(FillerParameter)
    bias_term = boolean()
    bias_filler = sub(FillerParameter)


class ShuffleChannelParameter(Message):
    """Of ShuffleNet's fork."""

    group = uint32(1)


class SigmoidParameter(Message):
    engine = _engine()


class SliceParameter(Message):
    axis = int32(1)
    slice_point = repeated(uint32())
    slice_dim = uint32(1)


class SoftmaxParameter(Message):
    engine = _engine()
    axis = int32(1)


class SPPParameter(Message):
    pyramid_height = uint32()
    pool = enum(_POOLS, "MAX")
    engine = _engine()


class SwishParameter(Message):
    beta = real(1.0)


class TanHParameter(Message):
    engine = _engine()


class ThresholdParameter(Message):
    threshold = real()


class TileParameter(Message):
    axis = int32(1)
    tiles = int32()


class UpsampleParameter(Message):
    """Of SegNet's fork, and of those with a scale alone."""

    scale = uint32(2)
    scale_h = uint32()
    scale_w = uint32()
    pad_out_h = boolean()
    pad_out_w = boolean()
    upsample_h = uint32()
    upsample_w = uint32()


class WindowDataParameter(Message):
    source = string()
    scale = real(1.0)
    mean_file = string()
    batch_size = uint32()
    crop_size = uint32()
    mirror = boolean()
    fg_threshold = real(0.5)
    bg_threshold = real(0.5)
    fg_fraction = real(0.25)
    context_pad = uint32()
    crop_mode = string("warp")
    cache_images = boolean()
    root_folder = string()
