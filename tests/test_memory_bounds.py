"""No kernel reads or writes past its tensors: each runs with a forbidden page on either side of them.

That holds for tensors that are larger than 32 bits can count, too.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jitdnn.problems import parse

PROGRAM = Path(__file__).with_name("guarded_run.py")

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
    # offsets, in elements, that do not fit into 32 bits: most of this memory is never touched
    "far apart": [
        "conv_fwd n2 c3 h5 w6 k19 r3 s3 pad1 x=s2147483650,30,6,1 y=s2200000001,30,6,1",
        "conv_fwd n1 c3 h5 w6 k3 r3 s3 pad1 nhwc x=s9,1,2147483648,3 y=s9,1,2147483648,3",
        "conv_fwd n1 c19 h2 w3 k5 r1 s1 x=s1,300000000,3,1 w=s300000000,1,1,1",
        "conv_fwd n1 c5 h5 w6 k5 r3 s3 pad1 g5 x=s1,1500000000,6,1 y=s1,1500000000,6,1",
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
    program = f"import ctypes, guarded_run as g; ctypes.string_at(g.{access}, 1)"
    run = subprocess.run([sys.executable, "-c", program], cwd=PROGRAM.parent, check=False)
    assert run.returncode == -signal.SIGSEGV
