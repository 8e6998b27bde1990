"""Launches that may begin before the one in front of them is done: they wait for it before they touch memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from convolution_cases import convolution
from emulation.device import EmulatedCudaDevice, missing  # conftest.py makes it importable
from jitdnn.devices import cuda, cuda_compile
from jitdnn.devices.cuda import CudaDevice
from jitdnn.devices.gpu import Launch, Source
from jitdnn.errors import DeviceError
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupWgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.tables import algorithms
from one_hopper_kernel import row_major, run
from warpgroup_cases import on_hopper  # noqa: F401

DEVICE = EmulatedCudaDevice(seconds=5, finds_races=False)
X = np.zeros((1, 64, 64), np.float16)
BARRIER = (
    "const u32 barrier = shared + 32768; if (threadIdx.x == 0) { mbarrier_init(barrier, 1); mbarrier_init_fence(); } "
    "__syncthreads(); "
)
LOAD = (
    "if (threadIdx.x == 0) { mbarrier_arrive_expect(barrier, 8192); "
    "tma_load_3d(shared, tables.maps[0], barrier, 0, 0, 0); } mbarrier_wait(barrier, 0); "
)
BODIES = {
    "tma_load: thread 0 has not called wait_for_launch_before": BARRIER + LOAD + "wait_for_launch_before();",
    "tma_store: thread 0 has not called wait_for_launch_before": (
        "if (threadIdx.x == 0) tma_store_3d(shared, tables.maps[0], 0, 0, 0); wait_for_launch_before();"
    ),
    "the end: thread 5 has not called wait_for_launch_before": "if (threadIdx.x != 5) wait_for_launch_before();",
}


def early(body: str) -> None:
    run(DEVICE, body, X, X, X, (row_major(0, X, (64, 64, 1)),), is_early=True)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("message", BODIES)
def test_who_does_not_wait_is_found(message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        early(BODIES[message])


def asking(row: int) -> str:
    load = f"tma_load_3d(0, tables.maps[0], 0, 0, {row}, 0, ToCache());"
    return f"if (threadIdx.x == 0) {load} wait_for_launch_before(); "


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_what_will_be_copied_may_be_asked_for_before() -> None:
    early(asking(0) + BARRIER + LOAD)
    with pytest.raises(DeviceError, match="is asked for, and the block does not copy it"):
        early(asking(8) + BARRIER + LOAD)


@pytest.mark.parametrize(
    ("words", "is_asked"),
    [
        ("conv_fwd n32 c1024 h14 w14 k256 r1 s1 bf16 nhwc", True),
        ("conv_bwd_data n32 c64 h56 w56 k64 r1 s1 bf16 nhwc", True),
        ("conv_fwd n32 c1024 h14 w14 k256 r1 s1 bf16", False),  # its operands are copied before
    ],
)
def test_stages_that_are_asked_for(words: str, is_asked: bool) -> None:
    plan = WarpgroupGemm().sizes(convolution(words), cuda.offline("sm_90a"))
    assert isinstance(plan, Plan), plan
    assert plan.takes_ring
    assert (plan.tables.numbers[-1] > 0) == is_asked


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_who_waits_first_may_do_anything() -> None:
    early("wait_for_launch_before(); let_next_begin(); " + BARRIER + LOAD)


CHAIN = (
    "conv_fwd n2 c64 h12 w12 k192 r1 s1 bf16 nhwc",
    "conv_fwd n2 c192 h12 w12 k64 r3 s3 pad1 bf16 nhwc",
    "conv_bwd_data n2 c64 h12 w12 k64 r1 s1 bf16 nhwc",
)
"""Each takes what the one before made, and the first what the last made."""


def test_a_chain_reads_what_was_written_before(cuda_device: Any) -> None:
    """The same bits as with waiting for the device behind each launch. The last is a filter's gradient."""
    device, rng = cuda_device, np.random.default_rng(3)
    problems = [convolution(words) for words in CHAIN]
    kernels = [
        (WarpgroupGemm().build(one, device), WarpgroupGemm().workspace(one, device)) for one in problems
    ]
    last = convolution("conv_bwd_filter n2 c64 h12 w12 k192 r1 s1 bf16 nhwc")
    wgrad = WarpgroupWgrad().build(last, device), WarpgroupWgrad().workspace(last, device)

    def filled(count: int, scale: float) -> Any:
        # bf16 is the upper half of f32
        bits = (scale * rng.standard_normal(count)).astype(np.float32).view(np.uint32) >> 16
        memory = device.allocate(2 * count)
        device.write(memory.pointer, bits.astype(np.uint16))
        return memory

    sizes = [2 * 144 * channels for channels in (64, 192, 64)]
    filters = [filled(one.w.size, (one.w.size / one.w.shape[0]) ** -0.5) for one in problems]
    room = device.allocate(max(1, wgrad[1], *(workspace for _, workspace in kernels)))
    found = []
    for waits in (True, False):
        rng = np.random.default_rng(4)
        tensors = [filled(size, 1.0) for size in sizes]
        result = filled(last.w.size, 1.0)
        device.synchronize()
        for _ in range(3 if device.name == "emulated" else 50):
            for number, (kernel, _) in enumerate(kernels):
                pointers = [
                    tensors[number].pointer,
                    filters[number].pointer,
                    tensors[(number + 1) % 3].pointer,
                ]
                kernel(None, pointers, 1.0, 0.0, room.pointer)
                if waits:
                    device.synchronize()
            wgrad[0](None, [tensors[0].pointer, tensors[1].pointer, result.pointer], 1.0, 0.0, room.pointer)
            if waits:
                device.synchronize()
        bits = np.empty(last.w.size, np.uint16)
        device.read(bits, result.pointer)
        found.append(bits)
    assert len(np.unique(found[0])) > 100
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(("arch", "is_early"), [("sm_80", False), ("sm_89", False), ("sm_90a", True)])
def test_only_gpus_that_can_begin_early(arch: str, is_early: bool) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    text = "KERNEL(32) void nothing(const u8 *x, u8 *workspace, f64 alpha, f64 beta) { begin_launch(); }"
    launch = Launch("nothing", 1, 32, is_early=True)
    kernel: Any = cuda.offline(arch).kernel(Source("nothing", text, dialect="cuda"), [launch], 1)
    assert kernel.record(arch)["launches"] == [("nothing", 1, 32, 0, False, 1, False, is_early)]


TOUCHES = re.compile(r"\b(?:ld|st|atom|red|cp)\.(?!async\.bulk\.prefetch\.)(?:[\w:]+\.)*(?:global|async)")
ASKS = "cp.async.bulk.prefetch.tensor"
"""As far as the L2 cache, where what is written later is seen."""
WORDS = {
    "implicit_gemm_wgmma": "conv_fwd n32 c512 h7 w7 k512 r3 s3 pad1 bf16 nhwc",
    "implicit_gemm_wgmma_in_place": "conv_fwd n1 c2048 h7 w7 k64 r1 s1 bf16 nhwc",
    "implicit_gemm_3xf16": "conv_bwd_data n8 c60 h14 w14 k100 r3 s3 pad1 stride2 f32",
    "implicit_gemm": "conv_fwd n1 c2048 h7 w7 k100 r1 s1 bf16",
    "stem": "conv_bwd_data n32 c3 h64 w64 k64 r7 s7 stride2 pad3 bf16 nhwc",
    "grouped": "conv_fwd n8 c128 h14 w14 k128 r3 s3 pad1 g32 bf16 nhwc",
    "depthwise_sliding": "conv_fwd n8 c128 h14 w14 k128 r3 s3 pad1 g128 bf16 nhwc",
    "depthwise_banded": "conv_bwd_data n8 c128 h14 w14 k128 r3 s3 pad1 g128 bf16",
    "implicit_gemm_3xf16_blockwise": "conv_bwd_filter n8 c128 h14 w14 k128 r1 s1 f32 nhwc",
    "implicit_gemm_3xf16_divided_mixed": "conv_bwd_filter n8 c128 h14 w14 k128 r3 s3 pad1 f32 nhwc",
    "winograd_filter_4_3xf16": "conv_bwd_filter n2 c64 h16 w16 k64 r3 s3 pad1 f32",
}


@pytest.mark.parametrize("name", WORDS)
def test_the_compiler_moves_nothing_before_the_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Source, Sequence[Launch]]] = []

    def kernel(_: CudaDevice, source: Source, launches: Sequence[Launch], *__: Any, **___: Any) -> Any:
        found.append((source, launches))
        return lambda *_: None

    monkeypatch.setattr(CudaDevice, "kernel", kernel)
    device, problem = cuda.offline("sm_90a"), convolution(WORDS[name])
    algorithm = next(one for one in algorithms(problem, "cuda") if one.name == name)
    algorithm.build(problem, device)
    early = [
        (source, launch.function) for source, launches in found for launch in launches if launch.is_early
    ]
    assert early
    for source, function in early:
        entries = cuda_compile.ptx(source, device.arch).split(".entry ")
        (body,) = (entry for entry in entries if re.match(rf"{function}\b", entry))
        before, wait, behind = body.partition("griddepcontrol.wait;")
        assert wait
        assert not TOUCHES.search(before)
        assert TOUCHES.search(behind)
        assert (ASKS in before) == (name == "implicit_gemm_wgmma")
        assert ASKS not in behind
