"""What every GPU device does beside running kernels; for CUDA also over a stand-in for the driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn import retention
from jitdnn.devices import cuda, opencl
from jitdnn.devices.gpu import Launch, OutOfMemory, Source
from jitdnn.devices.scratch import Scratch
from jitdnn.rtcg.use import noting
from jitdnn.tensor import DeviceArray

HERE = Path(__file__).parent

ADD = """
KERNEL(64) void add(GLOBAL const f32 *x, GLOBAL f32 *y, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 n, SCALE c) {
    for (i64 i = (i64)BLOCK_ID(0) * 64 + THREAD_ID; i < n; i += (i64)GRID_SIZE(0) * 64) y[i] = x[i] + (f32)c;
}
"""


def pooled(x: Any, window: int) -> Any:
    """Maxima over windows side by side, by NumPy alone: a machine with a GPU may lack the CPU's compiler."""
    n, c, h, w = x.shape
    cut = x[:, :, : h // window * window, : w // window * window]
    return cut.reshape(n, c, h // window, window, w // window, window).max((3, 5))


def is_pocl(device: Any) -> bool:
    return (
        isinstance(device, opencl.OpenClDevice)
        and device.handle.platform.name == "Portable Computing Language"
    )


def adder(device: Any, n: int, value: float, groups: int = 4) -> Any:
    return device.kernel(Source("add", ADD), [Launch("add", groups, 64)], 2, [n], [value])


def test_cuda_over_a_stand_in_for_the_driver(tmp_path: Path) -> None:
    """The files `fake_driver*_checks.py` in a process whose libcuda has memory, streams and graphs, and no GPU."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("a C compiler makes the stand-in, for Linux")
    library = tmp_path / "libcuda.so.1"
    command: list[str | Path] = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        library,
    ]
    subprocess.run([*command, HERE / "fake_driver.c", "-ldl"], check=True)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *HERE.glob("fake_driver*_checks.py")],
        env={**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


class TestDevice:
    def test_is_described(self, device: Any) -> None:
        assert device.name
        assert device.device_id == (device.target, device.index)
        assert device.multiprocessors >= 1
        assert device.max_threads >= 64
        assert device.shared_bytes >= 16 << 10
        assert device.bandwidth > 1e9
        assert device.peak_flops("f32") >= device.peak_flops("f64") > 0
        module = cuda if device.target == "cuda" else opencl
        assert module.missing() is None

    def test_that_is_not_there_is_said_in_one_line(self) -> None:
        for name in ("cuda:77", "opencl:77"):
            with pytest.raises(jd.DeviceError) as caught:
                jd.Handle(name)
            assert "\n" not in str(caught.value)
        for name in ("gpu", "cuda:x", "cpu:1", ""):
            with pytest.raises(jd.InvalidArgument, match="the device is"):
                jd.Handle(name)

    def test_memory_is_written_and_read(self, device: Any) -> None:
        x = np.random.default_rng(0).standard_normal(1000)
        memory = device.allocate(x.nbytes)
        assert memory.pointer % 64 == 0
        device.write(memory.pointer, x)
        y = np.empty(10)
        device.read(y, memory.pointer + 8 * 100)
        np.testing.assert_array_equal(y, x[100:110])
        assert device.allocate(0).pointer == 0

    def test_without_room(self, device: Any) -> None:
        with pytest.raises(OutOfMemory, match=f"no memory for 8 TiB on .*{device.target}:0") as caught:
            device.allocate(1 << 43)
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value, jd.DeviceError)

    def test_streams_wait_for_each_other(self, device: Any) -> None:
        n = 1 << 16
        held = [device.own_stream() for _ in range(2)]
        first, second = (device.stream(one) for one in held)
        x, y, z = (device.allocate(4 * n, first) for _ in range(3))
        device.write(x.pointer, np.zeros(n, np.float32), first)
        plus, again = adder(device, n, 1.0), adder(device, n, 2.0)
        for _ in range(20):
            plus(first, (x.pointer, y.pointer), 1.0, 0.0, 0)
            device.order(second, first)
            again(second, (y.pointer, z.pointer), 1.0, 0.0, 0)
            device.order(first, second)
        result = np.empty(n, np.float32)
        device.read(result, z.pointer, second)
        assert (result == 3).all()

    def test_measures(self, device: Any) -> None:
        held = device.own_stream()
        stream = device.stream(held)
        n = 1 << 20
        x = device.allocate(8 * n, stream)
        device.write(x.pointer, np.zeros(n, np.float32), stream)
        kernel = adder(device, n, 1.0)
        seconds = device.measure(stream, lambda: kernel(stream, (x.pointer, x.pointer + 4 * n), 1.0, 0.0, 0))
        assert 1e-7 < seconds < 1.0

    def test_a_launch_that_cannot_be_names_its_kernel(self, device: Any) -> None:
        kernel = device.kernel(Source("add", ADD), [Launch("add", 1, 1 << 20)], 2, [1], [1.0])
        x = device.allocate(64)
        with pytest.raises(jd.DeviceError, match="launch of add"):
            kernel(None, (x.pointer, x.pointer), 1.0, 0.0, 0)

    def test_text_that_does_not_compile_says_why(self, device: Any) -> None:
        with pytest.raises(jd.CompileError, match=r"wrong does not compile(.|\n)*nothing_like_it"):
            device.kernel(
                Source("wrong", "KERNEL(1) void f(i64 n) { nothing_like_it(); }"), [Launch("f", 1, 1)], 0
            )

    def test_threads_with_streams_of_their_own(self, device: Any) -> None:
        n, errors = 4096, []

        def work(number: int) -> None:
            try:
                held = device.own_stream()
                stream = device.stream(held)
                x, y = device.allocate(4 * n, stream), device.allocate(4 * n, stream)
                values = np.full(n, number, np.float32)
                device.write(x.pointer, values, stream)
                for _ in range(10):
                    adder(device, n, 1.0)(stream, (x.pointer, y.pointer), 1.0, 0.0, 0)
                    device.read(values, y.pointer, stream)
                    assert (values == number + 1).all()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def test_one_kernel_in_many_threads(self, device: Any) -> None:
        n, kernel, errors = 1024, adder(device, 1024, 1.0), []

        def work(number: int) -> None:
            x = jd.to_device(np.full(n, number, np.float32), device.target)
            for _ in range(20):
                y = jd.empty(n, device=device.target)
                kernel(None, (x.pointer, y.pointer), 1.0, 0.0, 0)
                if not (y.numpy() == number + 1).all():
                    errors.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def test_scratch_memory(self, device: Any) -> None:
        scratch = Scratch(device)
        stream = device.default_stream
        with scratch.reserve(stream, 100) as first:
            assert first % 64 == 0
        with scratch.reserve(stream, 1 << 20):
            assert scratch.bytes == 1 << 20
        scratch.trim()
        assert scratch.bytes == 0

    def test_scratch_memory_of_a_handler_is_its_own(self, device: Any) -> None:
        """A signal handler runs in the middle of a call of its own thread, whose phases share what they wrote."""
        scratch = Scratch(device)
        stream = device.default_stream
        with scratch.reserve(stream, 100) as outer:
            with scratch.reserve(stream, 100) as inner:
                assert inner != outer
            with scratch.reserve(stream, 1 << 20) as larger:
                assert larger != outer
        with scratch.reserve(stream, 100) as again:
            assert again == outer

    def test_compiled_code_comes_from_the_disk(self, device: Any, tmp_path: Path) -> None:
        """Only what a driver keeps by itself, as PoCL does, is not kept again."""
        text = ADD.replace("(f32)c", "tanh((f32)c * x[i])")
        with jd.settings(cache=True, cache_dir=tmp_path):
            with noting() as first:
                device.compile(Source("disk", text))
            with noting() as again:
                device.compile(Source("disk", text))
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert list(first.compiled) == ["disk"]
        if is_pocl(device):
            assert not files
        else:
            assert files
            assert not again.compiled

    def test_plans_without_arrays(self, device: Any) -> None:
        problem = "pool_fwd max n1 c2 h16 w16 window3 stride1 pad0 f32 nchw"
        with jd.settings(target=device.target):
            plan = jd.plan(problem)
        assert plan.device_id == device.device_id
        assert device.name in plan.explain()

    def test_find(self, device: Any) -> None:
        problem = "pool_fwd max n1 c2 h16 w16 window3 stride1 pad0 f32 nchw"
        with jd.settings(target=device.target, choice="find", cache=False):
            plan = jd.plan(problem)
            measured = [c for c in plan.candidates if c.refused is None]
            assert measured
            assert {c.source for c in measured} <= {"measured", "estimate", "stored"}

    def test_a_handle_runs_plans_on_addresses(self, device: Any) -> None:
        x = np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32)
        given, out = jd.to_device(x, device.target), jd.empty((1, 2, 3, 3), device=device.target)
        for handle in (jd.Handle(device), jd.Handle(target=device.target)):
            plan = handle.plan(jd.parse("pool_fwd max n1 c2 h6 w6 window2 stride2 pad0 f32 nchw"))
            handle.run(plan, [given.pointer, out.pointer])
            np.testing.assert_array_equal(out.numpy(), pooled(x, 2))
            handle.trim()
            handle.forget()


def _output_of(code: str, environment: dict[str, str]) -> str:
    """What a program that uses the GPU prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.skipif(not cuda.device_count(), reason="no NVIDIA GPU")
class TestRealGpu:
    """What only the real driver can show."""

    def test_graph(self) -> None:
        x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
        given, handle = jd.to_device(x, "cuda"), jd.Handle("cuda")
        out = jd.max_pool(given, 3, handle=handle)
        with handle.capture() as graph:
            jd.max_pool(given, 3, out=out)
        for _ in range(3):
            x += 1
            given.fill_from(x)
            graph.replay()
            graph.synchronize()
            np.testing.assert_array_equal(out.numpy(), pooled(x, 3))

    def test_graph_with_scratch_memory(self) -> None:
        """A convolution's, after which the scratch memory grows."""
        rng = np.random.default_rng(0)
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 64, 28, 28), (64, 64, 3, 3)))
        given, filters, handle = jd.to_device(x, "cuda"), jd.to_device(w, "cuda"), jd.Handle("cuda")
        out = jd.conv(given, filters, padding=1, handle=handle)
        expected = out.numpy()
        with handle.capture() as graph:
            jd.conv(given, filters, padding=1, out=out)
        larger = jd.to_device(np.concatenate([x] * 8), "cuda")
        jd.conv(larger, filters, padding=1, handle=handle)
        out.fill_from(np.zeros_like(expected))
        graph.replay()
        graph.synchronize()
        np.testing.assert_array_equal(out.numpy(), expected)

    def test_a_failing_kernel_is_explained(self) -> None:
        code = """
import jitdnn as jd, numpy as np
from jitdnn.devices import cuda
from jitdnn.devices.gpu import Launch, Source
text = '''KERNEL(1) void wild(GLOBAL f32 *y, GLOBAL u8 *workspace, SCALE alpha, SCALE beta) { y[0] = 1; }'''
device = cuda.device()
device.kernel(Source('wild', text), [Launch('wild', 1, 1)], 1)(None, (64,), 1.0, 0.0, 0)
try:
    device.synchronize()
except jd.DeviceError as error:
    print(error)
try:
    jd.max_pool(jd.empty((1, 1, 4, 4), device='cuda'), 2)
except jd.DeviceError as error:
    print(error)
"""
        lines = _output_of(code, dict(os.environ)).splitlines()
        assert len(lines) == 2, lines
        assert all("a kernel read or wrote beside its memory" in line for line in lines), lines

    def test_every_gpu_has_its_handle(self) -> None:
        x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
        for index in range(cuda.device_count()):
            y = jd.max_pool(jd.to_device(x, f"cuda:{index}"), 3)
            assert isinstance(y, DeviceArray)
            assert y.device == f"cuda:{index}"
            np.testing.assert_array_equal(y.numpy(), pooled(x, 3))

    def test_cold_compile_and_disk(self, tmp_path: Path) -> None:
        """Under three seconds by the compiler, under five milliseconds from the disk, in a process of its own."""
        code = """
import time, jitdnn as jd
with jd.settings(target='cuda'):
    jd.current_handle().device
    start = time.perf_counter()
    jd.plan('pool_fwd max n8 c64 h56 w56 window3 stride2 pad1 f32 nchw')
    first = time.perf_counter() - start
    jd.current_handle().forget()
    start = time.perf_counter()
    jd.plan('pool_fwd max n8 c64 h56 w56 window3 stride2 pad1 f32 nchw')
    print(first, time.perf_counter() - start)
"""
        environment = {**os.environ, "JITDNN_CACHE_DIR": str(tmp_path)}
        cold, _ = map(float, _output_of(code, environment).split())
        _, warm = map(float, _output_of(code, environment).split())
        assert cold < 3.0 + 1.5, "and planning, in a process that has just begun"
        assert warm < 0.005 + 0.005


def test_programs_of_pocl_count_as_what_they_take() -> None:
    """It does not tell; some MiB of the process each, of which a small limit keeps few."""
    if not opencl.device_count() or not is_pocl(opencl.device()):
        pytest.skip("no PoCL")

    def compile_some(first: int, count: int) -> None:
        x = jd.to_device(np.ones(5, np.float32), "opencl")
        for number in range(first, first + count):
            jd.elementwise(f"x: x * {number} + 3.25")(x)

    retention.code.age()
    retention.code.age()
    before = retention.code.account.bytes
    with jd.settings(cache=False):
        compile_some(1, 3)
    assert retention.code.account.bytes - before >= 3 << 20
    with jd.settings(cache=False, code_limit=before + (4 << 20)):
        jd.current_handle().trim()
        compile_some(10, 8)
    assert retention.code.account.bytes <= before + (6 << 20)
