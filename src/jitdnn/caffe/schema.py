"""The messages of a Caffe text file: nets (V2, V1, V0), layers, solvers.

Field names, their numbers in binary files, enum numbers and defaults are Caffe 1.0's, and those of a few layers of its
forks; they are the interface of existing files. A field without a number (of a fork whose numbers others use too) is
not written into binary files. Fields of layers that this library cannot run yet are listed too, so that such a file
still reads, prints and upgrades, and so that the refusal can name the layer. Binary fields (weights inside a net) are
not read from text.
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

    phase = enum(PHASES, "TEST", number=1)
    level = int32(number=2)
    stage = repeated(string(), number=3)


class NetStateRule(Message):
    """When a layer is in (include) or out (exclude)."""

    phase = enum(PHASES, "TEST", number=1)
    min_level = int32(number=2)
    max_level = int32(number=3)
    stage = repeated(string(), number=4)
    not_stage = repeated(string(), number=5)


class ParamSpec(Message):
    """How one weight of a layer is shared and trained."""

    name = string(number=1)
    share_mode = enum(SHARE_MODES, "STRICT", number=2)
    lr_mult = real(1.0, number=3)
    decay_mult = real(1.0, number=4)


# where V1 has the *_param messages; younger layers have no place in it
_V1_NUMBERS = {
    "concat_param": 9, "convolution_param": 10, "data_param": 11, "dropout_param": 12, "hdf5_data_param": 13,
    "hdf5_output_param": 14, "image_data_param": 15, "infogain_loss_param": 16, "inner_product_param": 17,
    "lrn_param": 18, "pooling_param": 19, "window_data_param": 20, "power_param": 21, "memory_data_param": 22,
    "argmax_param": 23, "eltwise_param": 24, "threshold_param": 25, "dummy_data_param": 26, "accuracy_param": 27,
    "hinge_loss_param": 29, "relu_param": 30, "slice_param": 31, "mvn_param": 34, "transform_param": 36,
    "tanh_param": 37, "sigmoid_param": 38, "softmax_param": 39, "contrastive_loss_param": 40, "exp_param": 41,
    "loss_param": 42,
}  # fmt: skip


class LayerFields(Message):
    """The *_param messages, which V1 and V2 have alike, with V2's numbers."""

    transform_param = sub(params.TransformationParameter, number=100)
    loss_param = sub(params.LossParameter, number=101)
    accuracy_param = sub(params.AccuracyParameter, number=102)
    argmax_param = sub(params.ArgMaxParameter, number=103)
    batch_norm_param = sub(params.BatchNormParameter, number=139)
    bias_param = sub(params.BiasParameter, number=141)
    clip_param = sub(params.ClipParameter, number=148)
    concat_param = sub(params.ConcatParameter, number=104)
    contrastive_loss_param = sub(params.ContrastiveLossParameter, number=105)
    convolution_param = sub(params.ConvolutionParameter, number=106)
    crop_param = sub(params.CropParameter, number=144)
    data_param = sub(params.DataParameter, number=107)
    detection_output_param = sub(params.DetectionOutputParameter, number=204)
    dropout_param = sub(params.DropoutParameter, number=108)
    dummy_data_param = sub(params.DummyDataParameter, number=109)
    eltwise_param = sub(params.EltwiseParameter, number=110)
    elu_param = sub(params.ELUParameter, number=140)
    embed_param = sub(params.EmbedParameter, number=137)
    exp_param = sub(params.ExpParameter, number=111)
    flatten_param = sub(params.FlattenParameter, number=135)
    hdf5_data_param = sub(params.HDF5DataParameter, number=112)
    hdf5_output_param = sub(params.HDF5OutputParameter, number=113)
    hinge_loss_param = sub(params.HingeLossParameter, number=114)
    image_data_param = sub(params.ImageDataParameter, number=115)
    infogain_loss_param = sub(params.InfogainLossParameter, number=116)
    inner_product_param = sub(params.InnerProductParameter, number=117)
    input_param = sub(params.InputParameter, number=143)
    interp_param = sub(params.InterpParameter)
    log_param = sub(params.LogParameter, number=134)
    lrn_param = sub(params.LRNParameter, number=118)
    memory_data_param = sub(params.MemoryDataParameter, number=119)
    mvn_param = sub(params.MVNParameter, number=120)
    norm_param = sub(params.NormalizeParameter, number=206)
    parameter_param = sub(params.ParameterParameter, number=145)
    permute_param = sub(params.PermuteParameter, number=202)
    pooling_param = sub(params.PoolingParameter, number=121)
    power_param = sub(params.PowerParameter, number=122)
    prelu_param = sub(params.PReLUParameter, number=131)
    prior_box_param = sub(params.PriorBoxParameter, number=203)
    python_param = sub(params.PythonParameter, number=130)
    recurrent_param = sub(params.RecurrentParameter, number=146)
    reduction_param = sub(params.ReductionParameter, number=136)
    relu_param = sub(params.ReLUParameter, number=123)
    reshape_param = sub(params.ReshapeParameter, number=133)
    scale_param = sub(params.ScaleParameter, number=142)
    shuffle_channel_param = sub(params.ShuffleChannelParameter)
    sigmoid_param = sub(params.SigmoidParameter, number=124)
    slice_param = sub(params.SliceParameter, number=126)
    softmax_param = sub(params.SoftmaxParameter, number=125)
    spp_param = sub(params.SPPParameter, number=132)
    swish_param = sub(params.SwishParameter, number=147)
    tanh_param = sub(params.TanHParameter, number=127)
    threshold_param = sub(params.ThresholdParameter, number=128)
    tile_param = sub(params.TileParameter, number=138)
    upsample_param = sub(params.UpsampleParameter)
    window_data_param = sub(params.WindowDataParameter, number=129)


class LayerParameter(LayerFields):
    """One layer in V2 syntax."""

    name = string(number=1)
    type = string(number=2)
    bottom = repeated(string(), number=3)
    top = repeated(string(), number=4)
    phase = enum(PHASES, "TRAIN", number=10)
    loss_weight = repeated(real(), number=5)
    param = repeated(sub(ParamSpec), number=6)
    propagate_down = repeated(boolean(), number=11)
    include = repeated(sub(NetStateRule), number=8)
    exclude = repeated(sub(NetStateRule), number=9)


class V1LayerParameter(LayerFields, inherited=_V1_NUMBERS):
    """One layer in V1 syntax; upgrade.py makes a LayerParameter of it. In V0 syntax all but its blobs is in `layer`."""

    layer = sub(V0LayerParameter, number=1)
    name = string(number=4)
    type = enum({name: number for name, (number, _) in V1_TYPES.items()}, "NONE", number=5)
    bottom = repeated(string(), number=2)
    top = repeated(string(), number=3)
    loss_weight = repeated(real(), number=35)
    param = repeated(string(), number=1001)
    blob_share_mode = repeated(enum(SHARE_MODES, "STRICT"), number=1002)
    blobs_lr = repeated(real(), number=7)
    weight_decay = repeated(real(), number=8)
    include = repeated(sub(NetStateRule), number=32)
    exclude = repeated(sub(NetStateRule), number=33)


class NetParameter(Message):
    """A net: `layer` in V2 syntax, `layers` in V1 and V0."""

    name = string(number=1)
    input = repeated(string(), number=3)
    input_shape = repeated(sub(params.BlobShape), number=8)
    input_dim = repeated(int32(), number=4)
    force_backward = boolean(number=5)
    state = sub(NetState, number=6)
    debug_info = boolean(number=7)
    layer = repeated(sub(LayerParameter), number=100)
    layers = repeated(sub(V1LayerParameter), number=2)


class SolverParameter(Message):
    """How a net is trained and tested."""

    net = string(number=24)
    net_param = sub(NetParameter, number=25)
    train_net = string(number=1)
    test_net = repeated(string(), number=2)
    train_net_param = sub(NetParameter, number=21)
    test_net_param = repeated(sub(NetParameter), number=22)
    train_state = sub(NetState, number=26)
    test_state = repeated(sub(NetState), number=27)
    test_iter = repeated(int32(), number=3)
    test_interval = int32(number=4)
    test_compute_loss = boolean(number=19)
    test_initialization = boolean(True, number=32)
    base_lr = real(number=5)
    display = int32(number=6)
    average_loss = int32(1, number=33)
    max_iter = int32(number=7)
    iter_size = int32(1, number=36)
    lr_policy = string(number=8)
    gamma = real(number=9)
    power = real(number=10)
    momentum = real(number=11)
    weight_decay = real(number=12)
    regularization_type = string("L2", number=29)
    stepsize = int32(number=13)
    stepvalue = repeated(int32(), number=34)
    clip_gradients = real(-1.0, number=35)
    snapshot = int32(number=14)
    snapshot_prefix = string(number=15)
    snapshot_diff = boolean(number=16)
    snapshot_format = enum({"HDF5": 0, "BINARYPROTO": 1}, "BINARYPROTO", number=37)
    solver_mode = enum({"CPU": 0, "GPU": 1}, "GPU", number=17)
    device_id = int32(number=18)
    random_seed = int32(-1, number=20)
    type = string("SGD", number=40)
    solver_type = enum({name: number for name, (number, _) in V1_SOLVERS.items()}, "SGD", number=30)
    delta = real(1e-8, number=31)
    momentum2 = real(0.999, number=39)
    rms_decay = real(0.99, number=38)
    debug_info = boolean(number=23)
    snapshot_after_train = boolean(True, number=28)
    layer_wise_reduce = boolean(True, number=41)
    weights = repeated(string(), number=42)
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
