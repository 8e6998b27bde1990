"""One module serves several shapes of a layer: numbers of images, and of the channels that may be many."""

from __future__ import annotations

import pytest

from jitdnn import targets
from jitdnn.kernels.cuda.table import ALGORITHMS
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.recording import recording


def texts(words: str, name: str) -> set[str]:
    """All that is compiled for a problem by an algorithm on an H100."""
    problem = Convolution.parse(words)
    algorithm = next(one for one in ALGORITHMS[Convolution, problem.direction] if one.name == name)
    with recording() as made:
        algorithm.build(problem, targets.on_paper("sm_90a"))  # type: ignore[arg-type]
    assert made
    return {one.text for one in made}


@pytest.mark.parametrize(
    ("name", "words", "numbers"),
    [
        *(
            ("stem", f"{direction} n{{}} c3 h32 w32 k32 r5 s5 pad2 bf16 nhwc", (1000, 1024))
            for direction in ("fwd", "bwd_data", "bwd_filter")
        ),
        ("stem", "fwd n256 c{} h32 w32 k12 r3 s3 pad1 bf16 nhwc", (88, 136)),
        ("stem", "bwd_data n256 c{} h32 w32 k12 r3 s3 pad1 bf16 nhwc", (100, 124)),
        ("implicit_gemm_wgmma", "fwd n64 c{} h14 w14 k96 r1 s1 bf16 nhwc", (384, 576)),  # stages of the ring
        ("implicit_gemm_wgmma", "fwd n128 c{} h14 w14 k160 r1 s1 bf16 nhwc", (512, 528)),
        ("stem", "bwd_filter n256 c{} h32 w32 k12 r3 s3 pad1 bf16 nhwc", (52, 100)),
        *(
            ("grouped", f"{direction} n{{}} c128 h28 w28 k128 r3 s3 pad1 g32 bf16 nhwc", (63, 64))
            for direction in ("fwd", "bwd_data", "bwd_filter")
        ),
        ("grouped", "bwd_data n{} c128 h56 w56 k128 r3 s3 stride2 pad1 g32 bf16 nhwc", (64, 128)),
        ("depthwise_sliding", "fwd n{} c144 h56 w56 k144 r3 s3 pad1 g144 bf16 nhwc", (64, 66)),
        *(
            ("depthwise_banded", f"{direction} n{{}} c96 h56 w56 k96 r7 s7 pad3 g96 bf16 nhwc", (63, 64))
            for direction in ("fwd", "bwd_data", "bwd_filter")
        ),
        ("planar", "fwd n{} c128 h28 w28 k128 r3 s3 pad1 g32 f32 nchw", (63, 64)),
    ],
)
def test_numbers_are_arguments(name: str, words: str, numbers: tuple[int, int]) -> None:
    one, other = (texts(f"conv_{words.format(number)}", name) for number in numbers)
    assert one == other


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grouped", "n64 c128 h28 w28 k128 r3 s3 pad1 g32 bf16 nhwc"),
        ("grouped", "n64 c128 h28 w28 k128 r3 s3 pad1 g32 bf16 nchw"),
        ("depthwise_banded", "n64 c96 h56 w56 k96 r7 s7 pad3 g96 bf16 nhwc"),
        ("depthwise_sliding", "n64 c96 h56 w56 k96 r3 s3 pad1 g96 bf16 nhwc"),
    ],
)
def test_directions_share_modules(name: str, words: str) -> None:
    """Without strides a data gradient is a forward convolution with mirrored taps."""
    assert texts(f"conv_fwd {words}", name) == texts(f"conv_bwd_data {words}", name)
