"""No kernel reads or writes past its tensors: each runs with a forbidden page on either side of them."""

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
