"""The registry of targets, and a target that nothing in the library knows: the plain kernels in C on the processor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from harness import check
from jitdnn import targets
from jitdnn.errors import DeviceError, InvalidArgument, NotSupported
from jitdnn.planner.plan import Request
from jitdnn.problems import parse
from plain_c.device import TARGET, PlainDevice, missing, registered

RNG = np.random.default_rng(0)


@pytest.fixture
def plain() -> Iterator[None]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with registered():
        yield


def test_what_is_built_in() -> None:
    assert targets.names() == targets.BUILT_IN == ("cpu", "cuda", "opencl")
    assert targets.gpu_names() == ("cuda", "opencl")
    assert not targets.is_gpu("cpu")
    assert not targets.is_gpu("abacus")
    assert targets.find("abacus") is None
    with pytest.raises(InvalidArgument, match="abacus: there are cpu, cuda, opencl"):
        targets.get("abacus")


def test_a_name_is_registered_once() -> None:
    cpu = targets.get("cpu")
    with pytest.raises(InvalidArgument, match="a target cpu already"):
        targets.register(replace(cpu))
    with registered():
        targets.register(replace(TARGET, needs="nothing"), replace=True)
        assert targets.get("plain").needs == "nothing"
    assert targets.find("plain") is None


def test_what_a_target_needs_is_said() -> None:
    def devices() -> Any:
        raise ImportError("no module named abacus")

    target = replace(TARGET, name="abacus", devices=devices, needs="an abacus")
    assert target.missing() == "the abacus target needs an abacus (no module named abacus)"
    with pytest.raises(DeviceError, match="needs an abacus"):
        target.device()


def test_devices_on_paper() -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    assert targets.on_paper("sm_90a").arch == "sm_90a"  # type: ignore[attr-defined]
    assert targets.on_paper("cuda:0") is None
    assert targets.on_paper("cpu") is None


@pytest.mark.parametrize(
    ("target", "others"), [("cpu", ("cuda", "opencl", "cudnn", "gpu")), ("opencl", ("cuda", "cpu"))]
)
def test_nobody_imports_the_kernels_or_devices_of_other_targets(target: str, others: tuple[str, ...]) -> None:
    script = (
        "import sys; from jitdnn import targets\n"
        f"target = targets.get({target!r}); target.table(); target.devices()\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert f"jitdnn.devices.{target}" in modules
    for other in others:
        assert not any(name.startswith(f"jitdnn.kernels.{other}.") for name in modules), other
        assert other == "gpu" or f"jitdnn.devices.{other}" not in modules, other


def test_it_is_gone_where_it_is_not_registered() -> None:
    with pytest.raises(InvalidArgument, match="it must be cpu, cuda, opencl, or"):
        jd.Handle("plain")
    with pytest.raises(InvalidArgument, match="must be one of cpu, cuda, opencl"):
        jd.Handle(target="plain")


@pytest.mark.usefixtures("plain")
class TestPlain:
    """A new target, through the public functions."""

    def test_its_names(self) -> None:
        assert targets.gpu_names()[-1] == "plain"
        assert jd.Handle("plain").device == jd.Handle("plain:0").device == PlainDevice()
        assert jd.Handle(target="plain").device == PlainDevice()
        array = jd.to_device(np.arange(6.0).reshape(2, 3), "plain")
        assert array.device == "plain:0"
        with pytest.raises(InvalidArgument, match="must be cuda or opencl or plain"):
            jd.to_device([1.0], "abacus")

    def test_memory_of_its_own(self) -> None:
        array = jd.to_device(np.arange(6.0, dtype=np.float32), "plain")
        assert not hasattr(array, "__cuda_array_interface__")
        with pytest.raises(DeviceError, match="must be on one device"):
            jd.add(array, np.ones(6, np.float32))
        with pytest.raises(DeviceError, match="graphs are there for cuda"), jd.Handle("plain").capture():
            pass

    @pytest.mark.parametrize(
        "text",
        [
            "activation_fwd relu shape3x5x7x9 f32",
            "activation_fwd gelu shape4x33 f32",
            "activation_bwd sigmoid shape2x64 f16",
            "reduce add shape5x300 axis1 f32",
            "reduce max shape7x11x13 axis0x2 f32",
            "softmax_fwd accurate shape6x1000 axis1 f32",
            "layer_norm_fwd shape4x9x70 axis2 f32",
            "pool_fwd max n2 c3 h13 w11 window3 stride2 pad1 f32 nchw",
            "pool_bwd avg n2 c3 h13 w11 window3 stride2 pad1 f32 nhwc",
            "conv_fwd n2 c5 h9 w8 k7 r3 s3 stride2 pad1 f32",
            "conv_bwd_data n1 c6 h7 w7 k4 r3 s3 g2 pad1 f32 nhwc",
            "conv_bwd_filter n2 c3 h8 w8 k5 r3 s3 f32",
            "matmul m17 n33 k65 f32",
            "ctc_loss_bwd logits sum t9 n2 a7 s4 zero_infinity f32",
            "affine_grid_bwd shape2x5x7 f32 nchw",
            "grid_sample_bwd_data linear border shape2x3x2x3 out9x12 f32 nchw",
        ],
    )
    def test_results_are_those_of_the_reference(self, text: str) -> None:
        """Every algorithm of the plain table that takes the problem, in guarded memory."""
        assert check(parse(text), PlainDevice(), scales=[(1.0, 0.0)])

    def test_a_plan_of_a_handle(self) -> None:
        problem = parse("pool_fwd avg n2 c3 h9 w9 window3 pad1 f32 nchw")
        handle = jd.Handle("plain")
        x = jd.to_device(_filled(problem.inputs[0].descriptor.shape), "plain")
        y = jd.empty(problem.output.shape, "f32", "plain")
        plan = handle.plan(problem)
        handle.run(plan, [x.pointer, y.pointer])
        np.testing.assert_allclose(y.numpy(), problem.reference(x.numpy()), rtol=1e-5, atol=1e-6)
        assert "processor by way of C" in plan.explain()

    def test_public_functions(self) -> None:
        x, w = _filled((2, 4, 9, 9)), _filled((6, 4, 3, 3))
        here, there = (
            jd.conv(x, w, padding=1),
            jd.conv(jd.to_device(x, "plain"), jd.to_device(w, "plain"), padding=1),
        )
        np.testing.assert_allclose(there.numpy(), here, rtol=1e-5, atol=1e-5)
        y = jd.to_device(x, "plain")
        for _ in range(2):  # the second one by the cached fast path
            np.testing.assert_array_equal(jd.relu(y).numpy(), np.maximum(x, 0))
        np.testing.assert_allclose(jd.softmax(y).numpy(), jd.softmax(x), rtol=1e-5)

    def test_formulas_of_ones_own(self) -> None:
        x = _filled((3, 50))
        double = jd.elementwise("2 * x + 1")
        np.testing.assert_allclose(double(jd.to_device(x, "plain")).numpy(), 2 * x + 1, rtol=1e-6)

    def test_what_it_lacks_is_said(self) -> None:
        with pytest.raises(NotSupported, match="it runs in host memory, not on plain"):
            jd.Handle("plain").plan(parse("rnn_fwd lstm t3 n2 inputs4 hidden5 f32"), Request())

    def test_its_code(self) -> None:
        plan = jd.Handle("plain").plan(parse("activation_fwd relu shape3x5 f32"))
        assert "kernel_of_this_source" in plan.code("c")
        assert "c" in TARGET.code_forms

    def test_a_barrier_that_threads_miss(self) -> None:
        from jitdnn.devices.gpu import Launch, Source

        text = (
            "KERNEL(8) void miss(GLOBAL f32 *y, GLOBAL u8 *w, SCALE a, SCALE b) { if (THREAD_ID) BARRIER(); }"
        )
        kernel = PlainDevice().kernel(Source("miss", text), [Launch("miss", 1, 8)], 1)
        with pytest.raises(DeviceError, match="miss a barrier"):
            kernel(0, [0], 1.0, 0.0, 0)


def _filled(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)
