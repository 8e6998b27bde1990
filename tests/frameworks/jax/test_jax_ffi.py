"""Calls that XLA makes without Python: values, calls side by side, and where they are left to Python."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd

jax: Any = pytest.importorskip("jax", reason="JAX is not installed")
jj: Any = pytest.importorskip("jitdnn.jax")
callback: Any = pytest.importorskip("jitdnn.frameworks.jax.callback")
handlers: Any = pytest.importorskip("jitdnn.frameworks.jax.handlers")
interface: Any = pytest.importorskip("jitdnn.frameworks.jax.interface")
python_handlers: Any = pytest.importorskip("jitdnn.frameworks.jax.python_handlers")
jnp = jax.numpy
rng = np.random.default_rng(4)
if interface.missing():
    pytest.skip(f"every call is one of Python here: {interface.missing()}", allow_module_level=True)


def normal(*shape: int, dtype: str = "float32") -> Any:
    return jnp.asarray(rng.standard_normal(shape)).astype(dtype)


def no_python(*_: Any) -> Any:
    raise AssertionError("Python was called in the middle of JAX's program")


def theirs(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (2, 2), ((1, 1), (1, 1)))


def ours(x: Any, w: Any) -> Any:
    return jj.conv(x, w, stride=2, padding=1)


@pytest.fixture
def without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of Python in a program fails. The functions that are called are looked up when a program is traced."""
    monkeypatch.setattr(jax, "pure_callback", no_python_traced)


def no_python_traced(function: Any, shape: Any, *arrays: Any, **options: Any) -> Any:
    return real_callback(no_python, shape, *arrays, **options)


real_callback = jax.pure_callback


@pytest.mark.usefixtures("without_python")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_and_gradients(dtype: str) -> None:
    x, w = normal(3, 4, 11, 7, dtype=dtype), normal(5, 4, 3, 3, dtype=dtype)
    limit = 1e-4 if dtype == "float32" else 6e-2
    with jd.settings(threads=1):
        y = jax.jit(ours)(x, w)
        slopes = jax.jit(jax.grad(lambda x, w: (ours(x, w).astype("float32") ** 2).sum(), (0, 1)))(x, w)
    np.testing.assert_allclose(np.float32(y), np.float32(theirs(x, w)), rtol=limit, atol=6 * limit)
    wanted = jax.grad(lambda x, w: (theirs(x, w).astype("float32") ** 2).sum(), (0, 1))(x, w)
    for found, expected in zip(slopes, wanted, strict=True):
        scale = float(abs(expected).max())
        np.testing.assert_allclose(np.float32(found) / scale, np.float32(expected) / scale, atol=limit)


@pytest.mark.usefixtures("without_python")
def test_pooling_and_lrn() -> None:
    x = normal(2, 6, 9, 9)
    with jd.settings(threads=1):
        for run, expected in (
            (lambda x: jj.max_pool(x, 3, 2), jd.max_pool(np.asarray(x), 3, 2)),
            (lambda x: jj.avg_pool(x, 2), jd.avg_pool(np.asarray(x), 2)),
            (lambda x: jj.lrn(x, 3), jd.lrn(np.asarray(x), 3)),
        ):
            np.testing.assert_allclose(jax.jit(run)(x), expected, rtol=1e-6, atol=1e-6)
            jax.block_until_ready(jax.jit(jax.grad(lambda x, run=run: run(x).sum()))(x))


def test_programs_of_many_threads_share_a_handler() -> None:
    """XLA calls a handler from several threads at once: arguments of one call must not reach another."""
    w = normal(8, 4, 3, 3)
    inputs = [normal(2, 4, 17, 17) for _ in range(8)]
    with jd.settings(threads=1):
        run = jax.jit(ours)
        expected = [np.asarray(theirs(x, w)) for x in inputs]
        run(inputs[0], w)
    wrong: list[int] = []

    def work(first: int) -> None:
        for number in range(60):
            place = (first + number) % len(inputs)
            if not np.allclose(run(inputs[place], w), expected[place], atol=1e-4):
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_same_call_twice_in_one_program() -> None:
    x, w = normal(2, 4, 8, 8), normal(4, 4, 3, 3)
    with jd.settings(threads=1):
        before = len(callback._targets)
        run = jax.jit(
            lambda x, w: jj.conv(jj.conv(x, w, padding=1), w, padding=1) + jj.conv(x + 1, w, padding=1)
        )
        found = run(x, w)
        assert len(callback._targets) == before + 1
    one = lambda x: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")  # noqa: E731
    np.testing.assert_allclose(found, one(one(x)) + one(x + 1), rtol=1e-3, atol=1e-3)


def test_batches_of_batches() -> None:
    x, w = normal(3, 2, 2, 4, 8, 8), normal(4, 4, 3, 3)
    with jd.settings(threads=1):
        found = jax.jit(jax.vmap(jax.vmap(ours, (0, None)), (0, None)))(x, w)
        per_filter = jax.vmap(ours, (None, 0))(x[0, 0], jnp.stack([w, 2 * w]))
    np.testing.assert_allclose(found[2, 1], theirs(x[2, 1], w), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(per_filter[1], 2 * theirs(x[0, 0], w), rtol=1e-4, atol=1e-4)


def test_another_interface_leaves_calls_to_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(2, 4, 9, 5), normal(3, 4, 3, 3)
    with jd.settings(threads=1, log="off"), monkeypatch.context() as patch:
        patch.setattr(callback, "missing", lambda: "declared otherwise")
        patch.setattr(callback, "_targets", {})
        found = jax.jit(lambda x, w: ours(x, w))(x, w)  # traced anew
        np.testing.assert_allclose(found, theirs(x, w), rtol=1e-4, atol=1e-4)
        assert list(callback._targets.values()) == [{}]


@pytest.mark.usefixtures("without_python")
def test_what_cannot_be_replayed_is_python_where_the_arrays_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(2, 4, 10, 5), normal(3, 4, 3, 3)
    monkeypatch.setattr(callback, "Recorder", RefusingRecorder)
    with jd.settings(threads=1, log="off"):
        found = jax.jit(lambda x, w: ours(x, w))(x, w)
    np.testing.assert_allclose(found, theirs(x, w), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("without_python")
@pytest.mark.parametrize("pool", ["own", "openmp"])
def test_calls_on_several_threads(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several programs side by side, too: our pool takes one at a time, and the others do their work alone."""
    if pool == "openmp":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(python_handlers, "add", no_python)
    inputs = [normal(4, 8, 33, 29) for _ in range(4)]
    w = normal(16, 8, 3, 3)
    with jd.settings(threads=2, thread_pool=pool, log="off"):
        run = jax.jit(lambda x, w: ours(x, w))
        run(inputs[0], w)
    found: list[Any] = [None] * len(inputs)

    def work(place: int) -> None:
        for _ in range(10):
            found[place] = np.asarray(run(inputs[place], w))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for y, x in zip(found, inputs, strict=True):
        np.testing.assert_allclose(y, theirs(x, w), rtol=1e-4, atol=1e-4)


def test_what_a_handler_raises_is_an_error_of_the_program() -> None:
    def fail(addresses: list[int], stream: int) -> None:
        raise jd.InvalidShape(f"{len(addresses)} arrays, stream {stream}")

    address = python_handlers.add(fail, 1, 1, has_stream=False)
    jax.ffi.register_ffi_target(
        "jitdnn_test_failing", jax.ffi.pycapsule(ctypes.c_void_p(address)), platform="cpu"
    )
    x = normal(3)
    call = jax.jit(lambda x: jax.ffi.ffi_call("jitdnn_test_failing", jax.ShapeDtypeStruct((3,), x.dtype))(x))
    with pytest.raises(Exception, match="InvalidShape: 2 arrays, stream 0"):
        jax.block_until_ready(call(x))


class RefusingRecorder(callback.Recorder):  # type: ignore[misc]
    def add(self, *_: Any) -> bool:
        raise callback.NotRecordable("not this one")


def test_another_interface_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    place = tmp_path / "xla" / "ffi" / "api"
    place.mkdir(parents=True)
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    assert "no header" in interface.missing()
    text = header.read_text()
    for old, new in (
        ("XLA_FFI_API_MINOR 3", "XLA_FFI_API_MINOR 9"),
        ("  void* data;\n  int64_t rank;", "  int64_t rank;\n  void* data;"),
        ("XLA_FFI_ExecutionStage_EXECUTE = 3", "XLA_FFI_ExecutionStage_EXECUTE = 4"),
        ("  XLA_FFI_Args args;\n", ""),
    ):
        assert old in text
        (place / "c_api.h").write_text(text.replace(old, new))
        assert interface.missing()
    renamed = text.replace("XLA_FFI_Extension_Base", "XLA_FFI_InternalExtension")
    renamed = renamed.replace("XLA_FFI_ExecutionContext", "XLA_FFI_InvokeContext")
    (place / "c_api.h").write_text(renamed.replace("XLA_FFI_API_MINOR 3", "XLA_FFI_API_MINOR 4"))
    assert interface.missing() is None
    assert interface.minor() == 4
    (place / "c_api.h").write_text(text)
    assert interface.missing() is None


def test_more_kinds_of_calls_than_a_table_has_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback, "_handlers", handlers.Handlers())
    with jd.settings(threads=1):
        for extent in range(1, handlers._COUNT + 8):
            x = normal(1, 1, extent)
            np.testing.assert_array_equal(jj.max_pool(x, 1), x)
    assert callback._handlers._used == 7


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, sys
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
import jitdnn.jax as jj
x, w = jnp.arange(200.0).reshape(1, 2, 10, 10), jnp.ones((3, 2, 3, 3))
y = jax.jit(lambda x, w: jj.conv(x, w))(x, w)
print(float(abs(y - jax.lax.conv_general_dilated(x, w, (1, 1), "VALID")).max()) < 1e-2)
"""


def test_programs_kept_by_jax_call_the_handlers_of_their_process(tmp_path: Path) -> None:
    environment = os.environ | {"JITDNN_THREADS": "1", "JITDNN_CACHE_DIR": str(tmp_path / "ours")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "theirs")],
            capture_output=True, text=True, env=environment, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "True"
