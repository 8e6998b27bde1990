"""The runtime of CUDA over a stand-in for NVIDIA's driver, called through the real bindings.

`test_runtime.py` runs this file in a process of its own, where `libcuda.so.1` is what `fake_driver.c` makes.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import threading
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from fake_driver import FAKE, Interface, calls, fail, fresh, launched, on_gpu, stand_in_for_cupy
from jitdnn.devices import cuda, cuda_compile, cuda_driver, cuda_kernel
from jitdnn.devices.gpu import Launch, Source
from jitdnn.devices.gpu_facts import on_paper
from jitdnn.tensor import DeviceArray, borrow
from jitdnn.tensor.dlpack import open_capsule

__all__ = ["fresh"]  # a fixture of every test


def test_the_device_is_described() -> None:
    device = cuda.device(1)
    assert device.device_id == ("cuda", 1)
    assert (device.name, device.arch) == ("NVIDIA Fake 1 sm_90a CUDA 13.0", "sm_90a")
    # the stand-in answers as an H100 does, but for its name and memory
    assert device.facts == replace(on_paper(90), model="NVIDIA Fake 1", memory_bytes=80 << 30)
    assert cuda.missing() is None
    with pytest.raises(jd.DeviceError, match="there is no GPU 7: the NVIDIA driver shows 2"):
        cuda.device(7)


def test_an_old_device_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda._found.cache_clear()
    # the C library sees what the process changes
    ctypes.CDLL(None).setenv(b"FAKE_MAJOR", b"7", 1)
    try:
        with pytest.raises(jd.DeviceError, match=r"GPU 0, NVIDIA Fake 0, has compute capability 7\.0: 8\.0"):
            cuda.device(0)
    finally:
        ctypes.CDLL(None).unsetenv(b"FAKE_MAJOR")
        cuda._found.cache_clear()


def test_values_come_back() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    array = jd.to_device(x.transpose(2, 0, 1), "cuda")
    assert array.strides == x.transpose(2, 0, 1).strides
    np.testing.assert_array_equal(array.numpy(), x.transpose(2, 0, 1))
    np.testing.assert_array_equal(array[1:, ::-1, 2].numpy(), x.transpose(2, 0, 1)[1:, ::-1, 2])


def test_a_call_is_launched_on_its_device_and_allocates_a_result() -> None:
    for index in (0, 1):
        x = on_gpu(device=f"cuda:{index}")
        before = calls("cuLaunchKernel")
        y = jd.max_pool(x, 2)
        assert isinstance(y, DeviceArray)
        assert (y.shape, y.device) == ((1, 2, 4, 4), f"cuda:{index}")
        assert calls("cuLaunchKernel") == before + 1
        assert launched()[0] == 0
        assert launched()[4:6] == (x.pointer, y.pointer)
        assert FAKE.fake_context() == 0x1000 + index


def test_a_warmed_call_allocates_and_loads_nothing() -> None:
    x = on_gpu()
    out = jd.max_pool(x, 2)
    names = ("cuMemAlloc_v2", "cuMemAllocAsync", "cuLibraryLoadData", "cuStreamSynchronize", "cuEventCreate")
    before = [calls(name) for name in names]
    for _ in range(3):
        assert jd.max_pool(x, 2, out=out) is out
    assert [calls(name) for name in names] == before


def test_failures_of_the_driver_name_kernel_and_problem() -> None:
    x = on_gpu()
    jd.max_pool(x, 2)
    fail("cuLaunchKernel", 1)
    expected = r"^pool_fwd max .*: launch of \w+ \(\w+\): CUDA_ERROR_FAKE, a failure that was asked for$"
    with pytest.raises(jd.DeviceError, match=expected):
        jd.max_pool(x, 2)
    fail("cuLaunchKernel", 700)
    with pytest.raises(
        jd.DeviceError, match=r"beside its memory, maybe one of an earlier call.*CUDA_LAUNCH_BLOCKING=1"
    ):
        jd.max_pool(x, 2)
    jd.max_pool(x, 2)


def test_a_thread_without_a_context_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_kernel, "_gpus", lambda: 1)
    x = on_gpu()
    jd.max_pool(x, 2)
    fail("cuLaunchKernel", 201)
    before = calls("cuLaunchKernel")
    jd.max_pool(x, 2)
    assert calls("cuLaunchKernel") == before + 2
    assert FAKE.fake_context() == 0x1000


def test_arrays_are_on_one_device() -> None:
    with pytest.raises(
        jd.DeviceError, match=r"^a is on cuda:0, b is on cuda:1: the arrays of a call must be"
    ):
        jd.add(on_gpu(), on_gpu(device="cuda:1"))
    with pytest.raises(jd.DeviceError, match=r"x is on cuda:0, out is on the host"):
        jd.max_pool(on_gpu(), 2, out=np.empty((1, 2, 4, 4), np.float32))
    with pytest.raises(jd.DeviceError, match=r"arrays are on cuda:0, and the handle is for those on cuda:1"):
        jd.max_pool(on_gpu(), 2, handle=jd.Handle("cuda:1"))
    with jd.settings(target="cuda"), pytest.raises(jd.DeviceError, match=r"jitdnn\.to_device\(x, 'cuda'\)"):
        jd.max_pool(np.zeros((1, 2, 4, 4), np.float32), 2)


class TestStreams:
    @pytest.mark.parametrize(
        "stream",
        [
            0x40,
            types.SimpleNamespace(cuda_stream=0x40),
            types.SimpleNamespace(ptr=0x40),
            types.SimpleNamespace(handle=ctypes.c_void_p(0x40)),
            types.SimpleNamespace(__cuda_stream__=lambda: (0, 0x40)),
        ],
        ids=["number", "torch", "cupy", "numba", "protocol"],
    )
    def test_of_a_handle(self, stream: Any) -> None:
        for handle in (jd.Handle("cuda", stream), jd.Handle(stream=stream)):
            jd.max_pool(on_gpu(), 2, handle=handle)
            assert launched()[0] == 0x40

    def test_that_are_gone_are_not_named_to_the_driver(self) -> None:
        class Stream:
            ptr = 0xB0

        x, stream = on_gpu(), Stream()
        handle = jd.Handle("cuda", stream)
        y = jd.max_pool(x, 2, handle=handle)
        del handle, stream
        gc.collect()
        names = ("cuEventRecord", "cuStreamSynchronize", "cuCtxSynchronize")
        before = [calls(name) for name in names]
        jd.max_pool(x, 2, out=y)
        assert [calls(name) for name in names] == [before[0], before[1], before[2] + 2]
        y.numpy()

    def test_of_another_kind(self) -> None:
        with pytest.raises(jd.InvalidArgument, match="the stream is a list"):
            jd.Handle("cuda", [1])

    def test_that_the_owner_names(self) -> None:
        x = on_gpu()
        jd.max_pool(Interface(x, 0x70), 2)
        assert launched()[0] == 0x70
        jd.max_pool(Interface(x, 1), 2)
        assert launched()[0] == 0
        waits = calls("cuStreamWaitEvent")
        out = Interface(jd.empty((1, 2, 4, 4), device="cuda"), 0x80)
        assert jd.max_pool(Interface(x, 0x70), 2, out=out) is out
        assert launched()[0] == 0x70
        assert calls("cuStreamWaitEvent") == waits + 1, "for what stream 0x80 was to do with out"
        with pytest.raises(jd.InvalidType, match="stream 0"):
            jd.max_pool(Interface(x, 0), 2)

    def test_in_force_in_cupy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = stand_in_for_cupy()
        monkeypatch.setitem(sys.modules, "cupy", module)
        x = module.ndarray((1, 2, 8, 8), np.dtype(np.float32), on_gpu(), (512, 256, 32, 4))
        y = jd.max_pool(x, 2)
        assert type(y) is module.ndarray
        assert (y.shape, y.strides, y.dtype) == ((1, 2, 4, 4), (128, 64, 16, 4), np.float32)
        assert launched()[0] == 0x60
        assert launched()[4:6] == (x.data.ptr, y.data.ptr)


class TestProtocols:
    def test_interface(self) -> None:
        x = on_gpu((3, 4))
        borrowed = borrow(Interface(x))
        assert (borrowed.library, borrowed.pointer, borrowed.device_id) == (
            "interface",
            x.pointer,
            ("cuda", 0),
        )
        assert borrowed.descriptor == x.descriptor
        FAKE.fake_pointer_device(1)
        try:
            assert borrow(Interface(x)).device_id == ("cuda", 1)
        finally:
            FAKE.fake_pointer_device(0)
        with pytest.raises(jd.InvalidType, match="mask"):
            borrow(Interface(x, mask=x))
        with pytest.raises(jd.InvalidArgument, match="read-only"):
            jd.max_pool(on_gpu(), 2, out=Interface(jd.empty((1, 2, 4, 4)), data=(x.pointer, True)))

    def test_dlpack(self) -> None:
        x = on_gpu((3, 4))[:, ::-2]

        class OnlyDlpack:
            def __dlpack_device__(self) -> Any:
                return x.__dlpack_device__()

            def __dlpack__(self, **options: Any) -> Any:
                return x.__dlpack__(**options)

        references = sys.getrefcount(x)
        borrowed = borrow(OnlyDlpack())
        assert (borrowed.library, borrowed.pointer, borrowed.device_id) == ("dlpack", x.pointer, ("cuda", 0))
        assert borrowed.descriptor == x.descriptor
        assert sys.getrefcount(x) == references + 1
        del borrowed
        assert sys.getrefcount(x) == references
        capsule = x.__dlpack__()
        del capsule
        assert sys.getrefcount(x) == references, "given back by a capsule that nobody took"
        capsule = x.__dlpack__()
        open_capsule(capsule, None)
        with pytest.raises(jd.InvalidType, match="used before"):
            open_capsule(capsule, None)

    def test_dlpack_waits_for_the_consumer(self) -> None:
        x = jd.max_pool(on_gpu(), 2)
        waits = calls("cuStreamWaitEvent")
        x.__dlpack__(stream=0x50)
        assert calls("cuStreamWaitEvent") == waits + 1
        x.__dlpack__(stream=-1)
        assert calls("cuStreamWaitEvent") == waits + 1
        with pytest.raises(BufferError):
            x.__dlpack__(copy=True)

    def test_jax(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Array:
            """An array of JAX as it looks from outside."""

            def __init__(self, inner: DeviceArray) -> None:
                self.inner, self.waited = inner, 0

            def devices(self) -> set[int]:
                return {0}

            def block_until_ready(self) -> None:
                self.waited += 1

            def __dlpack_device__(self) -> Any:
                return self.inner.__dlpack_device__()

            def __dlpack__(self, **options: Any) -> Any:
                return self.inner.__dlpack__(**options)

        module: Any = types.ModuleType("jax")
        module.Array, module.dlpack = Array, types.SimpleNamespace(from_dlpack=Array)
        monkeypatch.setitem(sys.modules, "jax", module)
        x = Array(on_gpu())
        y = jd.max_pool(x, 2)
        assert type(y) is Array
        assert type(y.inner) is DeviceArray
        assert x.waited == 1
        with pytest.raises(jd.InvalidArgument, match="read-only"):
            jd.max_pool(x, 2, out=y)


class TestGraphs:
    def test_capture_and_replay(self) -> None:
        x, handle = on_gpu(), jd.Handle("cuda")
        out = jd.max_pool(x, 2, handle=handle)
        before = {name: calls(name) for name in ("cuMemAllocAsync", "cuMemAlloc_v2", "cuLibraryLoadData")}
        with handle.capture() as graph:
            assert jd.current_handle() is handle
            jd.max_pool(x, 2, out=out)
            stream = launched()[0]
            assert stream not in (0, None)
        assert {name: calls(name) for name in before} == before
        launches = calls("cuGraphLaunch")
        graph.replay()
        graph.replay(0x30)
        assert calls("cuGraphLaunch") == launches + 2
        graph.synchronize()
        waits = calls("cuStreamWaitEvent")
        jd.max_pool(x, 2, out=out, handle=handle)
        assert launched()[0] == 0
        assert calls("cuStreamWaitEvent") > waits, "for the replay"
        waits = calls("cuStreamWaitEvent")
        graph.replay()
        assert calls("cuStreamWaitEvent") > waits, "for the call"

    def test_results_made_in_a_capture_stay(self) -> None:
        x, handle = on_gpu(), jd.Handle(target="cuda")
        jd.max_pool(x, 2, handle=handle)
        with handle.capture() as graph:
            y = jd.max_pool(x, 2)
        pointer, references = y.pointer, sys.getrefcount(y)
        assert references > 2, "the graph keeps it"
        graph.replay()
        assert y.pointer == pointer

    def test_an_error_in_the_block_gives_the_graph_up(self) -> None:
        x, handle = on_gpu(), jd.Handle("cuda", 0x20)
        with pytest.raises(jd.InvalidArgument), handle.capture() as graph:
            jd.max_pool(x, -1)
        with pytest.raises(jd.DeviceError, match="no calls yet"):
            graph.replay()
        jd.max_pool(x, 2, handle=handle)
        assert launched()[0] == 0x20

    def test_only_cuda_has_them(self) -> None:
        with pytest.raises(jd.DeviceError, match="the handle is for cpu"), jd.Handle("cpu").capture():
            pass


def test_find_measures_by_events() -> None:
    with jd.settings(choice="find", target="cuda"):
        events = calls("cuEventRecord")
        plan = jd.plan("pool_fwd max n1 c2 h16 w16 window3 stride1 pad0 f32 nchw")
        assert {c.source for c in plan.candidates if c.refused is None} == {"measured"}
        assert plan.device_id == ("cuda", 0)
        assert calls("cuEventRecord") > events
    assert plan.seconds == pytest.approx(1e-5, rel=1)


def test_find_goes_on_without_what_cannot_be_launched() -> None:
    with jd.settings(choice="find", target="cuda"):
        fail("cuLaunchKernel", 1)
        plan = jd.plan("pool_fwd max n1 c2 h18 w18 window3 stride1 pad0 f32 nchw")
    refused = [c.refused for c in plan.candidates if c.refused is not None]
    assert any(reason.startswith("it cannot be launched: launch of") for reason in refused)


def test_a_launch_says_how_large_its_clusters_are() -> None:
    text = 'extern "C" __global__ void f(float *to, unsigned char *workspace, double alpha, double beta) {}'
    source = Source("f", text, dialect="hopper")
    for blocks, sets_cluster in ((3, True), (1, False)):
        launch = Launch("f", 6, 32, cluster=blocks, sets_cluster=sets_cluster)
        cuda.device(0).kernel(source, [launch], 1)(None, [256], 1.0, 0.0, 0)
        assert launched()[:3] == (0, 6, 32)
        assert FAKE.fake_cluster() == blocks
    with pytest.raises(jd.DeviceError, match="launch of f"):  # 6 blocks are no clusters of 4
        cuda.device(0).kernel(source, [Launch("f", 6, 32, cluster=4, sets_cluster=True)], 1)(
            None, [256], 1.0, 0.0, 0
        )


def test_numbers_of_own_kernels_are_on_the_device() -> None:
    kernel = jd.elementwise("a, x: a * x")
    x = on_gpu((8,))
    kernel(2.0, x)
    before = calls("cuMemcpyHtoDAsync_v2")
    kernel(2.0, x)
    assert calls("cuMemcpyHtoDAsync_v2") == before


def test_states_are_sent_without_waiting() -> None:
    """The words of a random state go along with the call, in the order of the streams."""
    x, reserve = on_gpu((8,)), jd.DropoutState(7)
    jd.dropout(x, 0.5, reserve)
    before = calls("cuStreamSynchronize"), calls("cuMemcpyHtoDAsync_v2"), calls("cuStreamWaitEvent")
    jd.dropout(x, 0.5, reserve)
    assert calls("cuStreamSynchronize") == before[0]
    assert calls("cuMemcpyHtoDAsync_v2") == before[1] + 1
    assert calls("cuStreamWaitEvent") == before[2]
    with jd.Handle("cuda", stream=41):
        jd.dropout(x, 0.5, reserve)
    assert calls("cuStreamWaitEvent") > before[2]


def test_threads_and_handles() -> None:
    x, errors = on_gpu(), []

    def work(index: int) -> None:
        try:
            handle = jd.Handle("cuda", 0x100 + 16 * index)
            for _ in range(20):
                jd.max_pool(x, 2, handle=handle)
        except Exception as error:
            errors.append(error)

    before = calls("cuLaunchKernel")
    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert calls("cuLaunchKernel") == before + 120


def test_info_lists_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    from jitdnn.cli.info import gather

    assert (
        gather()["targets"]["cuda"] == "0: NVIDIA Fake 0 sm_90a CUDA 13.0; 1: NVIDIA Fake 1 sm_90a CUDA 13.0"
    )


def test_a_log_of_one_byte_does_not_change_what_a_space_is() -> None:
    """NVRTC says nothing of a kernel that it has in a cache of its own."""

    def fetch(program: Any, buffer: bytes) -> tuple[int]:
        ctypes.memset(ctypes.c_char_p(buffer), 0, 1)
        return (0,)

    assert cuda_compile._fetch(lambda program: (0, 1), fetch, None) == b"\0"
    assert b"a b"[1:2] == bytes.fromhex("20")


def test_words_of_the_driver() -> None:
    assert "asked for" in str(cuda_driver.failure(1, "testing"))
    assert "captured into a graph" in str(cuda_driver.failure(900, "testing"))


WEIGHTED = """
__constant__ float weights[4];
__global__ void weighted(const float *x, float *y, double a, long long n) { y[n] = a * x[n] * weights[n % 4]; }
"""


def test_functions_of_a_text_are_launched_on_the_stream_of_the_handle() -> None:
    x, y = on_gpu(), on_gpu()
    stream = cuda.device().own_stream()
    handle = jd.Handle("cuda", stream=stream)
    module: Any = jd.module(WEIGHTED, "mine", handle)
    module["weighted"](x, y, 2.5, 7, grid=(3, 2), block=64, shared=100, handle=handle)
    bits = int.from_bytes(struct.pack("d", 2.5), "little")
    assert launched() == (cuda.device().stream(stream), 3, 64, 100, x.pointer, y.pointer, bits, 7)
    before = calls("cuLaunchKernel")
    module["weighted"](
        x, y, 2.5, 7, grid=1, block=64
    )  # of no handle: the default stream, after the other one
    assert launched()[:2] == (0, 1)
    assert calls("cuLaunchKernel") == before + 1


@pytest.mark.parametrize(("kind", "attribute"), [("is_early", 6), ("is_cooperative", 2), (None, 0)])
def test_what_a_launch_asks_the_driver_for(kind: str | None, attribute: int) -> None:
    text = "__global__ void nothing(u64 x, u64 workspace, f64 alpha, f64 beta) {}"
    launches = [Launch("nothing", 1, 32, **({kind: True} if kind else {})), Launch("nothing", 1, 32)]
    for count, expected in ((1, attribute), (2, 0)):  # the second asks for nothing
        kernel = cuda.device().kernel(
            Source("nothing", f'extern "C" {text}', dialect="cuda"), launches[:count], 1
        )
        kernel(0, [0x100], 1.0, 0.0, 0)
        assert FAKE.fake_attribute() == expected


def test_large_shared_memory_of_a_text_is_asked_for_once() -> None:
    module: Any = jd.module(WEIGHTED, "mine", device="cuda")
    x, y = on_gpu(), on_gpu()
    before = calls("cuFuncSetAttribute")
    for _ in range(3):
        module["weighted"](x, y, 2.5, 7, grid=1, block=64, shared=100 << 10)
    function = module["weighted"]
    for shared in (100 << 10, 50 << 10, 0):
        function(x, y, 2.5, 7, grid=1, block=64, shared=shared)
    assert calls("cuFuncSetAttribute") == before + 4
    with pytest.raises(jd.InvalidArgument, match="shared is"):
        function(x, y, 2.5, 7, grid=1, block=64, shared=1 << 20)


def test_constants_of_a_text_are_written_after_launches_on_other_streams() -> None:
    module: Any = jd.module(WEIGHTED, "mine", device="cuda")
    stream = cuda.device().own_stream()
    module["weighted"](on_gpu(), on_gpu(), 1, 0, grid=1, block=1, handle=jd.Handle("cuda", stream=stream))
    before = calls("cuStreamWaitEvent")
    np.testing.assert_array_equal(module.constant("weights", [1, 2, 3, 4]), np.float32([1, 2, 3, 4]))
    assert calls("cuStreamWaitEvent") == before + 1
    np.testing.assert_array_equal(module.constant("weights", [9])[:2], [9, 2])
    with pytest.raises(jd.InvalidArgument, match="has no constant absent"):
        module.constant("absent", [1.0])
    with pytest.raises(jd.InvalidShape, match="16 bytes, and the values 20"):
        module.constant("weights", [1, 2, 3, 4, 5])
    with pytest.raises(jd.InvalidType, match="float32, and the values of float64"):
        module.constant("weights", np.zeros(4))
    with pytest.raises(jd.InvalidType, match="it must be numbers"):
        module.constant("weights", ["a"])


def test_arrays_of_a_text_are_those_of_its_gpu() -> None:
    module: Any = jd.module(WEIGHTED, "mine", device="cuda")
    with pytest.raises(jd.DeviceError, match="x of weighted is on cuda:1, and the module is for cuda:0"):
        module["weighted"](on_gpu(device="cuda:1"), on_gpu(), 1, 0, grid=1, block=1)
    fail("cuLaunchKernel", 700)
    with pytest.raises(
        jd.DeviceError, match=r"launch of .*weighted.*a kernel read or wrote beside its memory"
    ):
        module["weighted"](on_gpu(), on_gpu(), 1, 0, grid=1, block=1)
