"""Problem strings print and parse both ways, and say where they are wrong."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.errors import ParseError
from jitdnn.problems import (
    Activation,
    AddTensor,
    Attention,
    BatchNorm,
    BiasGradient,
    Convolution,
    CrossEntropy,
    CtcLoss,
    GroupNorm,
    LayerNorm,
    MatMul,
    Pooling,
    PRelu,
    Problem,
    Softmax,
    parse,
)
from jitdnn.tensor import TensorDescriptor
from paths import TESTS
from strategies import problems


@settings(max_examples=600, deadline=None)
@given(problems())
def test_round_trip(problem: Problem) -> None:
    again = parse(str(problem))
    assert again == problem
    assert hash(again) == hash(problem)
    assert str(again) == str(problem)
    assert again.operands == problem.operands


@settings(max_examples=100, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_words_come_in_any_order(problem: Problem, random_: random.Random) -> None:
    kind, *words = str(problem).split()
    random_.shuffle(words)
    assert parse("  ".join([kind, *words])) == problem


@settings(max_examples=50, deadline=None)
@given(problems())
def test_pickles_and_its_class_parses_it(problem: Problem) -> None:
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert type(problem).parse(str(problem)) == problem


# each string in canonical form, and the problem that it must be
CANONICAL = [
    (
        "conv_fwd n128 c96 h221 w221 k256 r7 s7 stride2 pad0 f32 nchw",
        Convolution.make("fwd", (128, 96, 221, 221), (256, 96, 7, 7), stride=2),
    ),
    (
        "conv_bwd_filter n2 c6 d4 h5 w6 k9 t1 r2 s3 stride1x2x3 pad0x1:2x1 dil1x1x2 g3 flip f64 nhwc",
        Convolution.make(
            "bwd_filter", (2, 6, 4, 5, 6), (9, 2, 1, 2, 3), stride=(1, 2, 3), padding=(0, (1, 2), 1),
            dilation=(1, 1, 2), groups=3, mode="convolution", dtype="f64", layout="nhwc",
        ),
    ),
    (
        "conv_bwd_data n1 c2 w9 k3 s4 stride1 pad1 f32 nhwc x=s100,-10,1 y=s0,7,1",
        Convolution(
            "bwd_data",
            TensorDescriptor((1, 2, 9), (100, -10, 1), "f32"),
            TensorDescriptor((3, 2, 4), (8, 1, 2), "f32"),
            TensorDescriptor((1, 3, 8), (0, 7, 1), "f32"),
            (1,), ((1, 1),), (1,),
        ),
    ),
    (
        "conv_fwd n1 c2 w9 k3 s4 stride1 pad0 f32 nhwc w=nchw",
        Convolution.make(
            "fwd", (1, 2, 9), TensorDescriptor.packed((3, 2, 4), "f32"), layout="nhwc"
        ),
    ),
    ("conv_bwd_bias n4 k3 p5 q6 f32 nhwc", BiasGradient.make((4, 3, 5, 6), layout="nhwc")),
    ("conv_bwd_bias n4 k3 f64 nchw db=s2", BiasGradient.make((4, 3), dtype="f64", db_strides=(2,))),
    (
        "pool_fwd max n8 c64 h112 w112 window3 stride2 pad0 caffe f32 nchw",
        Pooling.make("fwd", "max", (8, 64, 112, 112), 3, 2, rounding="caffe"),
    ),
    (
        "pool_bwd avg exclude_pad n1 c2 w7 window3 stride2 pad1:0 ceil f64 nhwc",
        Pooling.make("bwd", "avg", (1, 2, 7), 3, 2, ((1, 0),), False, "ceil", "f64", "nhwc"),
    ),
    (
        "pool_bwd max n1 c2 h4 w4 window2 stride2 pad0 f32 nchw dx=nhwc",
        Pooling.make(
            "bwd", "max", (1, 2, 4, 4), 2, dx=TensorDescriptor.packed((1, 2, 4, 4), "f32", "nhwc")
        ),
    ),
    ("softmax_fwd accurate shape32x1000 axis1 f32 nchw", Softmax.make("fwd", (32, 1000))),
    (
        "softmax_bwd log shape2x3x4x5 axis1x2x3 f64 nhwc dy=nchw",
        Softmax.make(
            "bwd", (2, 3, 4, 5), "instance", "log", "f64", "nhwc",
            dy=TensorDescriptor.packed((2, 3, 4, 5), "f64"),
        ),
    ),
    ("activation_fwd relu shape7 f32 nchw x=s0", Activation.make("fwd", "relu", (7,), x_strides=(0,))),
    ("activation_bwd tanh saved_y shape2x0 f32 nchw", Activation.make("bwd", "tanh", (2, 0), saved="y")),
    (
        "batch_norm_fwd spatial relu add shape2x3x4x5 factor0.1 epsilon1e-05 f32 nhwc",
        BatchNorm.make("fwd", (2, 3, 4, 5), activation="relu", adds=True, layout="nhwc"),
    ),
    (
        "batch_norm_inference per_activation shape2x3x4 epsilon0.001 no_bias narrow bf16 nchw",
        BatchNorm.make(
            "inference", (2, 3, 4), "per_activation", absent=("bias",), epsilon=1e-3, dtype="bf16", is_narrow=True
        ),
    ),
    (
        "batch_norm_bwd spatial tanh add shape2x3 no_weight f64 nchw",
        BatchNorm.make(
            "bwd", (2, 3), activation="tanh", adds=True, absent=("weight",), dtype="f64"
        ),
    ),
    (
        "layer_norm_fwd shape4x5x6 axis1 epsilon1e-05 no_save f16 nchw",
        LayerNorm.make("fwd", (4, 5, 6), -2, absent=("mean", "rstd"), dtype="f16"),
    ),
    ("layer_norm_bwd shape4x6 axis1 no_bias f32 nchw", LayerNorm.make("bwd", (4, 6), absent=("dbias",))),
    (
        "layer_norm_fwd shape4x6 axis1 epsilon1e-05 wide bf16 nchw",
        LayerNorm.make("fwd", (4, 6), dtype="bf16", is_wide=True),
    ),
    (
        "layer_norm_bwd shape4x6 axis1 narrow wide f16 nchw",
        LayerNorm.make("bwd", (4, 6), dtype="f16", is_narrow=True, is_wide=True),
    ),
    ("rms_norm_fwd shape4x6 axis0 epsilon0.0 f32 nchw", LayerNorm.make("fwd", (4, 6), 0, "rms", epsilon=0)),
    ("rms_norm_bwd shape4x6 axis1 f32 nchw", LayerNorm.make("bwd", (4, 6), 1, "rms")),
    (
        "group_norm_bwd leaky_relu shape2x6x4 groups6 no_bias wide bf16 nhwc",
        GroupNorm.make(
            "bwd", (2, 6, 4), 6, ("dbias",), dtype="bf16", layout="nhwc", is_wide=True, activation="leaky_relu"
        ),
    ),
    (
        "group_norm_fwd shape2x6x4x4 groups3 epsilon1e-05 f32 nhwc",
        GroupNorm.make("fwd", (2, 6, 4, 4), 3, layout="nhwc"),
    ),
    ("group_norm_bwd shape2x6x4 groups6 f32 nchw", GroupNorm.make("bwd", (2, 6, 4), 6)),
    (
        "attention_fwd n1 h2 t3 s4 d5 left2 right0 past1 save f32",
        Attention.make("fwd", (1, 2, 3, 5), (1, 2, 4, 5), (1, 2, 4, 5), lse=True, left=2, right=0, past=1),
    ),
    (
        "attention_bwd n1 h2 t3 s4 d5 kvh1 e6 scale0.5 boolmask lengths64 lo32 hi32 bf16",
        Attention.make(
            "bwd", (1, 2, 3, 5), (1, 1, 4, 5), (1, 1, 4, 6), "bf16", 0.5,
            mask=TensorDescriptor.packed((1, 2, 3, 4), "bool"), lengths=TensorDescriptor.packed((1,), "i64"),
            lo=TensorDescriptor.packed((3,), "i32"), hi=TensorDescriptor.packed((3,), "i32"),
        ),
    ),
    (
        "cross_entropy_fwd mean shape2x3 classes64 save f32 nchw",
        CrossEntropy.make("fwd", (2, 3), lse=True),
    ),
    (
        "cross_entropy_bwd none shape2x3x4 classes32 ignore0 smoothing0.25 weighted bf16 nhwc",
        CrossEntropy.make("bwd", (2, 3, 4), "i32", "none", True, 0, 0.25, "bf16", "nhwc"),
    ),
    ("ctc_loss_fwd mean log_probs t5 n2 a3 s2 f32", CtcLoss.make("fwd", (5, 2, 3), 2)),
    (
        "ctc_loss_bwd sum probs t5 n2 a4 s2 concatenated3 labels32 inlen32 blank3 zero_infinity f16",
        CtcLoss.make(
            "bwd", (5, 2, 4), TensorDescriptor.packed((3,), "i32"), "sum", "probs", 3, True, "f16",
            TensorDescriptor.packed((2,), "i32"), longest=2,
        ),
    ),
    ("prelu_fwd shape2x3x4 axis1 f32 nchw", PRelu.make("fwd", (2, 3, 4))),
    (
        "prelu_bwd shape2x3x4 single bf16 nhwc",
        PRelu.make(
            "bwd", (2, 3, 4), TensorDescriptor.packed((1,), "bf16"), dtype="bf16", layout="nhwc"
        ),
    ),
    ("matmul m2 k3 n4 f32 a=columns", MatMul.make((2, 3), (3, 4), a_strides=(1, 2))),
    ("matmul batch5x6 m2 k3 n4 f64 b=s0,12,4,1", MatMul.make((5, 6, 2, 3), (6, 3, 4), "f64")),
    ("add shape4x3x2 f32 nchw b=s0,1,0", AddTensor.make((4, 3, 2), (3, 1))),
    ("copy shape4x3x2 f32 nchw out=nhwc", AddTensor.make((4, 3, 2), out_strides=(6, 1, 3))),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), CANONICAL, ids=[text for text, _ in CANONICAL])
def test_canonical_strings(text: str, problem: Problem) -> None:
    assert str(problem) == text
    assert parse(text) == problem


def test_every_kind_has_a_canonical_string() -> None:
    """Here, or in the tests of its own operation."""
    kinds = {text.split()[0] for text, _ in CANONICAL}
    tests = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    missing = {kind for kind in Problem.registry if kind not in kinds and f"{kind} " not in tests}
    assert not missing


@pytest.mark.parametrize(
    ("loose", "canonical"),
    [
        ("conv_fwd n1 c2 w5 k3 s3", "conv_fwd n1 c2 w5 k3 s3 stride1 pad0 f32 nchw"),
        ("conv_fwd n1 c2 w5 k3 s3 nwc", "conv_fwd n1 c2 w5 k3 s3 stride1 pad0 f32 nhwc"),
        (
            "conv_fwd n1 c2 d5 h5 w5 k3 t1 r1 s3 ncdhw",
            "conv_fwd n1 c2 d5 h5 w5 k3 t1 r1 s3 stride1 pad0 f32 nchw",
        ),
        (
            "conv_fwd n1 c2 h5 w5 k3 r3 s3 pad1:1x1 dil1",
            "conv_fwd n1 c2 h5 w5 k3 r3 s3 stride1 pad1 f32 nchw",
        ),
        ("conv_fwd n1 c1 w5 k1 s3 x=s5,5,1", "conv_fwd n1 c1 w5 k1 s3 stride1 pad0 f32 nchw"),
        ("pool_fwd max n1 c2 w5 window2", "pool_fwd max n1 c2 w5 window2 stride2 pad0 f32 nchw"),
        # the extents of a transposed convolution's input, and what the stride leaves open
        (
            "conv_bwd_data n1 k8 p7 q7 c4 r3 s3 stride2 pad1 outpad1x0",
            "conv_bwd_data n1 c4 h14 w13 k8 r3 s3 stride2 pad1 f32 nchw",
        ),
    ],
)
def test_loose_strings(loose: str, canonical: str) -> None:
    assert str(parse(loose)) == canonical


# text, the word that is wrong (its column is the error's; None: the end of the text), a part of the message
REFUSED = [
    ("", None, "empty"),
    ("   ", None, "empty"),
    ("conv_forward n1", "conv_forward", "did you mean 'conv_fwd'"),
    ("conv_fwd n1 c2 w5 k3 s3 strde2", "strde2", "did you mean 'stride'"),
    ("conv_fwd n1 c2 w5 k3 s3 h", "h", "does not belong"),
    ("conv_fwd n1 c2 w5 k3 s3 outpad1", "outpad1", "does not belong"),
    ("conv_fwd n1 c2 w5 s3", None, "needs the word k<number>"),
    ("conv_fwd n1 n2 c2 w5 k3 s3", "n2", "repeats 'n1' at column 10"),
    ("conv_fwd n1 c2 w5 k3 s3 stride1x2x3", "stride1x2x3", "3 entries for 1 axes"),
    ("conv_fwd n1 c2 h5 w5 k3 r3 s3 stride1x2x3", "stride1x2x3", "give one, or 2"),
    ("conv_fwd n1 c2 w5 k3 s3 pad1:2:3", "pad1:2:3", "not a padding"),
    ("conv_fwd n1 c2 w5.5 k3 s3", "w5.5", "not an integer"),
    ("conv_fwd n1 c2 w5 k3 s3 f32 f64", "f64", "contradicts 'f32'"),
    ("conv_fwd n1 c2 w5 k3 s3 nchw nwc", "nwc", "contradicts 'nchw'"),
    ("conv_fwd n1 c2 w5 k3 s3 ndhwc", "ndhwc", "does not fit 3"),
    ("conv_fwd n1 c2 w5 k3 s3 x=s1,2", "x=s1,2", "3 dims and 2 strides"),
    ("conv_fwd n1 c2 w5 k3 s3 x=hwcn", "x=hwcn", "no memory order"),
    ("conv_fwd n1 c2 w5 k3 s3 x=s1,2,a", "x=s1,2,a", "not an integer"),
    ("conv_fwd n1 c2 w5 k3 s3 dy=nchw", "dy=nchw", "does not belong"),
    ("conv_fwd n1 c2 w5 k3 s3 f8", "f8", "does not belong"),
    ("pool_fwd n1 c2 w5 window2", None, "one of max, avg is missing"),
    ("pool_fwd max exclude_pad n1 c2 w5 window2", "exclude_pad", "does not belong"),
    ("pool_fwd max n1 c2 w5 window2 ceil caffe", "caffe", "contradicts"),
    ("softmax_fwd shape3x4 axis1 quick", "quick", "does not belong"),
    ("activation_fwd shape3x4", None, "is missing"),
    ("activation_fwd relu saved_y shape3x4", "saved_y", "does not belong"),
    ("matmul m2 k3 n4 a=rows c=t", "c=t", "write rows, columns or strides"),
    ("matmul m2 k3 n4 nhwc", "nhwc", "does not belong"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word", "message"), REFUSED)
def test_parse_errors(text: str, word: str | None, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert caught.value.text == text
    if word is None:
        assert caught.value.column == (len(text) + 1 if text.strip() else 1)
    else:
        assert text[caught.value.column - 1 :].split()[0] == word


def test_a_class_parses_only_its_own_kinds() -> None:
    with pytest.raises(ParseError, match="unknown problem kind 'pool_fwd'"):
        Convolution.parse("pool_fwd max n1 c2 w5 window2")
