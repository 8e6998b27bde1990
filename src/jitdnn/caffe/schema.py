"""The messages of a Caffe text file: nets (V2, V1, V0), layers, solvers.

Field names, enum numbers and defaults are Caffe 1.0's, and those of a few layers of its forks; they are the interface
of existing files. Fields of
layers that this library cannot run yet are listed too, so that such a file still reads, prints and upgrades,
and so that the refusal can name the layer. Binary fields (weights inside a net) are not read from text.
"""

from __future__ import annotations

from jitdnn.caffe import schema_layers as params
from jitdnn.caffe.message import Message, boolean, enum, int32, real, repeated, string, sub
from jitdnn.caffe.schema_v0 import V0LayerParameter

PHASES = {"TRAIN": 0, "TEST": 1}
SHARE_MODES = {"STRICT": 0, "PERMISSIVE": 1}

# V1's names of the layer types, with their numbers and what V2 calls them
V1_TYPES: dict[str, tuple[int, str]] = {
    "NONE": (0, ""),
    "ACCURACY": (1, "Accuracy"),
    "BNLL": (2, "BNLL"),
    "CONCAT": (3, "Concat"),
    "CONVOLUTION": (4, "Convolution"),
    "DATA": (5, "Data"),
    "DROPOUT": (6, "Dropout"),
    "EUCLIDEAN_LOSS": (7, "EuclideanLoss"),
    "FLATTEN": (8, "Flatten"),
    "HDF5_DATA": (9, "HDF5Data"),
    "HDF5_OUTPUT": (10, "HDF5Output"),
    "IM2COL": (11, "Im2col"),
    "IMAGE_DATA": (12, "ImageData"),
    "INFOGAIN_LOSS": (13, "InfogainLoss"),
    "INNER_PRODUCT": (14, "InnerProduct"),
    "LRN": (15, "LRN"),
    "MULTINOMIAL_LOGISTIC_LOSS": (16, "MultinomialLogisticLoss"),
    "POOLING": (17, "Pooling"),
    "RELU": (18, "ReLU"),
    "SIGMOID": (19, "Sigmoid"),
    "SOFTMAX": (20, "Softmax"),
    "SOFTMAX_LOSS": (21, "SoftmaxWithLoss"),
    "SPLIT": (22, "Split"),
    "TANH": (23, "TanH"),
    "WINDOW_DATA": (24, "WindowData"),
    "ELTWISE": (25, "Eltwise"),
    "POWER": (26, "Power"),
    "SIGMOID_CROSS_ENTROPY_LOSS": (27, "SigmoidCrossEntropyLoss"),
    "HINGE_LOSS": (28, "HingeLoss"),
    "MEMORY_DATA": (29, "MemoryData"),
    "ARGMAX": (30, "ArgMax"),
    "THRESHOLD": (31, "Threshold"),
    "DUMMY_DATA": (32, "DummyData"),
    "SLICE": (33, "Slice"),
    "MVN": (34, "MVN"),
    "ABSVAL": (35, "AbsVal"),
    "SILENCE": (36, "Silence"),
    "CONTRASTIVE_LOSS": (37, "ContrastiveLoss"),
    "EXP": (38, "Exp"),
    "DECONVOLUTION": (39, "Deconvolution"),
}

# solver_type of old solver files, with its numbers and the type string of today
V1_SOLVERS: dict[str, tuple[int, str]] = {
    "SGD": (0, "SGD"),
    "NESTEROV": (1, "Nesterov"),
    "ADAGRAD": (2, "AdaGrad"),
    "RMSPROP": (3, "RMSProp"),
    "ADADELTA": (4, "AdaDelta"),
    "ADAM": (5, "Adam"),
}


class NetState(Message):
    """What a net is built for; NetStateRule is matched against it."""

    phase = enum(PHASES, "TEST")
    level = int32()
    stage = repeated(string())


class NetStateRule(Message):
    """When a layer is in (include) or out (exclude)."""

    phase = enum(PHASES, "TEST")
    min_level = int32()
    max_level = int32()
    stage = repeated(string())
    not_stage = repeated(string())


class ParamSpec(Message):
    """How one weight of a layer is shared and trained."""

    name = string()
    share_mode = enum(SHARE_MODES, "STRICT")
    lr_mult = real(1.0)
    decay_mult = real(1.0)


class LayerFields(Message):
    """The *_param messages, which V1 and V2 have alike."""

    transform_param = sub(params.TransformationParameter)
    loss_param = sub(params.LossParameter)
    accuracy_param = sub(params.AccuracyParameter)
    argmax_param = sub(params.ArgMaxParameter)
    batch_norm_param = sub(params.BatchNormParameter)
    bias_param = sub(params.BiasParameter)
    clip_param = sub(params.ClipParameter)
    concat_param = sub(params.ConcatParameter)
    contrastive_loss_param = sub(params.ContrastiveLossParameter)
    convolution_param = sub(params.ConvolutionParameter)
    crop_param = sub(params.CropParameter)
    data_param = sub(params.DataParameter)
    detection_output_param = sub(params.DetectionOutputParameter)
    dropout_param = sub(params.DropoutParameter)
    dummy_data_param = sub(params.DummyDataParameter)
    eltwise_param = sub(params.EltwiseParameter)
    elu_param = sub(params.ELUParameter)
    embed_param = sub(params.EmbedParameter)
    exp_param = sub(params.ExpParameter)
    flatten_param = sub(params.FlattenParameter)
    hdf5_data_param = sub(params.HDF5DataParameter)
    hdf5_output_param = sub(params.HDF5OutputParameter)
    hinge_loss_param = sub(params.HingeLossParameter)
    image_data_param = sub(params.ImageDataParameter)
    infogain_loss_param = sub(params.InfogainLossParameter)
    inner_product_param = sub(params.InnerProductParameter)
    input_param = sub(params.InputParameter)
    interp_param = sub(params.InterpParameter)
    log_param = sub(params.LogParameter)
    lrn_param = sub(params.LRNParameter)
    memory_data_param = sub(params.MemoryDataParameter)
    mvn_param = sub(params.MVNParameter)
    norm_param = sub(params.NormalizeParameter)
    parameter_param = sub(params.ParameterParameter)
    permute_param = sub(params.PermuteParameter)
    pooling_param = sub(params.PoolingParameter)
    power_param = sub(params.PowerParameter)
    prelu_param = sub(params.PReLUParameter)
    prior_box_param = sub(params.PriorBoxParameter)
    python_param = sub(params.PythonParameter)
    recurrent_param = sub(params.RecurrentParameter)
    reduction_param = sub(params.ReductionParameter)
    relu_param = sub(params.ReLUParameter)
    reshape_param = sub(params.ReshapeParameter)
    scale_param = sub(params.ScaleParameter)
    shuffle_channel_param = sub(params.ShuffleChannelParameter)
    sigmoid_param = sub(params.SigmoidParameter)
    slice_param = sub(params.SliceParameter)
    softmax_param = sub(params.SoftmaxParameter)
    spp_param = sub(params.SPPParameter)
    swish_param = sub(params.SwishParameter)
    tanh_param = sub(params.TanHParameter)
    threshold_param = sub(params.ThresholdParameter)
    tile_param = sub(params.TileParameter)
    upsample_param = sub(params.UpsampleParameter)
    window_data_param = sub(params.WindowDataParameter)


class LayerParameter(LayerFields):
    """One layer in V2 syntax."""

    name = string()
    type = string()
    bottom = repeated(string())
    top = repeated(string())
    phase = enum(PHASES, "TRAIN")
    loss_weight = repeated(real())
    param = repeated(sub(ParamSpec))
    propagate_down = repeated(boolean())
    include = repeated(sub(NetStateRule))
    exclude = repeated(sub(NetStateRule))


class V1LayerParameter(LayerFields):
    """One layer in V1 syntax; upgrade.py makes a LayerParameter of it. In V0 syntax all but its blobs is in `layer`."""

    layer = sub(V0LayerParameter)
    name = string()
    type = enum({name: number for name, (number, _) in V1_TYPES.items()}, "NONE")
    bottom = repeated(string())
    top = repeated(string())
    loss_weight = repeated(real())
    param = repeated(string())
    blob_share_mode = repeated(enum(SHARE_MODES, "STRICT"))
    blobs_lr = repeated(real())
    weight_decay = repeated(real())
    include = repeated(sub(NetStateRule))
    exclude = repeated(sub(NetStateRule))


class NetParameter(Message):
    """A net: `layer` in V2 syntax, `layers` in V1 and V0."""

    name = string()
    input = repeated(string())
    input_shape = repeated(sub(params.BlobShape))
    input_dim = repeated(int32())
    force_backward = boolean()
    state = sub(NetState)
    debug_info = boolean()
    layer = repeated(sub(LayerParameter))
    layers = repeated(sub(V1LayerParameter))


class SolverParameter(Message):
    """How a net is trained and tested."""

    net = string()
    net_param = sub(NetParameter)
    train_net = string()
    test_net = repeated(string())
    train_net_param = sub(NetParameter)
    test_net_param = repeated(sub(NetParameter))
    train_state = sub(NetState)
    test_state = repeated(sub(NetState))
    test_iter = repeated(int32())
    test_interval = int32()
    test_compute_loss = boolean()
    test_initialization = boolean(True)
    base_lr = real()
    display = int32()
    average_loss = int32(1)
    max_iter = int32()
    iter_size = int32(1)
    lr_policy = string()
    gamma = real()
    power = real()
    momentum = real()
    weight_decay = real()
    regularization_type = string("L2")
    stepsize = int32()
    stepvalue = repeated(int32())
    clip_gradients = real(-1.0)
    snapshot = int32()
    snapshot_prefix = string()
    snapshot_diff = boolean()
    snapshot_format = enum({"HDF5": 0, "BINARYPROTO": 1}, "BINARYPROTO")
    solver_mode = enum({"CPU": 0, "GPU": 1}, "GPU")
    device_id = int32()
    random_seed = int32(-1)
    type = string("SGD")
    solver_type = enum({name: number for name, (number, _) in V1_SOLVERS.items()}, "SGD")
    delta = real(1e-8)
    momentum2 = real(0.999)
    rms_decay = real(0.99)
    debug_info = boolean()
    snapshot_after_train = boolean(True)
    layer_wise_reduce = boolean(True)
    weights = repeated(string())
    warmup_iter = int32()
    warmup_start_lr = real()
    ema_decay = real()


# the fields of data layers that V1 kept beside the source and V2 keeps in transform_param
V1_TRANSFORM_FIELDS = ("scale", "mean_file", "crop_size", "mirror")

# by type, the message that may hold them
V1_TRANSFORM_HOLDERS = {
    "DATA": "data_param",
    "IMAGE_DATA": "image_data_param",
    "WINDOW_DATA": "window_data_param",
}
