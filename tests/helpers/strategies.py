"""Hypothesis strategies for problems: every kind, every attribute, every order in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import assume

from jitdnn.errors import InvalidArgument
from jitdnn.problems import (
    LRN,
    Activation,
    AddTensor,
    Attention,
    BatchNorm,
    BiasGradient,
    Convolution,
    CrossEntropy,
    CtcLoss,
    DivisiveNorm,
    FusedConvolution,
    GroupNorm,
    LayerNorm,
    MatMul,
    Pooling,
    Problem,
    Recurrent,
    Reduce,
    Softmax,
    Unpooling,
)
from jitdnn.problems.activation import FUNCTIONS
from jitdnn.problems.pooling import INDEX_DTYPES as POOLING_INDICES
from jitdnn.problems.reduce import INDEX_DTYPES, INDEXED, OPS
from jitdnn.problems.rnn import BIASES as RNN_BIASES
from jitdnn.problems.rnn import CELLS as RNN_CELLS
from jitdnn.tensor import TensorDescriptor, compute_dtype, packed_strides

DTYPES = st.sampled_from(("f32", "f32", "f64", "f16", "bf16"))
REAL_DTYPES = st.sampled_from(("f32", "f32", "f64", "f16", "bf16"))
AWKWARD = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)


@st.composite
def descriptors(
    draw: st.DrawFn, shape: Sequence[int], dtype: str, is_output: bool = False
) -> TensorDescriptor:
    """A tensor of `shape` in any order: packed, permuted, with gaps, reversed; an input also repeated or
    overlapping (a stride less than what lies inside it)."""
    how = draw(
        st.sampled_from(("nchw", "nchw", "nhwc", "permuted", "gaps") + (() if is_output else ("shared",)))
    )
    if how in ("nchw", "nhwc"):
        return TensorDescriptor.packed(shape, dtype, how)
    order = draw(st.permutations(range(len(shape))))
    if how == "permuted":
        return TensorDescriptor(tuple(shape), packed_strides(shape, order), dtype)
    strides, step = [0] * len(shape), draw(st.integers(1, 3))
    for axis in reversed(order):
        strides[axis] = step
        if how == "gaps":
            step *= max(shape[axis], 1) + draw(st.integers(0, 2))
            strides[axis] *= draw(st.sampled_from((1, 1, -1)))
        else:
            strides[axis] *= draw(st.sampled_from((1, 0)))
            step = max(1, step * draw(st.integers(1, max(shape[axis], 1))))
    return TensorDescriptor(tuple(shape), tuple(strides), dtype)


def padding_pairs(most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.one_of(
        st.integers(0, most).map(lambda pad: (pad, pad)),
        st.tuples(st.integers(0, most), st.integers(0, most)),
    )


@st.composite
def convolutions(
    draw: st.DrawFn,
    directions: Sequence[str] = ("fwd", "bwd_data", "bwd_filter"),
    channels: Sequence[int] = AWKWARD,
    most_extent: int = 11,
) -> Convolution:
    rank = draw(st.integers(1, 3))
    direction, dtype = draw(st.sampled_from(directions)), draw(DTYPES)
    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 5)))
    c, k = (draw(st.sampled_from(channels)) for _ in "ck")
    if groups > 1 and draw(st.booleans()):
        c, groups = 1, draw(st.sampled_from(channels))  # depthwise, with k outputs for each input
        k = draw(st.sampled_from((1, 1, 2, 3)))
    axes = range(rank)
    most_extent = most_extent if rank < 3 else min(most_extent, 6)
    spatial = tuple(draw(st.integers(1, most_extent)) for _ in axes)
    taps = tuple(draw(st.integers(1, 4)) for _ in axes)
    stride = tuple(draw(st.sampled_from((1, 1, 2, 3))) for _ in axes)
    dilation = tuple(draw(st.sampled_from((1, 1, 2, 3))) for _ in axes)
    padding = tuple(draw(padding_pairs(4)) for _ in axes)
    shapes: Any = (draw(st.integers(0, 3)), c * groups, *spatial), (k * groups, c, *taps)
    mode = draw(st.sampled_from(("cross_correlation", "convolution")))
    try:
        plain = Convolution.make(direction, *shapes, stride, padding, dilation, groups, mode, dtype)
    except InvalidArgument:
        assume(False)
    result = {"fwd": "y", "bwd_data": "x", "bwd_filter": "w"}[direction]
    tensors = {
        name: draw(descriptors(getattr(plain, name).shape, dtype, is_output=name == result)) for name in "xwy"
    }
    return Convolution(
        direction, **tensors, stride=stride, padding=padding, dilation=dilation, groups=groups, mode=mode
    )


@st.composite
def fused_convolutions(draw: st.DrawFn) -> FusedConvolution:
    own = draw(convolutions(("fwd", "bwd_filter")))
    activation = draw(st.sampled_from((None, "identity", "relu", "sigmoid", "elu")))
    has_sums = own.direction == "fwd" and (activation is None or draw(st.booleans()))
    assume(activation is not None or has_sums)
    problem = FusedConvolution.of(own, activation, has_sums, by_image=draw(st.booleans()))
    tensors = {
        name: draw(descriptors(tensor.shape, tensor.dtype, is_output=name in ("sums", "squares")))
        for name in ("scale", "shift", "sums", "squares")
        if (tensor := getattr(problem, name)) is not None
    }
    return replace(problem, **tensors)


@st.composite
def bias_gradients(draw: st.DrawFn) -> BiasGradient:
    shape = (draw(st.integers(0, 3)), draw(st.sampled_from(AWKWARD)))
    shape += tuple(draw(st.lists(st.sampled_from(AWKWARD), max_size=3)))
    dtype = draw(DTYPES)
    return BiasGradient(draw(descriptors(shape, dtype)), draw(descriptors(shape[1:2], dtype, is_output=True)))


@st.composite
def poolings(draw: st.DrawFn) -> Pooling:
    rank = draw(st.integers(1, 3))
    direction, dtype = draw(st.sampled_from(("fwd", "bwd"))), draw(DTYPES)
    mode = draw(st.sampled_from(("max", "avg")))
    if direction == "fwd":
        dtype = draw(st.sampled_from((dtype, dtype, dtype, "i8", "u8")))
    axes = range(rank)
    x_shape = (draw(st.integers(0, 2)), draw(st.sampled_from(AWKWARD)))
    x_shape += tuple(draw(st.integers(1, 11 if rank < 3 else 6)) for _ in axes)
    indices = draw(st.sampled_from((None, *POOLING_INDICES))) if (direction, mode) == ("fwd", "max") else None
    if draw(st.integers(0, 4)) == 0:
        out = [draw(st.integers(1, 8)) for _ in axes]
        plain = Pooling.adaptive(direction, mode, x_shape, out, dtype, indices=indices)
    else:
        window = tuple(draw(st.integers(1, 4)) for _ in axes)
        dilation = tuple(draw(st.sampled_from((1, 1, 2, 3))) for _ in axes)
        padding = tuple(draw(padding_pairs((k - 1) * d)) for k, d in zip(window, dilation, strict=True))
        try:
            plain = Pooling.make(
                direction, mode, x_shape, window, tuple(draw(st.integers(1, 4)) for _ in axes), padding,
                draw(st.booleans()), draw(st.sampled_from(("floor", "ceil", "caffe"))), dtype,
                dilation=dilation, indices=indices,
            )  # fmt: skip
        except InvalidArgument:
            assume(False)
    tensors = {
        operand.name: draw(
            descriptors(
                operand.descriptor.shape, operand.descriptor.dtype, is_output=operand in plain.outputs
            )
        )
        for operand in plain.operands
    }
    return replace(plain, **tensors)


@st.composite
def unpoolings(draw: st.DrawFn) -> Unpooling:
    direction, dtype, rank = draw(st.sampled_from(("fwd", "bwd"))), draw(DTYPES), draw(st.integers(1, 3))
    first = (draw(st.integers(0, 2)), draw(st.sampled_from(AWKWARD)))
    small, large = ((*first, *(draw(st.integers(1, most)) for _ in range(rank))) for most in (5, 7))
    is_forward = direction == "fwd"
    return Unpooling(
        direction,
        draw(descriptors(small, dtype, is_output=not is_forward)),
        draw(descriptors(small, draw(st.sampled_from(POOLING_INDICES)))),
        draw(descriptors(large, dtype, is_output=is_forward)),
    )


def _window_numbers(draw: st.DrawFn) -> dict[str, Any]:
    """Of LRN and divisive normalization."""
    return {
        "size": draw(st.sampled_from((1, 2, 3, 5, 6, 18))),
        "alpha": draw(st.sampled_from((1e-4, 0.5, 3.0))),
        "beta": draw(st.sampled_from((0.5, 0.75, 1.0, 0.6))),
        "k": draw(st.sampled_from((1.0, 2.0))),
    }


def _image_shape(draw: st.DrawFn) -> tuple[int, ...]:
    rank = draw(st.integers(1, 3))
    space = (draw(st.integers(1, 19 if rank < 3 else 5)) for _ in range(rank))
    return (draw(st.integers(0, 2)), draw(st.sampled_from(AWKWARD)), *space)


@st.composite
def lrns(draw: st.DrawFn) -> LRN:
    shape, dtype, direction = _image_shape(draw), draw(DTYPES), draw(st.sampled_from(("fwd", "bwd")))
    names = ("x", "y") if direction == "fwd" else ("x", "dy", "dx")
    tensors = {name: draw(descriptors(shape, dtype, is_output=name == names[-1])) for name in names}
    tensors.setdefault("y", TensorDescriptor.packed(shape, dtype))
    mode = draw(st.sampled_from(("across", "within")))
    return LRN(direction, mode, **tensors, **_window_numbers(draw))


@st.composite
def divisive_norms(draw: st.DrawFn) -> DivisiveNorm:
    shape, dtype, direction = _image_shape(draw), draw(DTYPES), draw(st.sampled_from(("fwd", "bwd")))
    outputs = ("y",) if direction == "fwd" else ("dx", "dmeans")
    names = [
        "x",
        *(["means"] if draw(st.booleans()) else []),
        *(["dy"] if direction == "bwd" else []),
        *outputs,
    ]
    if "means" not in names and "dmeans" in names:
        names.remove("dmeans")
    tensors = {name: draw(descriptors(shape, dtype, is_output=name in outputs)) for name in names}
    tensors.setdefault("y", TensorDescriptor.packed(shape, dtype))
    return DivisiveNorm(direction, **tensors, **_window_numbers(draw))


def shapes(least: int = 1, most: int = 5, empty: bool = True) -> st.SearchStrategy[tuple[int, ...]]:
    extents = st.sampled_from(((0,) if empty else ()) + AWKWARD[:8])
    return st.lists(extents, min_size=least, max_size=most).map(tuple)


@st.composite
def softmaxes(draw: st.DrawFn) -> Softmax:
    shape, dtype = draw(shapes()), draw(DTYPES)
    direction = draw(st.sampled_from(("fwd", "bwd")))
    algorithm = draw(st.sampled_from(("fast", "accurate", "log")))
    axis = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    names = ("x", "y") if direction == "fwd" else ("y", "dy", "dx")
    tensors = {name: draw(descriptors(shape, dtype, is_output=name == names[-1])) for name in names}
    return Softmax(direction, algorithm, axis, **{"x": TensorDescriptor.packed(shape, dtype), **tensors})


@st.composite
def reductions(draw: st.DrawFn) -> Reduce:
    shape, dtype = draw(shapes(empty=False)), draw(DTYPES)
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    op, keepdims = draw(st.sampled_from(OPS)), draw(st.booleans())
    dtypes = (None, *INDEX_DTYPES) if op in INDEXED else (None,)
    found = draw(st.sampled_from(dtypes))
    plain = Reduce.make(op, shape, tuple(axes), keepdims, found, draw(st.booleans()), dtype)
    y = draw(descriptors(plain.y.shape, dtype, is_output=True))
    indices = None if found is None else draw(descriptors(plain.y.shape, found, is_output=True))
    return replace(plain, x=draw(descriptors(shape, dtype)), y=y, indices=indices)


@st.composite
def activations(draw: st.DrawFn) -> Activation:
    shape, dtype = draw(shapes()), draw(DTYPES)
    function = draw(st.sampled_from(sorted(FUNCTIONS)))
    direction, saved = "fwd", "x"
    if draw(st.booleans()):
        direction = "bwd"
        saved = draw(st.sampled_from(("x", "y"))) if FUNCTIONS[function].derivative_from_y else "x"
    names = ("x", "y") if direction == "fwd" else (saved, "dy", "dx")
    tensors = {name: draw(descriptors(shape, dtype, is_output=name == names[-1])) for name in names}
    packed = TensorDescriptor.packed(shape, dtype)
    return Activation(direction, function, saved=saved, **{"x": packed, "y": packed, **tensors})


@st.composite
def matmuls(draw: st.DrawFn) -> MatMul:
    batch, dtype = draw(shapes(0, 2)), draw(DTYPES)
    m, k, n = (draw(st.sampled_from((0, *AWKWARD))) for _ in "mkn")
    return MatMul(
        draw(descriptors((*batch, m, k), dtype)),
        draw(descriptors((*batch, k, n), dtype)),
        draw(descriptors((*batch, m, n), dtype, is_output=True)),
    )


@st.composite
def additions(draw: st.DrawFn) -> AddTensor:
    shape, dtype = draw(shapes()), draw(DTYPES)
    a = draw(descriptors(shape, dtype))
    b = draw(st.one_of(st.none(), descriptors(shape, dtype)))
    return AddTensor(a, b, draw(descriptors(shape, dtype, is_output=True)))


@st.composite
def normalizations(draw: st.DrawFn, kinds: Sequence[str] = ("batch", "layer", "group")) -> Problem:
    """A normalization of any kind, whose tensors lie in any order."""
    kind, dtype = draw(st.sampled_from(kinds)), draw(REAL_DTYPES)
    direction = draw(st.sampled_from(("fwd", "bwd", "inference") if kind == "batch" else ("fwd", "bwd")))
    absent = draw(st.sets(st.sampled_from(("weight", "bias", "dbias", "running"))))
    if direction == "fwd" and draw(st.booleans()):
        absent |= {"mean", "rstd"}
    if "running" in absent and direction == "fwd":
        absent |= {"running_mean", "running_var"}
    options: Any = {"absent": tuple(absent), "dtype": dtype, "is_narrow": draw(st.booleans())}
    options["layout"] = draw(st.sampled_from(("nchw", "nhwc")))
    if direction != "bwd":
        options["epsilon"] = draw(st.floats(1e-6, 1.0))
    plain: BatchNorm | LayerNorm | GroupNorm
    if kind == "layer":
        shape = draw(shapes(1, 4, empty=False))
        form, axis = draw(st.sampled_from(("layer", "rms"))), draw(st.integers(-len(shape), len(shape) - 1))
        plain = LayerNorm.make(direction, shape, axis, form, **options, is_wide=draw(st.booleans()))
    elif kind == "batch":
        shape = draw(shapes(2, 4, empty=False))
        mode = draw(st.sampled_from(("spatial", "per_activation")))
        functions = ("identity", "relu", "sigmoid", "tanh", "clipped_relu", "swish")
        activation, adds = draw(st.sampled_from(functions)), draw(st.booleans())
        if direction == "fwd":
            options["factor"] = draw(st.floats(0.0, 1.0))
        if direction == "bwd" and (activation == "swish" or draw(st.booleans())):
            options |= {"saved": "x", "absent": tuple(absent - {"weight", "bias"})}
            adds = False
        plain = BatchNorm.make(direction, shape, mode, activation, adds, **options)
    else:
        groups, members = draw(st.sampled_from((1, 2, 3, 8))), draw(st.sampled_from((1, 2, 5)))
        shape = (draw(st.integers(1, 3)), groups * members, *draw(shapes(0, 2, empty=False)))
        activation = draw(st.sampled_from(("identity", "leaky_relu", "swish")))
        if activation != "identity" and direction == "bwd":
            options["absent"] = tuple(absent - {"weight", "bias"})
        options |= {"activation": activation, "is_wide": draw(st.booleans())}
        plain = GroupNorm.make(direction, shape, groups, **options)
    outputs = {operand.name for operand in plain.outputs}
    tensors: Any = {
        o.name: draw(descriptors(o.descriptor.shape, o.descriptor.dtype, is_output=o.name in outputs))
        for o in plain.operands
    }
    return replace(plain, **tensors)


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    dtype, direction = draw(DTYPES), draw(st.sampled_from(("fwd", "bwd")))
    n, g, group = draw(st.integers(0, 2)), draw(st.integers(1, 2)), draw(st.sampled_from((1, 1, 2, 3)))
    t, s, d, e = (
        draw(st.integers(0, 40)),
        draw(st.integers(0, 120)),
        *(draw(st.sampled_from(AWKWARD)) for _ in "de"),
    )
    shapes_of = {"q": (n, g * group, t, d), "k": (n, g, s, d), "v": (n, g, s, e), "y": (n, g * group, t, e)}
    tensors: dict[str, Any] = {
        name: draw(descriptors(shape, dtype, is_output=direction == "fwd" and name == "y"))
        for name, shape in shapes_of.items()
    }
    if direction == "bwd":
        tensors["dy"] = draw(descriptors(shapes_of["y"], dtype))
        tensors |= {f"d{x}": draw(descriptors(shapes_of[x], dtype, is_output=True)) for x in "qkv"}
    if direction == "bwd" or draw(st.booleans()):
        tensors["lse"] = draw(descriptors(shapes_of["q"][:3], compute_dtype(dtype), is_output=True))
    kind = draw(st.sampled_from((None, None, "bool", dtype)))
    if kind is not None:
        tensors["mask"] = draw(descriptors((n, g * group, t, s), kind))
    for name, length in (("lengths", n), ("lo", t), ("hi", t)):
        if draw(st.integers(0, 3)) == 0:
            tensors[name] = draw(descriptors((length,), draw(st.sampled_from(("i32", "i64")))))
    reaches: dict[str, Any] = {
        side: draw(st.one_of(st.none(), st.integers(0, 50))) for side in ("left", "right")
    }
    tensors.setdefault("lse", None)
    return Attention(
        direction,
        scale=draw(st.sampled_from((0.25, 1.0 / 3.0))),
        past=draw(st.integers(-9, 9)),
        **reaches,
        **tensors,
    )


@st.composite
def cross_entropies(draw: st.DrawFn) -> CrossEntropy:
    dtype, direction = draw(DTYPES), draw(st.sampled_from(("fwd", "bwd")))
    shape = (draw(st.integers(1, 4)), draw(st.sampled_from(AWKWARD)))
    shape += draw(st.lists(st.sampled_from(AWKWARD[:5]), max_size=2).map(tuple))
    rows = (shape[0], *shape[2:])
    reduction = draw(st.sampled_from(("mean", "sum", "none")))
    kind = draw(st.sampled_from(("i64", "i32", "u8", dtype)))
    has_classes, real = kind != dtype, compute_dtype(dtype)
    tensors: dict[str, Any] = {
        "x": draw(descriptors(shape, dtype)),
        "target": draw(descriptors(rows if has_classes else shape, kind)),
        "loss": draw(descriptors(rows if reduction == "none" else (1,), dtype, is_output=direction == "fwd")),
    }
    if draw(st.booleans()):
        tensors["weight"] = draw(descriptors(shape[1:2], dtype))
    if direction == "bwd" or draw(st.booleans()):
        tensors["lse"] = draw(descriptors(rows, real, is_output=True))
        if has_classes and reduction == "mean":
            tensors["total"] = TensorDescriptor.packed((1,), real)
    if direction == "bwd":
        tensors["dx"] = draw(descriptors(shape, dtype, is_output=True))
    smoothing = draw(st.sampled_from((0.0, 0.0, 0.25)))
    return CrossEntropy(direction, reduction, smoothing=smoothing, **tensors)


@st.composite
def ctc_losses(draw: st.DrawFn) -> CtcLoss:
    dtype, direction = draw(DTYPES), draw(st.sampled_from(("fwd", "bwd")))
    t, n = draw(st.integers(0, 20)), draw(st.integers(0, 3))
    a, s = draw(st.sampled_from(AWKWARD)), draw(st.integers(0, 9))
    reduction = draw(st.sampled_from(("mean", "sum", "none")))
    index = st.sampled_from(("i64", "i32"))
    targets = (n, s) if draw(st.booleans()) else (draw(st.integers(0, n * s)),)
    return CtcLoss(
        direction, reduction, draw(st.sampled_from(("log_probs", "logits", "probs"))),
        draw(descriptors((t, n, a), dtype)), draw(descriptors(targets, draw(index))),
        draw(descriptors((n,), draw(index))), draw(descriptors((n,), draw(index))),
        draw(descriptors((n,) if reduction == "none" else (1,), dtype, is_output=direction == "fwd")), s,
        draw(st.integers(0, a - 1)), draw(st.booleans()),
        draw(descriptors((t, n, a), dtype, is_output=True)) if direction == "bwd" else None,
    )  # fmt: skip


@st.composite
def recurrents(draw: st.DrawFn) -> Recurrent:
    direction, cell = (
        draw(st.sampled_from(("fwd", "bwd_data", "bwd_weights"))),
        draw(st.sampled_from(RNN_CELLS)),
    )
    steps, batch, hidden = (
        draw(st.integers(1, 5)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(AWKWARD[1:])),
    )
    is_lstm, sequences = cell == "lstm", draw(st.sampled_from(("whole", "lengths", "packed")))
    plain = Recurrent(
        direction, cell, steps, batch, draw(st.sampled_from(AWKWARD)), hidden, draw(st.integers(1, 3)),
        draw(st.booleans()), draw(st.integers(0, hidden - 1)) if is_lstm else 0, draw(st.sampled_from(RNN_BIASES)),
        sequences, draw(st.integers(batch, steps * batch)), draw(st.sampled_from(("i32", "i64"))), draw(st.booleans()),
        draw(st.booleans()), draw(st.booleans()), draw(st.booleans()),
        draw(st.sampled_from((None, (-0.5, 3.0)))) if is_lstm else None, draw(st.sampled_from((0.0, 0.25))),
        draw(DTYPES),
    )  # fmt: skip
    chosen = draw(st.sets(st.sampled_from([o for o in plain.operands if o.dtypes is None]), max_size=3))
    outputs = plain.outputs
    return plain.arranged(
        [(o.name, draw(descriptors(o.descriptor.shape, plain.dtype, is_output=o in outputs))) for o in chosen]
    )


def problems() -> st.SearchStrategy[Problem]:
    """Any problem of any kind."""
    return st.one_of(
        convolutions(),
        fused_convolutions(),
        bias_gradients(),
        poolings(),
        unpoolings(),
        lrns(),
        divisive_norms(),
        softmaxes(),
        reductions(),
        activations(),
        matmuls(),
        additions(),
        normalizations(),
        attentions(),
        cross_entropies(),
        recurrents(),
        ctc_losses(),
    )
