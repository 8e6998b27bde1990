"""No kernel reads or writes past its tensors: each runs with a forbidden page on either side of them.

That holds for tensors that are larger than 32 bits can count, too.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from jitdnn.problems import parse
from paths import HELPERS

PROGRAM = HELPERS / "guarded_run.py"

SHAPES = [
    "n2 c5 h9 w7 k19 r3 s3 pad1",
    "n1 c19 h5 w7 k5 r3 s3 pad1:0x2 stride2 nhwc",
    "n1 c9 h5 w7 k21 r1 s1",
    "n1 c3 h11 w13 k18 r5 s5 stride2 nhwc",
    "n1 c19 h7 w9 k19 r3 s3 pad1 g19",
    "n1 c35 h7 w9 k35 r3 s3 pad1 g35 nhwc",
    "n1 c9 h7 w9 k6 r3 s3 g3 dil2 f64",
    "n1 c5 w37 k7 s5",
    "n1 c3 d3 h4 w5 k5 t2 r2 s2",
]
PROBLEMS = {
    **{d: [f"conv_{d} {words}" for words in SHAPES] for d in ("fwd", "bwd_data", "bwd_filter")},
    "pooling": [
        f"pool_{direction} {mode} {words}"
        for direction in ("fwd", "bwd")
        for mode in ("max", "avg")
        for words in (
            "n1 c3 h7 w9 window3 stride2 pad1 ceil",
            "n1 c19 h7 w9 window3 stride2 nhwc",
            "n1 c2 w37 window2 f64",
        )
    ],
    "rest": [
        "conv_bwd_bias n2 k19 p3 q5",
        "conv_bwd_bias n2 k19 p3 q5 nhwc",
        "softmax_fwd accurate shape3x19 axis1",
        "softmax_fwd log shape2x19x5 axis1",
        "softmax_bwd accurate shape3x19 axis1",
        "softmax_bwd log shape2x19x5 axis1",
        "activation_fwd tanh shape37",
        "activation_bwd sigmoid shape3x7 f64",
        "activation_fwd relu shape2x3x5 y=nhwc",
        "matmul m17 k9 n19",
        "matmul m17 k9 n19 a=columns b=columns f64",
        "matmul batch2 m3 k5 n7 c=columns",
        "add shape3x19 b=s0,1",
        "add shape3x19 b=s1,0",
        "copy shape2x5x7 out=nhwc",
        "copy shape19x17 a=s1,19",
    ],
    "element by element": [
        "activation_fwd gelu shape3x37 bf16",
        "activation_bwd swish shape2x3x7 f16 x=nhwc",
        "prelu_fwd shape2x19x5",
        "prelu_fwd single shape37 bf16",
        "prelu_bwd shape2x19x5 bf16",
        "prelu_bwd axis0 shape3x37 f32",
        "op_tensor mul shape3x19 b=s0,1",
        "op_tensor sqrt shape3x5x7 bf16",
        "fill shape37 bf16",
        "fill shape3x19 i8",
        "fill shape3x5 i64 out=s1,3",
        "dropout p0.3 shape3x37 mask",
        "dropout p0.5 shape2x5x7 bf16",
        "random uniform low-1.0 high2.0 shape3x37",
        "random normal mean0.5 std2.0 shape37 bf16",
        "random bernoulli p0.3 shape41 f16",
    ],
    "moving": [
        "transform shape3x5x7 pad1:2x0x3 f32",
        "transform shape2x19x5x3 pad0x1x0x2 bf16 x=nhwc",
        "transform shape3x37 pad0 f32 to_i8",
        "transform shape19x17 pad0 i8 y=s1,19",
        "transform shape3x37 pad0 bf16 to_f32",
        "fold shape2x5x6x9 by2x3 f32",
        "fold shape1x3x4x6 by2x2 u8",
        "unfold shape2x12x3x5 by2x3 bf16 nhwc",
        "concat shape4x9x5 axis1 parts2x3x4 f32",
        "concat shape4x9x5 axis0 parts1x0x3 i64",
        "concat shape1x19x5x3 axis1 parts2x17 bf16 nhwc",
        "embedding_fwd rows10 columns7 shape5x2 indices32",
        "embedding_fwd rows3 columns37 shape5 indices64 bf16",
        "embedding_bwd rows10 columns7 shape5 indices64 padding3",
        "embedding_bwd rows3 columns37 shape7 indices32 bf16",
    ],
    "reductions": [
        "reduce add shape5x19 axis1",
        "reduce max shape3x37 axis0 bf16 indices_i32",
        "reduce min shape3x5x7 axis0x2 indices_i64",
        "reduce norm2 shape37x3 axis0 f16",
        "softmax_fwd log shape3x37 axis1 bf16",
        "softmax_bwd accurate shape2x19x5 axis1 f16",
        "batch_norm_fwd spatial relu add shape2x19x5",
        "batch_norm_fwd per_activation shape3x19 bf16",
        "batch_norm_inference spatial tanh add shape2x19x5 nhwc bf16",
        "batch_norm_bwd spatial relu add shape2x19x5 nhwc",
        "batch_norm_bwd per_activation shape3x19 bf16",
        "layer_norm_fwd shape3x37",
        "layer_norm_fwd shape2x3x7 axis1 bf16",
        "layer_norm_bwd shape3x37",
        "layer_norm_bwd shape5x19 bf16",
        "rms_norm_fwd shape3x37 bf16",
        "rms_norm_bwd shape3x37",
        "group_norm_fwd shape2x6x7 groups3 bf16",
        "group_norm_fwd shape2x21x5 groups3 nhwc",
        "group_norm_bwd shape2x6x7 groups3",
        "group_norm_bwd shape2x6x3x3 groups2 nhwc bf16",
    ],
    "windows": [
        "pool_fwd max n1 c3 h7 w9 window3 stride2 pad1 indices64 bf16",
        "pool_fwd max n1 c19 h7 w9 window3 stride2 indices32 nhwc",
        "pool_fwd avg n1 c3 h7 w9 window3 dil2 bf16",
        "pool_fwd avg n1 c3 h5 w19 adaptive3x4 f16",
        "pool_fwd max n1 c19 h7 w9 window3 i8 nhwc",
        "pool_bwd max n1 c3 h7 w9 window3 stride2 pad1 bf16",
        "pool_bwd avg n1 c19 h5 w9 adaptive3x4 nhwc",
        "unpool_fwd shape1x19x5 to9 indices64",
        "unpool_fwd shape2x3x4x5 to8x10 indices32 bf16 nhwc",
        "unpool_bwd shape1x19x5 to9 indices64 bf16",
        "unpool_bwd shape2x3x5 to9 indices32 nhwc",
        "lrn_fwd across shape2x19x5 size5",
        "lrn_fwd within shape2x3x7x5 size3 bf16 nhwc",
        "lrn_bwd across shape2x19x5 size5 bf16",
        "lrn_bwd within shape2x3x7x5 size3",
        "divisive_norm_fwd shape2x3x7 size4 bf16",
        "divisive_norm_bwd means shape2x3x7x5 size3 nhwc",
    ],
    "sampling": [
        "resize_fwd nearest asymmetric floor shape2x3x5 out9 bf16",
        "resize_fwd linear half_pixel shape1x3x5x7 out9x19",
        "resize_fwd cubic half_pixel shape1x19x5x7 out3x4 nhwc bf16",
        "resize_bwd linear half_pixel shape1x3x5x7 out9x19",
        "resize_bwd nearest asymmetric floor shape1x19x5x7 out3x9 nhwc",
        "affine_grid_fwd shape2x5x7",
        "affine_grid_bwd shape2x3x5x7 align_corners bf16",
        "grid_sample_fwd linear zeros shape1x3x5x7 out4x9",
        "grid_sample_fwd nearest border shape1x19x3x4 out2x9 bf16 nhwc",
        "grid_sample_bwd_data linear reflection shape1x3x5x7 out4x9",
        "grid_sample_bwd_data linear zeros shape1x19x5x7 out4x6 nhwc bf16",
        "grid_sample_bwd_grid linear border shape1x3x5x7 out4x9",
    ],
    "losses": [
        "cross_entropy_fwd mean shape5x33 classes64 weighted save",
        "cross_entropy_fwd none shape2x19x7 classes32 smoothing0.25 bf16 save",
        "cross_entropy_fwd sum shape3x37 bf16",
        "cross_entropy_fwd mean shape70x3 classes8 weighted save",
        "cross_entropy_bwd mean shape5x33 classes64 weighted",
        "cross_entropy_bwd none shape2x19x7 classes32 nhwc bf16",
        "ctc_loss_fwd none t7 n3 a5 s3",
        "ctc_loss_fwd mean logits t19 n2 a37 s16 bf16",
        "ctc_loss_bwd none logits t7 n3 a5 s3 concatenated7",
        "ctc_loss_bwd sum probs t9 n2 a17 s4 bf16",
    ],
    "sequences": [
        "attention_fwd n1 h2 t17 s31 d9 save",
        "attention_fwd n2 h4 t5 s37 d7 kvh2 boolmask bf16 save",
        "attention_fwd n1 h1 t19 s21 d16 e33 q=nthd k=nthd lengths64 right0",
        "attention_bwd n1 h2 t17 s31 d9 addmask",
        "attention_bwd n2 h2 t5 s37 d7 lo32 hi64 bf16",
        "rnn_fwd lstm t3 n3 inputs9 hidden20 layers2 bidirectional proj6 lengths64 training f32",
        "rnn_fwd gru t2 n3 inputs9 hidden20 bidirectional f32",
        "rnn_bwd_data lstm t3 n3 inputs9 hidden20 layers2 bidirectional proj6 lengths64 f32",
        "rnn_bwd_weights lstm t3 n3 inputs9 hidden20 layers2 bidirectional proj6 lengths64 f32",
        "rnn_fwd gru t3 n3 inputs5 hidden17 packed32 rows7 training bf16",
        "rnn_bwd_data gru t3 n3 inputs5 hidden17 packed32 rows7 bf16",
        "rnn_bwd_weights gru t3 n3 inputs5 hidden17 packed32 rows7 bf16",
    ],
    "products": [
        "conv_fwd n1 c5 h7 w9 k19 r3 s3 pad1 bf16",
        "conv_bwd_data n1 c19 h5 w7 k5 r3 s3 pad1 nhwc bf16",
        "conv_bwd_filter n1 c5 h7 w9 k19 r3 s3 f16",
        "conv_bwd_bias n2 k19 p3 q5 bf16",
        "matmul m17 k9 n19 bf16",
        "add shape3x19 bf16 b=s0,1",
        "copy shape19x17 bf16 a=s1,19",
    ],
    "integers": [
        "conv_fwd n2 c5 h9 w7 k19 r3 s3 pad1 i8 to_i32",
        "conv_fwd n1 c70 h5 w7 k5 r3 s3 pad1:0x2 stride2 i8 nhwc",
        "conv_fwd n1 c9 h5 w7 k21 r1 s1 i8 to_i8",
        "conv_fwd n1 c3 h11 w13 k18 r5 s5 stride2 i8 to_i8 nhwc",
        "conv_fwd n1 c18 h7 w9 k6 r3 s3 g3 dil2 i8 to_i32",
        "conv_fwd n1 c66 w37 k7 s5 i8 to_i32 nhwc",
        "conv_fwd n1 c5 d3 h4 w5 k5 t2 r2 s2 i8",
        # one element for a row of pixels, or of taps, and fewer channels than a quad has
        "conv_fwd n5 c1 h15 w10 k3 r4 s2 pad3 dil3x1 i8 to_i32 x=s0,3,-2,0 w=s1,1,3,12 y=s8856,1,369,8",
        "conv_fwd n2 c2 h5 w18 k20 r1 s1 pad1 i8 x=s0,9000,1,0",
        "conv_fwd n2 c3 h9 w9 k20 r3 s3 pad1 i8 w=s9000,3000,1,0",
    ],
    # offsets, in elements, that do not fit into 32 bits: most of this memory is never touched
    "far apart": [
        "conv_fwd n2 c3 h5 w6 k19 r3 s3 pad1 x=s2147483650,30,6,1 y=s2200000001,30,6,1",
        "conv_fwd n1 c3 h5 w6 k3 r3 s3 pad1 nhwc x=s9,1,2147483648,3 y=s9,1,2147483648,3",
        "conv_fwd n1 c19 h2 w3 k5 r1 s1 x=s1,300000000,3,1 w=s300000000,1,1,1",
        "conv_fwd n1 c5 h5 w6 k5 r3 s3 pad1 g5 x=s1,1500000000,6,1 y=s1,1500000000,6,1",
        "conv_fwd n2 c19 h5 w6 k19 r3 s3 pad1 i8 to_i32 x=s4294967300,100000000,6,1 w=s1500000000,9,3,1",
        "conv_bwd_data n2 c3 h5 w6 k19 r3 s3 pad1 x=s2147483650,30,6,1 y=s2200000001,30,6,1",
        "conv_bwd_data n1 c5 h5 w6 k5 r3 s3 pad1 g5 nhwc x=s9,1,1500000000,5 y=s9,1,1500000000,5",
        "conv_bwd_filter n2 c3 h5 w6 k19 r3 s3 pad1 x=s2147483650,30,6,1 y=s2200000001,30,6,1",
        "conv_bwd_filter n1 c19 h2 w3 k5 r3 s3 pad1 w=s1500000000,9,3,1",
        "conv_bwd_bias n2 k19 q5 dy=s2147483650,5,1",
        "pool_fwd max n2 c3 h5 w6 window2 x=s2147483650,30,6,1 y=s2147483650,6,3,1",
        "pool_fwd avg n1 c19 h5 w6 window2 nhwc x=s99,1,2147483650,20 y=s99,1,2147483650,20",
        "pool_bwd max n2 c3 h5 w6 window2 dx=s2147483650,30,6,1",
        "pool_bwd avg n2 c19 h5 w6 window2 nhwc dx=s2147483650,1,1000,20",
        "softmax_fwd accurate shape3x19 axis1 x=s1500000000,1 y=s1500000000,1",
        "softmax_fwd accurate shape3x4 axis1 x=s1,1500000000",
        "softmax_bwd accurate shape3x19 axis1 dx=s1500000000,1",
        "activation_fwd relu shape3x19 x=s1500000000,1 y=s1,1500000000",
        "activation_bwd tanh shape3x19 dx=s1500000000,1",
        "matmul m3 k5 n19 a=s1500000000,1 c=s1500000000,1",
        "matmul m3 k5 n19 b=s1500000000,1",
        "matmul batch3 m3 k5 n19 c=s1500000000,19,1",
        "add shape3x19 a=s1500000000,1 b=s-1500000000,1 out=s1,1500000000",
        "copy shape3x19 a=s1500000000,1",
    ],
}

# rows of so many elements: fewer than a vector of any instruction set, one more, one less, and two vectors and one
ROWS = (*range(1, 10), 15, 16, 17, 31, 33)
# what goes along rows; {n} is the extent, {step} the stride of neighbours
SHORT = [
    "cross_entropy_fwd mean shape5x{n} classes64 weighted save {dtype} x=s{pitch},{step}",
    "cross_entropy_fwd none shape3x{n}x7 classes32 {dtype} save",
    "cross_entropy_fwd none shape37x{n} classes32 {dtype} target=s{step}",
    "cross_entropy_fwd sum shape2x{n} smoothing0.25 {dtype}",
    "cross_entropy_bwd mean shape5x{n} classes64 weighted {dtype} weight=s{step}",
    "softmax_fwd log shape3x{n} axis1 {dtype} x=s{pitch},{step}",
    "softmax_bwd accurate shape3x{n} axis1 {dtype} dy=s{pitch},{step}",
    "reduce add shape5x{n} axis1 {dtype} x=s{pitch},{step}",
    "reduce max shape{n}x5 axis0 {dtype} indices_i32",
    "layer_norm_fwd shape3x{n} {dtype} weight=s{step}",
    "activation_fwd tanh shape{n} {dtype} x=s{step}",
    "lrn_fwd across shape2x{n}x3 size5 {dtype} nhwc",
]
DTYPES = ("f32", "bf16", "f64", "f16")
STEPS = (1, 2, -1, 3, -2)
for _number, _n in enumerate(ROWS):
    for _place, _words in enumerate(SHORT):
        if (
            _number + _place
        ) % 3 == 0:  # each row meets a third of the operations, each operation a third of the rows
            _turn = _number // 3 + _place
            _step = STEPS[_turn % len(STEPS)]
            PROBLEMS.setdefault("short rows", []).append(
                _words.format(n=_n, step=_step, pitch=_n * abs(_step) + 1, dtype=DTYPES[_turn % len(DTYPES)])
            )

# probabilities whose last vector is cut short: its masked load must not be folded and taken apart again
PROBLEMS["short rows"] += [
    f"cross_entropy_bwd sum shape{rows}x{classes} smoothing0.1 {dtype} nchw{order}"
    for rows, classes, dtype in ((23, 17, "f32"), (32, 17, "f64"), (5, 33, "f32"))
    for order in ("", f" target=s{classes + 40},1")
]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")


@pytest.mark.parametrize("group", PROBLEMS)
def test_kernels_stay_inside_their_tensors(group: str) -> None:
    text = "\n".join(PROBLEMS[group])
    run = subprocess.run(
        [sys.executable, str(PROGRAM)], input=text, capture_output=True, text=True, check=False
    )
    last = run.stdout.strip().rsplit("\n", 1)[-1]
    assert run.returncode != -signal.SIGSEGV, f"touched what is not its own: {last}"
    assert run.returncode == 0, f"{last}\n{run.stderr[-2000:]}"
    for problem in PROBLEMS[group]:
        assert run.stdout.count(str(parse(problem)) + "\n") >= 2, f"{problem} was not run at both edges"


@pytest.mark.parametrize("access", ["Room(64, True).pointer + 64", "Room(64, False).pointer - 1"])
def test_the_forbidden_pages_are(access: str) -> None:
    program = f"import ctypes, guarded_memory as g; ctypes.string_at(g.{access}, 1)"
    run = subprocess.run([sys.executable, "-c", program], cwd=PROGRAM.parent, check=False)
    assert run.returncode == -signal.SIGSEGV
