"""What is asked of cuDNN, and how, with a library of Python in its place; `gpu/test_cudnn.py` has the real one."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import SCALES, Buffer, Workspace, compare, make_case
from fake_cudnn import NOT_SUPPORTED, WORKSPACE, FakeCudnn
from jitdnn.devices import cuda
from jitdnn.errors import DeviceError
from jitdnn.kernels.algorithm import Algorithm, Epilogue
from jitdnn.kernels.cudnn import convolution, library
from jitdnn.kernels.reference import REFERENCE
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Convolution, Problem, Softmax, parse
from jitdnn.rtcg.expression import apply, trace
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
DEVICE = replace(cuda.offline("sm_90a"), index=0)
PLAIN = "conv_fwd n2 c4 h6 w7 k6 r3 s3 pad1 f32"
SHAPES = {
    "plain": "n2 c4 h6 w7 k6 r3 s3 pad1",
    "stride": "n2 c4 h8 w9 k6 r3 s2 stride2x1 pad1x0 dil1x2",
    "groups": "n2 c6 h6 w5 k9 r3 s3 pad1 g3",
    "flip": "n2 c4 h6 w7 k6 r3 s2 flip",
    "single": "n1 c1 h6 w7 k1 r1 s1",
    "1-d": "n2 c4 w9 k6 s3 stride2 pad2 dil2",
    "3-d": "n2 c3 d4 h5 w6 k4 t2 r3 s2 stride1x2x1 pad1x0x1",
}


def replaced(monkeypatch: pytest.MonkeyPatch, fake: FakeCudnn) -> library.Library:
    """Have the package find the fake, and ask no driver."""
    found = library.Library(fake, "fake")
    monkeypatch.setattr(library, "_found", lambda: found)
    for module in (library, convolution):
        monkeypatch.setattr(module, "current", lambda index: nullcontext())
        monkeypatch.setattr(module, "relaxed", nullcontext)
    monkeypatch.setattr(convolution, "is_current", lambda index: True)
    return found


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    made = FakeCudnn()
    replaced(monkeypatch, made)
    yield made
    assert not made.problems


def named(name: str, problem: Problem) -> Algorithm:
    return next(a for a in algorithms(problem, "cuda", "only") if a.name == name)


def first(problem: Problem) -> Algorithm:
    return algorithms(problem, "cuda", "only")[0]


def check(problem: Problem) -> None:
    """Every algorithm, in memory that shows misuse."""
    case = make_case(problem)
    for algorithm in algorithms(problem, "cuda", "only"):
        if algorithm.refuse(problem, DEVICE) is not None:
            assert algorithm.name.endswith("_tf32"), algorithm.refuse(problem, DEVICE)
            continue
        kernel = algorithm.build(problem, DEVICE)
        for alpha, beta in SCALES:
            output = Buffer(problem.output)
            if beta:
                output.values[...] = case.previous[0]
            outside = output.outside()
            pointers = [buffer.pointer for buffer in (*case.inputs, output)]
            kernel(None, pointers, alpha, beta, Workspace(WORKSPACE).pointer)
            compare([output.values], case, alpha, beta, 1e-15 if problem.dtype == "f64" else 1e-2)
            assert (output.outside() == outside).all()


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_described_is_the_problem(
    shape: str, direction: str, dtype: str, layout: str, fake: FakeCudnn
) -> None:
    check(parse(f"conv_{direction} {SHAPES[shape]} {dtype} {layout}"))
    assert {run.direction for run in fake.runs} == {direction}
    assert {run.compute for run in fake.runs} == {"f64" if dtype == "f64" else "f32"}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_parts_of_larger_tensors_keep_their_strides(direction: str, fake: FakeCudnn) -> None:
    whole = TensorDescriptor.packed((4, 8, 5, 5), "f32")
    part = TensorDescriptor((2, 3, 5, 5), whole.strides, "f32")
    last = TensorDescriptor((2, 3, 5, 5), TensorDescriptor.packed((4, 8, 5, 5), "f32", "nhwc").strides, "f32")
    for side in (part, last):
        w = TensorDescriptor.packed((3, 3, 3, 3), "f32")
        check(Convolution(direction, side, w, side, (1, 1), ((1, 1), (1, 1)), (1, 1)))
        assert fake.runs[-1].problem.x == side


def test_strides_of_single_places_are_those_of_a_dense_tensor(fake: FakeCudnn) -> None:
    """Whatever a part of something larger says of them: the library compares strides to know a layout."""
    x = TensorDescriptor((1, 4, 5, 5), (9999, 25, 5, 1), "f32")
    y = TensorDescriptor((1, 1, 5, 5), (7777, 0, 5, 1), "f32")
    w = TensorDescriptor((1, 4, 1, 1), (0, 1, 55, -3), "f32")
    check(Convolution("fwd", x, w, y, (1, 1), ((0, 0), (0, 0)), (1, 1)))
    seen = fake.runs[-1].problem
    assert (seen.x.layout, seen.w.layout, seen.y.layout) == ("nchw", "nchw", "nchw")


def test_a_filter_that_is_dense_either_way_has_the_order_of_the_data(fake: FakeCudnn) -> None:
    for layout in ("nchw", "nhwc"):
        problem = parse(f"conv_fwd n2 c8 h5 w5 k8 r3 s3 g8 f32 {layout}")
        check(problem)
        seen = fake.runs[-1].problem
        assert (seen.x.layout, seen.y.layout) == (layout, layout)


def test_products_are_rounded_only_where_that_was_asked_for(fake: FakeCudnn) -> None:
    math = {"f32": 3, "f64": 0, "f16": 1, "bf16": 1}
    for direction in DIRECTIONS:
        for dtype, expected in math.items():
            problem = parse(f"conv_{direction} {SHAPES['plain']} {dtype}")
            fake.runs.clear()
            check(problem)
            assert {run.math for run in fake.runs} == ({1, 3} if dtype == "f32" else {expected})
            for algorithm in algorithms(problem, "cuda", "only"):
                wide = "fp64" if dtype == "f64" else "fp32"
                assert algorithm.arithmetic(problem) == ("tf32" if algorithm.name.endswith("_tf32") else wide)


def test_numbers_of_algorithms(fake: FakeCudnn) -> None:
    """Those of the library's header."""
    expected = {
        "fwd": {"implicit_gemm": 0, "implicit_precomp_gemm": 1, "gemm": 2, "fft": 4, "fft_tiling": 5, "winograd": 6,
                "winograd_nonfused": 7},
        "bwd_data": {"algo_0": 0, "algo_1": 1, "fft": 2, "fft_tiling": 3, "winograd": 4, "winograd_nonfused": 5},
        "bwd_filter": {"algo_0": 0, "algo_1": 1, "fft": 2, "algo_3": 3, "winograd_nonfused": 5, "fft_tiling": 6},
    }  # fmt: skip
    loose = {("bwd_data", 0), ("bwd_filter", 0), ("bwd_filter", 3)}
    for direction in DIRECTIONS:
        problem = parse(f"conv_{direction} {SHAPES['plain']} f32")
        case, output = make_case(problem), Buffer(problem.output)
        pointers = [buffer.pointer for buffer in (*case.inputs, output)]
        numbers = {}
        for algorithm in algorithms(problem, "cuda", "only"):
            algorithm.build(problem, DEVICE)(0, pointers, 1.0, 0.0, 64)
            number = fake.runs[-1].algorithm
            numbers[algorithm.name.removeprefix("cudnn_").removesuffix("_tf32")] = number
            assert algorithm.deterministic == ((direction, number) not in loose)
        assert numbers == expected[direction]


def test_workspace_is_asked_for_once_and_handed_on(fake: FakeCudnn) -> None:
    problem = parse(PLAIN)
    gemm = named("cudnn_gemm", problem)
    fake.needs[2] = 12345
    assert gemm.refuse(problem, DEVICE) is None
    assert gemm.workspace(problem, DEVICE) == 12345
    assert 0 < gemm.estimate(problem, DEVICE) < 1
    assert fake.calls["cudnnGetConvolutionForwardWorkspaceSize"] == 1
    case, output = make_case(problem), Buffer(problem.output)
    pointers = [buffer.pointer for buffer in (*case.inputs, output)]
    gemm.build(problem, DEVICE)(None, pointers, 1.0, 0.0, 0xABC0)
    assert (fake.runs[0].workspace, fake.runs[0].size) == (0xABC0, 12345)


def test_streams_are_set_when_they_change(fake: FakeCudnn) -> None:
    problem = parse(PLAIN)
    kernel = first(problem).build(problem, DEVICE)
    case, output = make_case(problem), Buffer(problem.output)
    pointers = [buffer.pointer for buffer in (*case.inputs, output)]
    for stream in (None, 0, 77, 77, 1, None):
        kernel(stream, pointers, 1.0, 0.0, 0)
    assert [run.stream for run in fake.runs] == [0, 0, 77, 77, 1, 0]
    assert fake.calls["cudnnSetStream"] == 3


def test_every_thread_has_a_handle_and_leaves_it_to_the_next(fake: FakeCudnn) -> None:
    problem = parse(PLAIN)
    kernel = first(problem).build(problem, DEVICE)
    case = make_case(problem)
    meeting = threading.Barrier(3)

    def work() -> None:
        output = Buffer(problem.output)
        pointers = [buffer.pointer for buffer in (*case.inputs, output)]
        meeting.wait()
        for _ in range(3):
            kernel(None, pointers, 1.0, 0.0, 0)
        meeting.wait()

    for _ in range(2):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
    assert len(fake.runs) == 18
    assert fake.alive("Handle") == 4  # one is the main thread's
    for handle in {run.handle for run in fake.runs}:
        assert len({run.thread for run in fake.runs[:9] if run.handle == handle}) == 1


def test_descriptors_live_as_long_as_the_kernel(fake: FakeCudnn) -> None:
    problem = parse(PLAIN)
    kernel = first(problem).build(problem, DEVICE)
    gc.collect()
    kinds = ("TensorDescriptor", "FilterDescriptor", "ConvolutionDescriptor")
    assert [fake.alive(kind) for kind in kinds] == [2, 1, 1]
    del kernel
    gc.collect()
    assert [fake.alive(kind) for kind in kinds] == [0, 0, 0]


def test_what_was_made_before_a_failure_is_destroyed(fake: FakeCudnn) -> None:
    fake.statuses["cudnnSetConvolutionGroupCount"] = 2000
    problem = parse(PLAIN)
    reason = first(problem).refuse(problem, DEVICE) or ""
    assert reason.startswith("cuDNN 9.19.0: cudnnSetConvolutionGroupCount for conv_fwd n2 ")
    with pytest.raises(DeviceError, match="does not take conv_fwd"):
        first(problem).build(problem, DEVICE)
    gc.collect()
    assert fake.alive("Handle") == len(fake.objects) == 1


def test_a_call_that_fails_says_what_and_why(fake: FakeCudnn) -> None:
    problem = parse(PLAIN)
    kernel = named("cudnn_gemm", problem).build(problem, DEVICE)
    fake.statuses["cudnnConvolutionForward"] = 5000
    with pytest.raises(DeviceError) as raised:
        kernel(None, [64, 64, 64], 1.0, 0.0, 0)
    assert str(raised.value) == (
        f"cuDNN 9.19.0: cudnnConvolutionForward for cudnn_gemm of {problem}: CUDNN_STATUS_FAKE (because it is so)"
    )


def test_what_the_library_does_not_take_is_refused_in_its_words(fake: FakeCudnn) -> None:
    fake.statuses["cudnnGetConvolutionForwardWorkspaceSize"] = NOT_SUPPORTED
    problem = parse(PLAIN)
    for algorithm in algorithms(problem, "cuda", "only"):
        assert algorithm.refuse(problem, DEVICE) == "cuDNN 9.19.0 says CUDNN_STATUS_FAKE (because it is so)"


def test_a_gpu_that_is_not_to_be_had_now_is_asked_again(fake: FakeCudnn) -> None:
    fake.statuses["cudnnCreate"] = 1001
    problem = parse(PLAIN)
    assert "cudnnCreate: CUDNN_STATUS_FAKE" in (first(problem).refuse(problem, DEVICE) or "")
    fake.statuses.clear()
    assert first(problem).refuse(problem, DEVICE) is None


def _with(**changes: Any) -> Convolution:
    problem = parse(PLAIN)
    assert isinstance(problem, Convolution)
    return replace(problem, **changes)


REFUSALS = {
    "pads both sides alike": parse("conv_fwd n2 c4 h6 w7 k6 r3 s3 pad1:0x1 f32"),
    "x is i8": parse("conv_fwd n2 c4 h6 w7 k6 r3 s3 i8"),
    "x of shape (0, 4, 6, 7) is empty": parse("conv_fwd n0 c4 h6 w7 k6 r3 s3 f32"),
    "x has stride 0": _with(x=TensorDescriptor((2, 4, 6, 7), (0, 42, 7, 1), "f32")),
    "y has stride -1": _with(y=TensorDescriptor((2, 6, 6, 7), (252, 42, 7, -1), "f32")),
    "dense ones only": _with(w=TensorDescriptor((6, 4, 3, 3), (72, 9, 3, 1), "f32")),
    "y spans": _with(y=TensorDescriptor((2, 6, 6, 7), (2**31, 42, 7, 1), "f32")),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_refusals_name_what_is_wrong(words: str, fake: FakeCudnn) -> None:
    for algorithm in algorithms(REFUSALS[words], "cuda", "only"):
        assert words in (algorithm.refuse(REFUSALS[words], DEVICE) or "")
    assert not fake.calls["cudnnGetConvolutionForwardWorkspaceSize"]


def test_refusals_of_calls_that_no_library_could_run(fake: FakeCudnn) -> None:
    problem, half = parse(PLAIN), parse(PLAIN.replace("f32", "f16"))
    gemm = named("cudnn_gemm", problem)
    assert "NVIDIA GPUs" in (gemm.refuse(problem, cuda.offline("sm_90a")) or "")
    assert (
        gemm.refuse(problem, DEVICE, Epilogue(trace(lambda acc: apply("relu", acc))))
        == "cuDNN's legacy calls fuse nothing"
    )
    rounding = named("cudnn_implicit_precomp_gemm_tf32", half)
    assert rounding.refuse(half, DEVICE) == "only f32 is rounded to tf32, and the tensors are f16"


def test_without_a_library_every_algorithm_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_places", lambda: iter(["libnowhere.so.9"]))
    monkeypatch.setattr(library, "_found", library._found.__wrapped__)
    problem = parse(PLAIN)
    assert library.missing() == library.MISSING
    with pytest.raises(DeviceError, match="pip install nvidia-cudnn-cu13"):
        library.library()
    for algorithm in algorithms(problem, "cuda", "only"):
        assert algorithm.refuse(problem, DEVICE) == library.MISSING
        assert algorithm.version == 0


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (FakeCudnn(version=7605), "cuDNN 7.6.5 in fake is too old: 8.0 or later"),
        (FakeCudnn(without=("cudnnSetConvolutionGroupCount",)), "has no cudnnSetConvolutionGroupCount"),
    ],
)
def test_a_library_that_is_too_old(fake: FakeCudnn, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        library.Library(fake, "fake")


def test_the_next_library_is_tried_where_one_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"old": FakeCudnn(version=7605), "good": FakeCudnn(version=8907)}

    def opened(path: str) -> FakeCudnn:
        if path not in there:
            raise OSError(path)
        return there[path]

    monkeypatch.setattr(library.ctypes, "CDLL", opened)
    find = library._found.__wrapped__
    monkeypatch.setattr(library, "_places", lambda: iter(["none", "old", "good"]))
    found = find()
    assert isinstance(found, library.Library)
    assert (found.path, found.words) == ("good", "8.9.7")
    monkeypatch.setattr(library, "_places", lambda: iter(["old", "none"]))
    assert "too old" in str(find())


def test_cudnn_8_has_no_words_for_the_last_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    old = FakeCudnn(version=8907, without=("cudnnGetLastErrorString",))
    replaced(monkeypatch, old)
    old.statuses["cudnnGetConvolutionForwardWorkspaceSize"] = 9
    problem = parse(PLAIN)
    assert first(problem).refuse(problem, DEVICE) == "cuDNN 8.9.7 says CUDNN_STATUS_FAKE"
    assert first(problem).version == 8907


def test_places_are_searched_from_the_process_to_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("nvidia/cudnn/lib", "torch/lib", "home/lib64"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "libcudnn.so.9").touch()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(library, "_NAMES", ("libcudnn.so.9", "libcudnn.so.8"))
    monkeypatch.setattr(library, "_loaded", lambda: ["/loaded/libcudnn.so.9"])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.setenv("CUDNN_HOME", str(tmp_path / "home"))
    assert list(library._places())[:6] == [
        "/loaded/libcudnn.so.9",
        *(str(tmp_path / p / "libcudnn.so.9") for p in ("nvidia/cudnn/lib", "torch/lib", "home/lib64")),
        "libcudnn.so.9",
        "libcudnn.so.8",
    ]


def test_versions_are_the_librarys(fake: FakeCudnn) -> None:
    assert {a.version for a in algorithms(parse(PLAIN), "cuda", "only")} == {91900}


def test_where_its_algorithms_stand() -> None:
    problem, other = parse(PLAIN), Softmax.make("fwd", (4, 5))
    own = algorithms(problem, "cuda")
    assert not any(a.name.startswith("cudnn") for a in own)
    only = algorithms(problem, "cuda", "only")
    assert all(a.name.startswith("cudnn") for a in only)
    last = tuple(a for a in own if a is REFERENCE)
    assert algorithms(problem, "cuda", "also") == (*(a for a in own if a is not REFERENCE), *only, *last)
    assert algorithms(other, "cuda", "only") == algorithms(other, "cuda", "also") == algorithms(other, "cuda")
    for target in ("cpu", "opencl"):
        assert algorithms(problem, target, "only") == algorithms(problem, target)


def test_nothing_of_it_is_imported_unless_it_is_wanted() -> None:
    code = (
        "import sys; from jitdnn.kernels.tables import algorithms; from jitdnn.problems import parse\n"
        f"problem = parse({PLAIN!r}); algorithms(problem, 'cuda'); algorithms(problem, 'cpu', 'only')\n"
        "assert 'jitdnn.kernels.cudnn' not in sys.modules\n"
        "algorithms(problem, 'cuda', 'also'); assert 'jitdnn.kernels.cudnn.table' in sys.modules\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_errors_that_are_declared_order_the_algorithms() -> None:
    problem = parse("conv_fwd n2 c64 h14 w14 k64 r3 s3 pad1 f32")
    bounds = {a.name: a.error_bound(problem) for a in algorithms(problem, "cuda", "only")}
    order = ("fft", "implicit_gemm", "winograd_nonfused", "implicit_precomp_gemm_tf32")
    found = [bounds[f"cudnn_{name}"] for name in order]
    assert found == sorted(found)
    wide = parse("conv_fwd n2 c64 h14 w14 k64 r5 s5 pad2 f32")
    assert named("cudnn_winograd_nonfused", wide).error_bound(wide) > 1e-3
    assert np.isfinite(list(bounds.values())).all()
