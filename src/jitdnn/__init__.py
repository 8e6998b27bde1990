"""Deep-learning primitives whose kernels are written in Python and generated at run time.

    import jitdnn as jd
    y = jd.conv(x, w, stride=2, padding=1)

Public names are imported when they are first used, so that `import jitdnn` itself costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# where each public name lives; type checkers read the same from __init__.pyi
_HOMES = {
    "errors": (
        "CompileError DeviceError InvalidArgument InvalidShape InvalidType JitdnnError NotSupported "
        "ParseError SnapshotError StoreError"
    ),
    "graph.chain": "chain",
    "handle": "Handle current_handle",
    "ops.activation": (
        "clipped_relu clipped_relu_backward elu elu_backward gelu gelu_backward hard_sigmoid "
        "hard_sigmoid_backward hard_swish hard_swish_backward identity identity_backward leaky_relu "
        "leaky_relu_backward mish mish_backward relu relu_backward selu selu_backward sigmoid "
        "sigmoid_backward softplus softplus_backward swish swish_backward tanh tanh_backward"
    ),
    "ops.adaptive_pooling": (
        "adaptive_avg_pool adaptive_avg_pool_backward adaptive_max_pool adaptive_max_pool_backward"
    ),
    "ops.attention": "attention attention_backward",
    "ops.autotune": "autotune",
    "ops.batch_norm": "batch_norm batch_norm_backward batch_norm_inference",
    "ops.convolution": "conv conv_backward_bias conv_backward_data conv_backward_filter conv_transpose",
    "ops.cross_entropy": "cross_entropy cross_entropy_backward",
    "ops.ctc_loss": "ctc_loss ctc_loss_backward",
    "ops.divisive_norm": "divisive_norm divisive_norm_backward",
    "ops.dropout": "DropoutState dropout dropout_backward",
    "ops.elementwise": "elementwise",
    "ops.embedding": "embedding embedding_backward",
    "ops.fused_convolution": "Prologue",
    "ops.group_norm": "group_norm group_norm_backward instance_norm instance_norm_backward",
    "ops.kept_filter": "KeptFilter",
    "ops.layer_norm": "layer_norm layer_norm_backward rms_norm rms_norm_backward",
    "ops.lrn": "lrn lrn_backward",
    "ops.matmul": "matmul",
    "ops.module": "module",
    "ops.multi_head_attention": (
        "MultiHeadGradients MultiHeadSaved multi_head_attention multi_head_attention_backward"
    ),
    "ops.plan": "plan",
    "ops.plan_net": "plan_net",
    "ops.pooling": "avg_pool avg_pool_backward global_avg_pool global_max_pool max_pool max_pool_backward",
    "ops.prelu": "prelu prelu_backward",
    "ops.random": "bernoulli normal uniform",
    "ops.reduce": "reduce",
    "ops.reduction": "reduction",
    "ops.resize": "resize resize_backward",
    "ops.rnn": "gru gru_backward lstm lstm_backward rnn rnn_backward",
    "ops.scan": "scan",
    "ops.softmax": "softmax softmax_backward",
    "ops.spatial_transformer": "affine_grid affine_grid_backward grid_sample grid_sample_backward",
    "ops.tensor_ops": "add fill multiply op_tensor scale",
    "ops.to_device": "empty to_device",
    "ops.transform": "concat fold slice split transform unfold",
    "ops.tune": "tune",
    "ops.unpooling": "max_unpool max_unpool_backward",
    "ops.warm": "warm",
    "problems": "parse",
    "rtcg.functions": (
        "absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh ceil clip cos cosh erf exp exp2 "
        "expm1 floor floor_divide fma fmod isfinite isinf isnan log10 log1p log1pexp log2 maximum minimum "
        "normal_cdf normal_tail power reciprocal remainder rint rsqrt sign sin sinh sqrt square tan trace "
        "trunc where"
    ),
    "tensor": "DeviceArray TensorDescriptor",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_HOME_OF, "settings"])


def __getattr__(name: str) -> Any:
    if name == "settings":
        # the module itself, which is callable: importing it binds the name here
        return import_module("jitdnn.settings")
    if name == "onnx":  # imports the package of that name, so it is none of those that are listed
        return import_module("jitdnn.onnx")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'jitdnn' has no attribute {name!r}")
    value = getattr(import_module(f"jitdnn.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
