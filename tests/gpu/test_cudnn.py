"""cuDNN's algorithms on a real GPU, against the float64 reference; `test_cudnn.py` one folder up needs neither."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import cases
from harness import run_algorithm
from jitdnn.devices import cuda
from jitdnn.errors import DeviceError
from jitdnn.kernels.algorithm import Algorithm
from jitdnn.kernels.cudnn import library
from jitdnn.kernels.reference import REFERENCE
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import Convolution, parse
from jitdnn.tensor import TensorDescriptor

DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")


@pytest.fixture
def device() -> Any:
    if not cuda.device_count():
        pytest.skip("no NVIDIA GPU")
    if library.missing():
        pytest.skip(library.missing() or "")
    return cuda.device()


def takers(problem: Any, device: Any) -> list[Algorithm]:
    """cuDNN's algorithms that take a problem."""
    table = algorithms(problem, "cuda", "only")
    assert all(algorithm.name.startswith("cudnn_") for algorithm in table)
    return [algorithm for algorithm in table if algorithm.refuse(problem, device) is None]


def check(problem: Convolution, device: Any) -> set[str]:
    """Check all that take a problem, each whether the others fail or not; returns their names."""
    case = cases.make_case(problem)
    failures = []
    names = set()
    for algorithm in takers(problem, device):
        names.add(algorithm.name)
        try:
            run_algorithm(algorithm, case, device)
        except (AssertionError, DeviceError) as error:
            failures.append(f"{algorithm.name}: {error}")
    assert not failures, "\n".join(failures)
    return names


PLAIN = {
    "3x3": "n3 c16 h14 w15 k24 r3 s3 pad1",
    "5x5": "n2 c8 h27 w27 k16 r5 s5 pad2",
    "1x1": "n3 c32 h9 w7 k16 r1 s1",
    "stride": "n2 c6 h17 w16 k10 r3 s3 stride2 pad1",
    "dilation": "n2 c8 h19 w18 k8 r3 s3 pad2 dil2",
    "groups": "n2 c16 h12 w12 k32 r3 s3 pad1 g4",
    "depthwise": "n2 c16 h12 w12 k16 r3 s3 pad1 g16",
    "stem": "n2 c3 h32 w32 k16 r7 s7 stride2 pad3",
    "oblong": "n2 c8 h9 w20 k8 r1 s5 stride1x2 pad0x2",
    "flip": "n2 c8 h12 w12 k8 r3 s3 pad1 flip",
    "1-d": "n2 c8 w40 k12 s5 pad2",
    "1-d stride": "n2 c8 w40 k12 s4 stride2 pad1 dil2",
    "3-d": "n2 c8 d6 h8 w9 k8 t3 r3 s3 pad1",
    "3-d stride": "n1 c4 d7 h8 w9 k6 t2 r3 s3 stride2 pad1",
}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", PLAIN)
def test_against_the_reference(name: str, direction: str, dtype: str, layout: str, device: Any) -> None:
    problem = parse(f"conv_{direction} {PLAIN[name]} {dtype} {layout}")
    assert isinstance(problem, Convolution)
    names = check(problem, device)
    if dtype == "f32" and layout == "nchw" and name != "flip":
        assert names, "nothing takes it"


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_parts_of_larger_tensors(direction: str, dtype: str, device: Any) -> None:
    """What micro-batches along the images and the channels of the result look like."""
    whole = TensorDescriptor.packed((4, 16, 13, 13), dtype)
    part = TensorDescriptor((2, 8, 13, 13), whole.strides, dtype)
    other = TensorDescriptor((2, 16, 13, 13), whole.strides, dtype)
    for x, y in ((part, other), (other, part), (part, part)):
        w = TensorDescriptor.packed((y.shape[1], x.shape[1], 3, 3), dtype)
        problem = Convolution(direction, x, w, y, (1, 1), ((1, 1), (1, 1)), (1, 1))
        assert check(problem, device)


def test_one_image_of_many(device: Any) -> None:
    """The strides of an extent of 1 are whatever the whole has."""
    x = TensorDescriptor((1, 8, 13, 13), (99999, 169, 13, 1), "f32")
    y = TensorDescriptor((1, 1, 13, 13), (77777, 0, 13, 1), "f32")
    w = TensorDescriptor.packed((1, 8, 3, 3), "f32")
    for direction in DIRECTIONS:
        assert check(Convolution(direction, x, w, y, (1, 1), ((1, 1), (1, 1)), (1, 1)), device)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_calls_are_captured(direction: str, device: Any) -> None:
    problem = parse(f"conv_{direction} n4 c16 h20 w20 k16 r3 s3 pad1 f32")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(o.descriptor.shape).astype(np.float32) for o in problem.operands]
    memory = [device.allocate(array.nbytes) for array in arrays]
    for block, array in zip(memory, arrays, strict=True):
        device.write(block.pointer, array)
    expected = problem.reference(*(array.astype(np.float64) for array in arrays[:2]))
    pointers = [block.pointer for block in memory]
    owner = device.own_stream()
    stream = device.stream(owner)
    for algorithm in takers(problem, device):
        kernel = algorithm.build(problem, device)
        scratch = device.allocate(max(1, algorithm.workspace(problem, device)))
        device.write(memory[2].pointer, np.full_like(arrays[2], np.nan))
        device.synchronize()
        graph = device.capture(stream, owner)
        graph.begin()
        try:
            kernel(stream, pointers, 1.0, 0.0, scratch.pointer)
        except BaseException:
            graph.end(is_failed=True)
            raise
        graph.end()
        untouched = np.empty_like(arrays[2])
        device.read(untouched, memory[2].pointer)
        assert np.isnan(untouched).all(), f"{algorithm.name} ran while it was captured"
        for _ in range(2):
            graph.replay(stream)
        device.synchronize(stream)
        actual = np.empty_like(arrays[2])
        device.read(actual, memory[2].pointer)
        error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
        assert error < algorithm.error_bound(problem), algorithm.name


def test_refusals_name_what_is_wrong(device: Any) -> None:
    wanted = {
        "conv_fwd n2 c8 h9 w9 k8 r3 s3 pad1:0x1 f32": "pads both sides alike",
        "conv_fwd n0 c8 h9 w9 k8 r3 s3 f32": "is empty",
        "conv_fwd n2 c8 h9 w9 k8 r3 s3 i8": "is i8",
    }
    for text, words in wanted.items():
        problem = parse(text)
        for algorithm in algorithms(problem, "cuda", "only"):
            assert words in (algorithm.refuse(problem, device) or ""), text
    fft = next(a for a in algorithms(parse(PLAINEST), "cuda", "only") if a.name == "cudnn_fft")
    assert "cuDNN" in (fft.refuse(parse("conv_fwd n2 c8 h9 w9 k8 r3 s3 stride2 f32"), device) or "")


PLAINEST = "conv_fwd n2 c8 h9 w9 k8 r3 s3 f32"


def test_its_algorithms_come_before_the_reference(device: Any) -> None:
    problem = parse(PLAINEST)
    names = [algorithm.name for algorithm in algorithms(problem, "cuda", "also")]
    assert names[-1] == REFERENCE.name or REFERENCE.name not in names
    assert "cudnn_implicit_gemm" in names
    assert not any(a.name.startswith("cudnn") for a in algorithms(problem, "cuda"))


_THREADS = """
import threading
import numpy as np
from jitdnn.devices import cuda
from jitdnn.kernels.cudnn import library
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import parse
device, problem = cuda.device(), parse("conv_fwd n4 c16 h20 w20 k16 r3 s3 pad1 f32")
found = next(a for a in algorithms(problem, "cuda", "only") if a.name == "cudnn_implicit_gemm")
kernel = found.build(problem, device)
blocks = [device.allocate(o.descriptor.nbytes) for o in problem.operands]
failures = []
def work():
    try:
        stream = device.own_stream()
        for _ in range(20):
            kernel(stream.handle, [b.pointer for b in blocks], 1.0, 0.0, 0)
        device.synchronize(stream.handle)
        seen.add(library.handle(library.library(), 0).pointer.value)
    except Exception as error:
        failures.append(error)
for turn in range(2):
    seen = set()
    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
assert not failures, failures
print("fine")
"""


def test_threads_share_a_kernel_and_the_process_ends_well(device: Any) -> None:
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
