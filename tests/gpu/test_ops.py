"""Every public op over arrays in the memory of a GPU: of our own, of PyTorch, of CuPy and of JAX."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, cast

import numpy as np
import pytest

import jitdnn as jd
import ops_cases
from jitdnn.devices import cuda, opencl
from jitdnn.tensor import DeviceArray
from ops_cases import CASES, AnyArray, Case

TOLERANCE = {"float32": 5e-5, "float64": 1e-12}
each_op = pytest.mark.parametrize("case", CASES, ids=str)


class Library:
    """How arrays get onto a GPU and back, by one library."""

    def __init__(self, name: str, target: str, put: Callable[[Any], Any], kind: type) -> None:
        self.name, self.target, self.put, self.kind = name, target, put, kind

    def get(self, array: Any) -> AnyArray:
        if hasattr(array, "detach"):
            array = array.detach().cpu()
        return np.asarray(array.get() if self.name == "cupy" else array)


def _opencl() -> Library:
    if not opencl.device_count():
        pytest.skip("no OpenCL device: Debian's pocl-opencl-icd is one")
    return Library("jitdnn", "opencl", lambda x: jd.to_device(x, "opencl"), DeviceArray)


def _cuda() -> Library:
    if not cuda.device_count():
        pytest.skip("no NVIDIA GPU")
    return Library("jitdnn", "cuda", lambda x: jd.to_device(x, "cuda"), DeviceArray)


def _torch() -> Library:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch sees")
    return Library("torch", "cuda", lambda x: torch.from_numpy(np.array(x)).cuda(), torch.Tensor)


def _cupy() -> Library:
    if not cuda.device_count():
        pytest.skip("no NVIDIA GPU")
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    return Library("cupy", "cuda", cupy.asarray, cupy.ndarray)


def _jax() -> Library:
    if not cuda.device_count():
        pytest.skip("no NVIDIA GPU")
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("no GPU that JAX sees")
    return Library("jax", "cuda", jax.numpy.asarray, jax.Array)


LIBRARIES = {"opencl": _opencl, "cuda": _cuda, "torch": _torch, "cupy": _cupy, "jax": _jax}


@pytest.fixture(params=list(LIBRARIES))
def library(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]()


@pytest.fixture(params=["opencl", "cuda"])
def own(request: pytest.FixtureRequest) -> Library:
    """Arrays of our own alone."""
    return LIBRARIES[request.param]()


def run(case: Case, library: Library, *arrays: Any, **options: Any) -> Any:
    """The op with the whole numbers that it takes beside its arrays on the GPU, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PLACES", "UNPOOLED", "CLASSES"):
            patch.setattr(ops_cases, name, library.put(getattr(ops_cases, name)))
        try:
            return case.run(*arrays, **options)
        except jd.NotSupported as error:
            pytest.skip(f"{case} has no kernel for {library.target} yet: {str(error).splitlines()[0]}")


def assert_close(got: AnyArray, expected: AnyArray, dtype: str = "float32") -> None:
    assert got.shape == expected.shape
    scale = max(np.abs(expected).max(initial=0.0), 1.0)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


@each_op
def test_results_are_of_the_library_of_the_input(case: Case, library: Library) -> None:
    arrays = case.arrays()
    given = [library.put(array) for array in arrays]
    result = run(case, library, *given)
    assert isinstance(result, library.kind)
    assert_close(library.get(result), case.truth(arrays))
    for array, before in zip(given, arrays, strict=True):
        np.testing.assert_array_equal(library.get(array), before)


@each_op
def test_double_precision(case: Case, own: Library) -> None:
    arrays = case.arrays("float64")
    result = run(case, own, *map(own.put, arrays))
    assert result.dtype == np.float64
    assert_close(own.get(result), case.truth(arrays), "float64")


@each_op
@pytest.mark.parametrize(("alpha", "beta"), [(-0.5, 0.0), (2.0, -0.25)])
def test_out_is_scaled_and_added_to(case: Case, library: Library, alpha: float, beta: float) -> None:
    if library.name == "jax":
        pytest.skip("arrays of JAX cannot be written")
    arrays = case.arrays()
    plain = case.truth(arrays)
    old = np.random.default_rng(1).standard_normal(plain.shape).astype(np.float32)
    out = library.put(old if beta else np.full(plain.shape, np.nan, np.float32))
    result = run(case, library, *map(library.put, arrays), alpha=alpha, beta=beta, out=out)
    assert result is out
    assert_close(library.get(out), alpha * plain + beta * old)


def gaps(library: Library, array: AnyArray) -> tuple[Any, Any]:
    """The same values in a region of a larger array on the GPU, backwards along the last axis, and that array."""
    whole = np.full([2 * n + 3 for n in array.shape], np.nan, array.dtype)
    where = (*(slice(1, 2 * n + 1, 2) for n in array.shape[:-1]), slice(2 * array.shape[-1] - 1, 0, -2))
    whole[where] = array
    given = library.put(whole)
    return given[where], given


@each_op
def test_views(case: Case, own: Library) -> None:
    arrays = case.arrays()
    plain = case.truth(arrays)
    given = [gaps(own, array)[0] for array in arrays]
    assert_close(own.get(run(case, own, *given)), plain)
    out, whole = gaps(own, np.zeros(plain.shape, np.float32))
    assert run(case, own, *given, out=out) is out
    assert_close(own.get(out), plain)
    assert np.isnan(own.get(whole)).sum() == whole.size - out.size, "nothing beside it is written"


@each_op
def test_out_in_the_memory_of_an_input(case: Case, own: Library) -> None:
    arrays = case.arrays()
    plain = case.truth(arrays)
    for position, array in enumerate(arrays):
        if array.shape != plain.shape:
            continue
        given = [own.put(other) for other in arrays]
        if position in case.safe_in_place:
            assert run(case, own, *given, out=given[position]) is given[position]
            assert_close(own.get(given[position]), plain)
        else:
            with pytest.raises(jd.InvalidArgument, match=r"pass another out$"):
                run(case, own, *given, out=given[position])


@each_op
def test_arrays_of_two_devices_are_refused(case: Case, own: Library) -> None:
    arrays = case.arrays()
    given = [own.put(array) for array in arrays]
    with pytest.raises(jd.DeviceError, match=rf"is on {own.target}:0.*on one device"):
        run(case, own, *given, out=np.empty(case.truth(arrays).shape, np.float32))
    if len(arrays) > 1:
        with pytest.raises(jd.DeviceError, match=r"is on the host.*on one device"):
            run(case, own, *given[:-1], arrays[-1])


def test_a_handle_elsewhere_is_refused(own: Library) -> None:
    pytest.importorskip("llvmlite", reason="the cpu target needs it")
    x = own.put(np.ones((1, 3, 4, 4), np.float32))
    with jd.Handle("cpu"), pytest.raises(jd.DeviceError, match=f"on {own.target}:0.*in host memory"):
        jd.max_pool(x, 2)
    with jd.settings(target=own.target), pytest.raises(jd.DeviceError, match="to_device"):
        jd.max_pool(np.ones((1, 3, 4, 4), np.float32), 2)


def pooled(x: Any) -> Any:
    """Maxima over windows of 2x2 side by side."""
    n, c, h, w = x.shape
    return x[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))


def test_empty_arrays(own: Library) -> None:
    result = jd.max_pool(own.put(np.empty((0, 3, 4, 4), np.float32)), 2)
    assert (type(result), result.shape) == (DeviceArray, (0, 3, 2, 2))
    assert own.get(result).shape == (0, 3, 2, 2)


def test_channels_last_stays_so(own: Library) -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 7, 3)).astype(np.float32).transpose(0, 3, 1, 2)
    result = jd.max_pool(own.put(x), 2)
    assert result.strides == (3 * 3 * 3 * 4, 4, 3 * 3 * 4, 3 * 4)
    np.testing.assert_array_equal(own.get(result), pooled(x))


def test_the_second_call_of_a_kind_makes_no_plan(own: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = jd.Handle()
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
    jd.max_pool(own.put(x), 2, handle=handle)
    monkeypatch.setattr(jd.Handle, "plan", None)
    np.testing.assert_array_equal(own.get(jd.max_pool(own.put(x + 1), 2, handle=handle)), pooled(x + 1))
    assert len(handle.calls) == 1


class TestAgain:
    """Calls that were made before, which take the cached fast path."""

    @pytest.fixture(params=["opencl", "cuda", "torch"])
    def some(self, request: pytest.FixtureRequest) -> Library:
        return LIBRARIES[request.param]()

    @pytest.fixture
    def x(self) -> AnyArray:
        return np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)

    def test_borrow_nothing(self, some: Library, x: AnyArray, monkeypatch: pytest.MonkeyPatch) -> None:
        out = some.put(np.zeros((2, 3, 3, 3), np.float32))
        for options in ({}, {"out": out}):
            jd.max_pool(some.put(x), 2, **options)
        with monkeypatch.context() as patch:
            patch.setattr("jitdnn.ops.call.borrow", None)
            np.testing.assert_array_equal(some.get(jd.max_pool(some.put(x + 1), 2)), pooled(x + 1))
            assert jd.max_pool(some.put(x + 2), 2, out=out) is out
        np.testing.assert_array_equal(some.get(out), pooled(x + 2))

    def test_operands_of_an_epilogue_come_after_the_output(self, some: Library, x: AnyArray) -> None:
        w, bias = np.ones((4, 3, 1, 1), np.float32), np.arange(4, dtype=np.float32)
        expected = x.sum(1, keepdims=True) + bias[:, None, None]
        for _ in range(3):
            result = jd.conv(some.put(x), some.put(w), bias=some.put(bias))
            np.testing.assert_allclose(some.get(result), expected, rtol=1e-5, atol=1e-5)

    def test_with_other_layouts(self, some: Library, x: AnyArray) -> None:
        for _ in range(2):
            for given in (x, x.transpose(0, 1, 3, 2), x[:, :, 1:], x[:1], x.astype(np.float64)):
                result = some.get(jd.max_pool(some.put(np.array(given)), 2))
                np.testing.assert_array_equal(result, pooled(np.array(given)))
                assert result.dtype == given.dtype
                np.testing.assert_array_equal(
                    some.get(jd.max_pool(some.put(given)[:, 1:], 2)), pooled(given[:, 1:])
                )

    def test_with_other_settings_and_arguments(self, some: Library, x: AnyArray) -> None:
        handle, given = jd.Handle(), some.put(x)
        for _ in range(2):
            jd.max_pool(given, 2, handle=handle)
            with jd.settings(deterministic=True):
                jd.max_pool(given, 2, handle=handle)
            jd.max_pool(given, 3, handle=handle)
            jd.max_pool(given, [2, 2], handle=handle)
        assert len(handle.fast_calls) == 4
        handle.forget()
        assert not handle.fast_calls

    def test_keep_results_apart_from_inputs(self, some: Library) -> None:
        whole = some.put(np.arange(96, dtype=np.float32).reshape(1, 1, 12, 8))
        for _ in range(2):
            jd.max_pool(whole[:, :, :4], 1, out=whole[:, :, 8:])
            with pytest.raises(jd.InvalidArgument, match="shares memory"):
                jd.max_pool(whole[:, :, :4], 1, out=whole[:, :, 3:7])
        for _ in range(3):
            assert jd.relu(whole, out=whole) is whole
        values = some.get(whole)
        np.testing.assert_array_equal(values[:, :, :8].ravel(), np.arange(64))
        np.testing.assert_array_equal(values[:, :, 8:], values[:, :, :4])

    def test_write_every_result_over_an_input(self, some: Library) -> None:
        made = jd.elementwise("w, g, h: d = 0.5 * h + g; w - d, d")
        for size in (1, 7, 4099):
            w, g, h = (np.arange(size, dtype=np.float32) * factor for factor in (1, 2, 4))
            weight, history = some.put(w), some.put(h)
            for _ in range(2):
                made(weight, some.put(g), history, out=(weight, history))
                h = np.float32(0.5) * h + g
                w = w - h
            np.testing.assert_array_equal(some.get(weight), w)
            np.testing.assert_array_equal(some.get(history), h)

    def test_keep_results_apart_from_each_other(self, some: Library, x: AnyArray) -> None:
        given = some.put(x)
        for _ in range(2):
            out = jd.layer_norm(given, save=True)
            assert jd.layer_norm(given, save=True, out=out) == out
            with pytest.raises(jd.InvalidArgument, match="every result needs its own"):
                jd.layer_norm(given, save=True, out=(out[0], out[1], out[1]))

    def test_are_refused_what_the_first_was(self, some: Library, x: AnyArray) -> None:
        given, wrong = some.put(x), cast("float", "two")
        for _ in range(2):
            jd.max_pool(given, 2)
            with pytest.raises(jd.InvalidArgument, match="beta is"):
                jd.max_pool(given, 2, beta=1.0)
            with pytest.raises(jd.InvalidType, match="alpha is"):
                jd.max_pool(given, 2, alpha=wrong)

    def test_are_logged(self, some: Library, x: AnyArray, caplog: pytest.LogCaptureFixture) -> None:
        given = some.put(x)
        with jd.settings(log="debug"):
            for _ in range(3):
                jd.max_pool(given, 2)
        assert caplog.text.count("ran pool_fwd") == 3

    def test_of_many_threads(self, some: Library, x: AnyArray) -> None:
        errors = []

        def work(number: int) -> None:
            for step in range(20):
                result = some.get(jd.max_pool(some.put(x + number + step), 2))
                if not np.array_equal(result, pooled(x + number + step)):
                    errors.append(number)

        with jd.Handle():  # which they share
            threads = [
                threading.Thread(target=copy_context().run, args=(work, number)) for number in range(4)
            ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []


class TestOwnKernels:
    def test_elementwise_with_numbers(self, own: Library) -> None:
        kernel = jd.elementwise("a, x, y: a * x + y")
        x, y = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
        for a in (2.0, 3, -0.5):
            result = kernel(a, own.put(x), own.put(y))
            assert type(result) is DeviceArray
            np.testing.assert_allclose(own.get(result), a * x + y, rtol=1e-6, atol=1e-6)
        given = own.put(x)
        assert kernel(2.0, given, own.put(y), out=given) is given
        np.testing.assert_allclose(own.get(given), 2 * x + y, rtol=1e-6, atol=1e-6)

    def test_mixed_devices_are_refused(self, own: Library) -> None:
        with pytest.raises(jd.DeviceError, match=rf"x is on {own.target}:0, y is on the host"):
            jd.elementwise("x, y: x + y")(own.put(np.ones(4, np.float32)), np.ones(4, np.float32))


class TestTorch:
    """On the stream of PyTorch, and in its graphs."""

    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        self.library = _torch()
        return pytest.importorskip("torch")

    def test_side_streams(self, torch: Any) -> None:
        x = torch.randn(8, 16, 64, 64, device="cuda")
        expected = torch.nn.functional.max_pool2d(x + 20, 2)
        torch.cuda.synchronize()
        for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                y = x
                for _ in range(20):  # each needs what the one before it has written
                    y = y + 1
                result = jd.max_pool(y, 2) + 0
            stream.synchronize()
            torch.testing.assert_close(result, expected)

    def test_graphs(self, torch: Any) -> None:
        x = torch.randn(4, 32, 28, 28, device="cuda")
        w = torch.randn(64, 32, 3, 3, device="cuda")
        jd.max_pool(jd.conv(x, w, padding=1), 2)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = jd.max_pool(jd.conv(x, w, padding=1), 2)
        for _ in range(3):
            x.normal_()
            graph.replay()
            expected = torch.nn.functional.max_pool2d(
                torch.nn.functional.conv2d(x.double(), w.double(), padding=1), 2
            )
            torch.testing.assert_close(y, expected.float(), rtol=1e-4, atol=1e-3)

    def test_gradients_are_not_recorded(self, torch: Any) -> None:
        x = torch.randn(1, 3, 4, 4, device="cuda", requires_grad=True)
        assert not jd.max_pool(x, 2).requires_grad
        out = torch.empty(1, 3, 2, 2, device="cuda", requires_grad=True)
        for _ in range(2):
            jd.max_pool(x, 2, out=out.detach())
            with pytest.raises(jd.InvalidArgument, match="out records gradients"):
                jd.max_pool(x, 2, out=out)

    def test_lazy_negation_is_refused(self, torch: Any) -> None:
        x = torch.zeros(2, 3, dtype=torch.complex64, device="cuda").imag
        y = torch.zeros(2, 3, dtype=torch.complex64, device="cuda").conj().imag
        for _ in range(2):
            jd.relu(x)
            with pytest.raises(jd.InvalidType, match="lazy negation"):
                jd.relu(y)

    def test_mixed_with_arrays_of_our_own(self, torch: Any) -> None:
        x = torch.randn(3, 4, device="cuda")
        y = jd.to_device(np.ones((3, 4), np.float32), "cuda")
        torch.testing.assert_close(jd.add(x, y), x + 1)
        assert type(jd.add(y, x)) is DeviceArray
        torch.testing.assert_close(torch.from_dlpack(jd.add(y, x)), x + 1)
        torch.testing.assert_close(torch.as_tensor(jd.add(y, x), device="cuda"), x + 1)
