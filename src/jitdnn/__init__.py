"""Deep-learning primitives whose kernels are written in Python and generated at run time.

    import jitdnn as jd
    y = jd.conv(x, w, stride=2, padding=1)

Public names are imported when they are first used, so that `import jitdnn` itself costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitdnn.errors import (
        CompileError,
        DeviceError,
        InvalidArgument,
        InvalidShape,
        InvalidType,
        JitdnnError,
        NotSupported,
        ParseError,
        SnapshotError,
        StoreError,
    )
    from jitdnn.handle import Handle, current_handle
    from jitdnn.ops.activation import (
        clipped_relu,
        clipped_relu_backward,
        elu,
        elu_backward,
        gelu,
        gelu_backward,
        hard_sigmoid,
        hard_sigmoid_backward,
        hard_swish,
        hard_swish_backward,
        identity,
        identity_backward,
        leaky_relu,
        leaky_relu_backward,
        mish,
        mish_backward,
        relu,
        relu_backward,
        selu,
        selu_backward,
        sigmoid,
        sigmoid_backward,
        softplus,
        softplus_backward,
        swish,
        swish_backward,
        tanh,
        tanh_backward,
    )
    from jitdnn.ops.adaptive_pooling import (
        adaptive_avg_pool,
        adaptive_avg_pool_backward,
        adaptive_max_pool,
        adaptive_max_pool_backward,
    )
    from jitdnn.ops.attention import attention, attention_backward
    from jitdnn.ops.autotune import autotune
    from jitdnn.ops.batch_norm import batch_norm, batch_norm_backward, batch_norm_inference
    from jitdnn.ops.convolution import (
        conv,
        conv_backward_bias,
        conv_backward_data,
        conv_backward_filter,
        conv_transpose,
    )
    from jitdnn.ops.cross_entropy import cross_entropy, cross_entropy_backward
    from jitdnn.ops.ctc_loss import ctc_loss, ctc_loss_backward
    from jitdnn.ops.divisive_norm import divisive_norm, divisive_norm_backward
    from jitdnn.ops.dropout import DropoutState, dropout, dropout_backward
    from jitdnn.ops.elementwise import elementwise
    from jitdnn.ops.embedding import embedding, embedding_backward
    from jitdnn.ops.group_norm import (
        group_norm,
        group_norm_backward,
        instance_norm,
        instance_norm_backward,
    )
    from jitdnn.ops.layer_norm import (
        layer_norm,
        layer_norm_backward,
        rms_norm,
        rms_norm_backward,
    )
    from jitdnn.ops.lrn import lrn, lrn_backward
    from jitdnn.ops.matmul import matmul
    from jitdnn.ops.module import module
    from jitdnn.ops.plan import plan
    from jitdnn.ops.pooling import (
        avg_pool,
        avg_pool_backward,
        global_avg_pool,
        global_max_pool,
        max_pool,
        max_pool_backward,
    )
    from jitdnn.ops.prelu import prelu, prelu_backward
    from jitdnn.ops.random import bernoulli, normal, uniform
    from jitdnn.ops.reduce import reduce
    from jitdnn.ops.reduction import reduction
    from jitdnn.ops.resize import resize, resize_backward
    from jitdnn.ops.rnn import gru, gru_backward, lstm, lstm_backward, rnn, rnn_backward
    from jitdnn.ops.scan import scan
    from jitdnn.ops.softmax import softmax, softmax_backward
    from jitdnn.ops.spatial_transformer import (
        affine_grid,
        affine_grid_backward,
        grid_sample,
        grid_sample_backward,
    )
    from jitdnn.ops.tensor_ops import add, fill, multiply, op_tensor, scale
    from jitdnn.ops.transform import concat, fold, slice, split, transform, unfold
    from jitdnn.ops.unpooling import max_unpool, max_unpool_backward
    from jitdnn.problems import parse
    from jitdnn.rtcg.functions import (
        absolute,
        arctan,
        ceil,
        cos,
        erf,
        exp,
        expm1,
        floor,
        fmod,
        log1p,
        maximum,
        minimum,
        power,
        remainder,
        rint,
        sin,
        sqrt,
        trace,
        trunc,
        where,
    )
    from jitdnn.settings import settings
    from jitdnn.tensor import TensorDescriptor

__version__ = "0.1.0"

_HOMES = {
    "errors": (
        "CompileError",
        "DeviceError",
        "InvalidArgument",
        "InvalidShape",
        "InvalidType",
        "JitdnnError",
        "NotSupported",
        "ParseError",
        "SnapshotError",
        "StoreError",
    ),
    "handle": ("Handle", "current_handle"),
    "ops.activation": (
        "clipped_relu",
        "clipped_relu_backward",
        "elu",
        "elu_backward",
        "gelu",
        "gelu_backward",
        "hard_sigmoid",
        "hard_sigmoid_backward",
        "hard_swish",
        "hard_swish_backward",
        "identity",
        "identity_backward",
        "leaky_relu",
        "leaky_relu_backward",
        "mish",
        "mish_backward",
        "relu",
        "relu_backward",
        "selu",
        "selu_backward",
        "sigmoid",
        "sigmoid_backward",
        "softplus",
        "softplus_backward",
        "swish",
        "swish_backward",
        "tanh",
        "tanh_backward",
    ),
    "ops.attention": ("attention", "attention_backward"),
    "ops.batch_norm": ("batch_norm", "batch_norm_backward", "batch_norm_inference"),
    "ops.convolution": (
        "conv",
        "conv_backward_bias",
        "conv_backward_data",
        "conv_backward_filter",
        "conv_transpose",
    ),
    "ops.cross_entropy": ("cross_entropy", "cross_entropy_backward"),
    "ops.ctc_loss": ("ctc_loss", "ctc_loss_backward"),
    "ops.group_norm": (
        "group_norm",
        "group_norm_backward",
        "instance_norm",
        "instance_norm_backward",
    ),
    "ops.layer_norm": (
        "layer_norm",
        "layer_norm_backward",
        "rms_norm",
        "rms_norm_backward",
    ),
    "ops.dropout": ("DropoutState", "dropout", "dropout_backward"),
    "ops.embedding": ("embedding", "embedding_backward"),
    "ops.divisive_norm": ("divisive_norm", "divisive_norm_backward"),
    "ops.adaptive_pooling": (
        "adaptive_avg_pool",
        "adaptive_avg_pool_backward",
        "adaptive_max_pool",
        "adaptive_max_pool_backward",
    ),
    "ops.lrn": ("lrn", "lrn_backward"),
    "ops.unpooling": ("max_unpool", "max_unpool_backward"),
    "ops.matmul": ("matmul",),
    "ops.autotune": ("autotune",),
    "ops.elementwise": ("elementwise",),
    "ops.module": ("module",),
    "ops.reduction": ("reduction",),
    "ops.scan": ("scan",),
    "ops.plan": ("plan",),
    "ops.pooling": (
        "avg_pool",
        "avg_pool_backward",
        "global_avg_pool",
        "global_max_pool",
        "max_pool",
        "max_pool_backward",
    ),
    "ops.random": ("bernoulli", "normal", "uniform"),
    "ops.rnn": ("gru", "gru_backward", "lstm", "lstm_backward", "rnn", "rnn_backward"),
    "ops.reduce": ("reduce",),
    "ops.resize": ("resize", "resize_backward"),
    "ops.softmax": ("softmax", "softmax_backward"),
    "ops.spatial_transformer": (
        "affine_grid",
        "affine_grid_backward",
        "grid_sample",
        "grid_sample_backward",
    ),
    "ops.tensor_ops": ("add", "fill", "multiply", "op_tensor", "scale"),
    "ops.transform": ("concat", "fold", "slice", "split", "transform", "unfold"),
    "problems": ("parse",),
    "rtcg.functions": (
        "absolute",
        "arctan",
        "ceil",
        "cos",
        "erf",
        "exp",
        "expm1",
        "floor",
        "fmod",
        "log1p",
        "maximum",
        "minimum",
        "power",
        "remainder",
        "rint",
        "sin",
        "sqrt",
        "trace",
        "trunc",
        "where",
    ),
    "ops.prelu": ("prelu", "prelu_backward"),
    "tensor": ("TensorDescriptor",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CompileError",
    "DeviceError",
    "DropoutState",
    "Handle",
    "InvalidArgument",
    "InvalidShape",
    "InvalidType",
    "JitdnnError",
    "NotSupported",
    "ParseError",
    "SnapshotError",
    "StoreError",
    "TensorDescriptor",
    "absolute",
    "adaptive_avg_pool",
    "adaptive_avg_pool_backward",
    "adaptive_max_pool",
    "adaptive_max_pool_backward",
    "add",
    "affine_grid",
    "affine_grid_backward",
    "arctan",
    "attention",
    "attention_backward",
    "autotune",
    "avg_pool",
    "avg_pool_backward",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_inference",
    "bernoulli",
    "ceil",
    "clipped_relu",
    "clipped_relu_backward",
    "concat",
    "conv",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_transpose",
    "cos",
    "cross_entropy",
    "cross_entropy_backward",
    "ctc_loss",
    "ctc_loss_backward",
    "current_handle",
    "divisive_norm",
    "divisive_norm_backward",
    "dropout",
    "dropout_backward",
    "elementwise",
    "elu",
    "elu_backward",
    "embedding",
    "embedding_backward",
    "erf",
    "exp",
    "expm1",
    "fill",
    "floor",
    "fmod",
    "fold",
    "gelu",
    "gelu_backward",
    "global_avg_pool",
    "global_max_pool",
    "grid_sample",
    "grid_sample_backward",
    "group_norm",
    "group_norm_backward",
    "gru",
    "gru_backward",
    "hard_sigmoid",
    "hard_sigmoid_backward",
    "hard_swish",
    "hard_swish_backward",
    "identity",
    "identity_backward",
    "instance_norm",
    "instance_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "log1p",
    "lrn",
    "lrn_backward",
    "lstm",
    "lstm_backward",
    "matmul",
    "max_pool",
    "max_pool_backward",
    "max_unpool",
    "max_unpool_backward",
    "maximum",
    "minimum",
    "mish",
    "mish_backward",
    "module",
    "multiply",
    "normal",
    "op_tensor",
    "parse",
    "plan",
    "power",
    "prelu",
    "prelu_backward",
    "reduce",
    "reduction",
    "relu",
    "relu_backward",
    "remainder",
    "resize",
    "resize_backward",
    "rint",
    "rms_norm",
    "rms_norm_backward",
    "rnn",
    "rnn_backward",
    "scale",
    "scan",
    "selu",
    "selu_backward",
    "settings",
    "sigmoid",
    "sigmoid_backward",
    "sin",
    "slice",
    "softmax",
    "softmax_backward",
    "softplus",
    "softplus_backward",
    "split",
    "sqrt",
    "swish",
    "swish_backward",
    "tanh",
    "tanh_backward",
    "trace",
    "transform",
    "trunc",
    "unfold",
    "uniform",
    "where",
]


def __getattr__(name: str) -> Any:
    if name == "settings":
        # the module itself, which is callable: importing it binds the name here
        return import_module("jitdnn.settings")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'jitdnn' has no attribute {name!r}")
    value = getattr(import_module(f"jitdnn.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
