"""Divided convolutions on GPUs: through the public calls, in a graph, and under a limit that is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitdnn
from jitdnn.handle import Handle
from jitdnn.planner.choose import build_partition
from jitdnn.planner.net import survey_partitions
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.problems import Convolution, parse

TEXTS = (
    "conv_fwd n12 c24 h14 w14 k32 r5 s5 pad2 f32 nchw",
    "conv_bwd_data n12 c24 h14 w14 k32 r5 s5 pad2 f32 nchw",
    "conv_bwd_filter n12 c24 h14 w14 k32 r5 s5 pad2 f32 nchw",
    "conv_bwd_filter n12 c24 h14 w14 k32 r3 s3 pad1 f16 nhwc",
)
CANARY = 0xA5


def arrays(problem: Convolution) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    dtype = {"f32": np.float32, "f16": np.float16}[problem.dtype]
    return [rng.standard_normal(o.descriptor.size).astype(dtype) for o in problem.operands]


def shaped(problem: Convolution, number: int, flat: np.ndarray) -> np.ndarray:
    descriptor = problem.operands[number].descriptor
    strides = [stride * flat.itemsize for stride in descriptor.strides]
    return np.lib.stride_tricks.as_strided(flat, descriptor.shape, strides)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("vendor", ["off", "also"])
def test_every_way_of_the_front(device: Any, text: str, vendor: str) -> None:
    """Each gives the result, in no more workspace than it says."""
    if device.target == "opencl" and vendor != "off":
        pytest.skip("cuDNN is for CUDA")
    problem = parse(text)
    assert isinstance(problem, Convolution)
    with jitdnn.settings(cache=False):
        found = survey_partitions(problem, device, Request(vendor=vendor), Store(None))
    host = arrays(problem)
    expected = problem.reference(shaped(problem, 0, host[0]), shaped(problem, 1, host[1]))
    stream = device.default_stream
    memory = [device.allocate(array.nbytes) for array in host]
    for place, array in zip(memory, host, strict=True):
        device.write(place.pointer, array)
    partitions = [point.what for point in (*found.front, *found.whole)]
    arena = device.allocate(max(partition.workspace for partition in partitions) + 512)
    for partition in partitions:
        run = build_partition(problem, device, None, partition)[1]
        device.write(memory[2].pointer, np.full_like(host[2], np.nan))
        device.write(arena.pointer + partition.workspace, np.full(256, CANARY, np.uint8))
        run(stream, [place.pointer for place in memory], 1.0, 0.0, arena.pointer)
        device.synchronize()
        result, guard = np.empty_like(host[2]), np.empty(256, np.uint8)
        device.read(result, memory[2].pointer)
        device.read(guard, arena.pointer + partition.workspace)
        assert (guard == CANARY).all(), partition.summary.name
        error = np.linalg.norm(shaped(problem, 2, result).astype(float) - expected) / np.linalg.norm(expected)
        assert error <= 2 * (partition.summary.error_bound or 0.0), partition.summary.name


@pytest.mark.parametrize("direction", ["fwd", "bwd_filter"])
def test_calls_keep_to_a_limit_and_are_captured(cuda_device: Any, direction: str) -> None:
    if cuda_device.name.startswith("emulated"):
        pytest.skip("graphs are of real GPUs")
    rng = np.random.default_rng(4)
    x = rng.standard_normal((16, 32, 14, 14), np.float32)
    w = rng.standard_normal((48, 32, 5, 5), np.float32)
    dy = rng.standard_normal((16, 48, 14, 14), np.float32)

    def call(*arrays: Any, **options: Any) -> Any:
        if direction == "fwd":
            return jitdnn.conv(arrays[0], arrays[1], padding=2, **options)
        return jitdnn.conv_backward_filter(arrays[0], arrays[2], w.shape, padding=2, **options)

    expected = call(x, w, dy)
    with jitdnn.settings(cache=False, vendor="also", choice="find", workspace_limit="1 MiB"):
        handle = Handle(cuda_device)
        given = [jitdnn.to_device(array, "cuda") for array in (x, w, dy)]
        out = jitdnn.to_device(np.full_like(expected, np.nan), "cuda")
        call(*given, out=out, handle=handle)
        np.testing.assert_allclose(out.numpy(), expected, rtol=2e-3, atol=2e-3)
        with handle.capture() as graph:
            call(*given, out=out, handle=handle)
        graph.replay()
        handle.on_gpu.synchronize()
        np.testing.assert_allclose(out.numpy(), expected, rtol=2e-3, atol=2e-3)
        problem = f"conv_{direction} n16 c32 h14 w14 k48 r5 s5 pad2 f32 nchw"
        assert jitdnn.plan(problem, handle=handle).workspace <= 1 << 20
