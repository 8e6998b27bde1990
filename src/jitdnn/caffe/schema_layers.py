"""The *_param messages of Caffe's layers: field names, numbers and defaults of Caffe 1.0."""

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


def _engine(*, number: int) -> Field[str]:
    return enum({"DEFAULT": 0, "CAFFE": 1, "CUDNN": 2}, "DEFAULT", number=number)


class BlobShape(Message):
    """The shape of a blob."""

    dim = repeated(int64(), number=1)


class FillerParameter(Message):
    """How a weight starts; fillers.py has the formulas."""

    type = string("constant", number=1)
    value = real(number=2)
    min = real(number=3)
    max = real(1.0, number=4)
    mean = real(number=5)
    std = real(1.0, number=6)
    sparse = int32(-1, number=7)
    variance_norm = enum({"FAN_IN": 0, "FAN_OUT": 1, "AVERAGE": 2}, "FAN_IN", number=8)


class TransformationParameter(Message):
    """What a data layer does to an image."""

    scale = real(1.0, number=1)
    mirror = boolean(number=2)
    crop_size = uint32(number=3)
    mean_file = string(number=4)
    mean_value = repeated(real(), number=5)
    force_color = boolean(number=6)
    force_gray = boolean(number=7)


class LossParameter(Message):
    """What a loss leaves out and divides by."""

    ignore_label = int32(number=1)
    normalization = enum({"FULL": 0, "VALID": 1, "BATCH_SIZE": 2, "NONE": 3}, "VALID", number=3)
    normalize = boolean(number=2)


class AccuracyParameter(Message):
    top_k = uint32(1, number=1)
    axis = int32(1, number=2)
    ignore_label = int32(number=3)


class ArgMaxParameter(Message):
    out_max_val = boolean(number=1)
    top_k = uint32(1, number=2)
    axis = int32(number=3)


class BatchNormParameter(Message):
    use_global_stats = boolean(number=1)
    moving_average_fraction = real(0.999, number=2)
    eps = real(1e-5, number=3)


class BiasParameter(Message):
    axis = int32(1, number=1)
    num_axes = int32(1, number=2)
    filler = sub(FillerParameter, number=3)


class ClipParameter(Message):
    min = real(number=1)
    max = real(number=2)


class ConcatParameter(Message):
    axis = int32(1, number=2)
    concat_dim = uint32(1, number=1)


class ContrastiveLossParameter(Message):
    margin = real(1.0, number=1)
    legacy_version = boolean(number=2)


class ConvolutionParameter(Message):
    num_output = uint32(number=1)
    bias_term = boolean(True, number=2)
    pad = repeated(uint32(), number=3)
    kernel_size = repeated(uint32(), number=4)
    stride = repeated(uint32(), number=6)
    dilation = repeated(uint32(), number=18)
    pad_h = uint32(number=9)
    pad_w = uint32(number=10)
    kernel_h = uint32(number=11)
    kernel_w = uint32(number=12)
    stride_h = uint32(number=13)
    stride_w = uint32(number=14)
    group = uint32(1, number=5)
    weight_filler = sub(FillerParameter, number=7)
    bias_filler = sub(FillerParameter, number=8)
    engine = _engine(number=15)
    axis = int32(1, number=16)
    force_nd_im2col = boolean(number=17)


class CropParameter(Message):
    axis = int32(2, number=1)
    offset = repeated(uint32(), number=2)


class DataParameter(Message):
    source = string(number=1)
    batch_size = uint32(number=4)
    rand_skip = uint32(number=7)
    backend = enum({"LEVELDB": 0, "LMDB": 1}, "LEVELDB", number=8)
    scale = real(1.0, number=2)
    mean_file = string(number=3)
    crop_size = uint32(number=5)
    mirror = boolean(number=6)
    force_encoded_color = boolean(number=9)
    prefetch = uint32(4, number=10)


class NonMaximumSuppressionParameter(Message):
    """Of SSD's fork."""

    nms_threshold = real(0.3, number=1)
    top_k = int32(number=2)
    eta = real(1.0, number=3)


class SaveOutputParameter(Message):
    """Of SSD's fork; what would be written to files is not."""

    output_directory = string(number=1)
    output_name_prefix = string(number=2)
    output_format = string(number=3)
    label_map_file = string(number=4)
    name_size_file = string(number=5)
    num_test_image = uint32(number=6)


class DetectionOutputParameter(Message):
    """Of SSD's fork."""

    num_classes = uint32(number=1)
    share_location = boolean(True, number=2)
    background_label_id = int32(number=3)
    nms_param = sub(NonMaximumSuppressionParameter, number=4)
    save_output_param = sub(SaveOutputParameter, number=5)
    code_type = enum({"CORNER": 1, "CENTER_SIZE": 2, "CORNER_SIZE": 3}, "CORNER", number=6)
    keep_top_k = int32(-1, number=7)
    variance_encoded_in_target = boolean(number=8)
    confidence_threshold = real(number=9)


class DropoutParameter(Message):
    dropout_ratio = real(0.5, number=1)


class DummyDataParameter(Message):
    data_filler = repeated(sub(FillerParameter), number=1)
    shape = repeated(sub(BlobShape), number=6)
    num = repeated(uint32(), number=2)
    channels = repeated(uint32(), number=3)
    height = repeated(uint32(), number=4)
    width = repeated(uint32(), number=5)


class EltwiseParameter(Message):
    operation = enum({"PROD": 0, "SUM": 1, "MAX": 2}, "SUM", number=1)
    coeff = repeated(real(), number=2)
    stable_prod_grad = boolean(True, number=3)


class ELUParameter(Message):
    alpha = real(1.0, number=1)


class EmbedParameter(Message):
    num_output = uint32(number=1)
    input_dim = uint32(number=2)
    bias_term = boolean(True, number=3)
    weight_filler = sub(FillerParameter, number=4)
    bias_filler = sub(FillerParameter, number=5)


class ExpParameter(Message):
    base = real(-1.0, number=1)
    scale = real(1.0, number=2)
    shift = real(number=3)


class FlattenParameter(Message):
    axis = int32(1, number=1)
    end_axis = int32(-1, number=2)


class HDF5DataParameter(Message):
    source = string(number=1)
    batch_size = uint32(number=2)
    shuffle = boolean(number=3)


class HDF5OutputParameter(Message):
    file_name = string(number=1)


class HingeLossParameter(Message):
    norm = enum({"L1": 1, "L2": 2}, "L1", number=1)


class ImageDataParameter(Message):
    source = string(number=1)
    batch_size = uint32(1, number=4)
    rand_skip = uint32(number=7)
    shuffle = boolean(number=8)
    new_height = uint32(number=9)
    new_width = uint32(number=10)
    is_color = boolean(True, number=11)
    scale = real(1.0, number=2)
    mean_file = string(number=3)
    crop_size = uint32(number=5)
    mirror = boolean(number=6)
    root_folder = string(number=12)


class InfogainLossParameter(Message):
    source = string(number=1)
    axis = int32(1, number=2)


class InnerProductParameter(Message):
    num_output = uint32(number=1)
    bias_term = boolean(True, number=2)
    weight_filler = sub(FillerParameter, number=3)
    bias_filler = sub(FillerParameter, number=4)
    axis = int32(1, number=5)
    transpose = boolean(number=6)


class InputParameter(Message):
    shape = repeated(sub(BlobShape), number=1)


class InterpParameter(Message):
    """Of DeepLab's fork."""

    height = int32()
    width = int32()
    zoom_factor = int32(1)
    shrink_factor = int32(1)
    pad_beg = int32()
    pad_end = int32()


class LogParameter(Message):
    base = real(-1.0, number=1)
    scale = real(1.0, number=2)
    shift = real(number=3)


class LRNParameter(Message):
    local_size = uint32(5, number=1)
    alpha = real(1.0, number=2)
    beta = real(0.75, number=3)
    norm_region = enum({"ACROSS_CHANNELS": 0, "WITHIN_CHANNEL": 1}, "ACROSS_CHANNELS", number=4)
    k = real(1.0, number=5)
    engine = _engine(number=6)


class MemoryDataParameter(Message):
    batch_size = uint32(number=1)
    channels = uint32(number=2)
    height = uint32(number=3)
    width = uint32(number=4)


class MVNParameter(Message):
    normalize_variance = boolean(True, number=1)
    across_channels = boolean(number=2)
    eps = real(1e-9, number=3)


class NormalizeParameter(Message):
    """Of SSD's fork."""

    across_spatial = boolean(True, number=1)
    scale_filler = sub(FillerParameter, number=2)
    channel_shared = boolean(True, number=3)
    eps = real(1e-10, number=4)


class ParameterParameter(Message):
    shape = sub(BlobShape, number=1)


class PermuteParameter(Message):
    """Of SSD's fork."""

    order = repeated(uint32(), number=1)


class PoolingParameter(Message):
    pool = enum(_POOLS, "MAX", number=1)
    pad = uint32(number=4)
    pad_h = uint32(number=9)
    pad_w = uint32(number=10)
    kernel_size = uint32(number=2)
    kernel_h = uint32(number=5)
    kernel_w = uint32(number=6)
    stride = uint32(1, number=3)
    stride_h = uint32(number=7)
    stride_w = uint32(number=8)
    engine = _engine(number=11)
    global_pooling = boolean(number=12)
    round_mode = enum({"CEIL": 0, "FLOOR": 1}, "CEIL", number=13)
    ceil_mode = boolean(True)  # of forks


class PowerParameter(Message):
    power = real(1.0, number=1)
    scale = real(1.0, number=2)
    shift = real(number=3)


class PriorBoxParameter(Message):
    """Of SSD's fork."""

    min_size = repeated(real(), number=1)
    max_size = repeated(real(), number=2)
    aspect_ratio = repeated(real(), number=3)
    flip = boolean(True, number=4)
    clip = boolean(number=5)
    variance = repeated(real(), number=6)
    img_size = uint32(number=7)
    img_h = uint32(number=8)
    img_w = uint32(number=9)
    step = real(number=10)
    step_h = real(number=11)
    step_w = real(number=12)
    offset = real(0.5, number=13)


class PReLUParameter(Message):
    filler = sub(FillerParameter, number=1)
    channel_shared = boolean(number=2)


class PythonParameter(Message):
    module = string(number=1)
    layer = string(number=2)
    param_str = string(number=3)
    share_in_parallel = boolean(number=4)


class RecurrentParameter(Message):
    num_output = uint32(number=1)
    weight_filler = sub(FillerParameter, number=2)
    bias_filler = sub(FillerParameter, number=3)
    debug_info = boolean(number=4)
    expose_hidden = boolean(number=5)


class ReductionParameter(Message):
    operation = enum({"SUM": 1, "ASUM": 2, "SUMSQ": 3, "MEAN": 4}, "SUM", number=1)
    axis = int32(number=2)
    coeff = real(1.0, number=3)


class ReLUParameter(Message):
    negative_slope = real(number=1)
    engine = _engine(number=2)


class ReshapeParameter(Message):
    shape = sub(BlobShape, number=1)
    axis = int32(number=2)
    num_axes = int32(-1, number=3)


class ScaleParameter(Message):
    axis = int32(1, number=1)
    num_axes = int32(1, number=2)
    filler = sub(FillerParameter, number=3)
    bias_term = boolean(number=4)
    bias_filler = sub(FillerParameter, number=5)


class ShuffleChannelParameter(Message):
    """Of ShuffleNet's fork."""

    group = uint32(1)


class SigmoidParameter(Message):
    engine = _engine(number=1)


class SliceParameter(Message):
    axis = int32(1, number=3)
    slice_point = repeated(uint32(), number=2)
    slice_dim = uint32(1, number=1)


class SoftmaxParameter(Message):
    engine = _engine(number=1)
    axis = int32(1, number=2)


class SPPParameter(Message):
    pyramid_height = uint32(number=1)
    pool = enum(_POOLS, "MAX", number=2)
    engine = _engine(number=6)


class SwishParameter(Message):
    beta = real(1.0, number=1)


class TanHParameter(Message):
    engine = _engine(number=1)


class ThresholdParameter(Message):
    threshold = real(number=1)


class TileParameter(Message):
    axis = int32(1, number=1)
    tiles = int32(number=2)


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
    source = string(number=1)
    scale = real(1.0, number=2)
    mean_file = string(number=3)
    batch_size = uint32(number=4)
    crop_size = uint32(number=5)
    mirror = boolean(number=6)
    fg_threshold = real(0.5, number=7)
    bg_threshold = real(0.5, number=8)
    fg_fraction = real(0.25, number=9)
    context_pad = uint32(number=10)
    crop_mode = string("warp", number=11)
    cache_images = boolean(number=12)
    root_folder = string(number=13)
