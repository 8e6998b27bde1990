"""Constants that give their memory back: what is read stays, what is made again has its elements again."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn
from jitdnn.errors import InvalidArgument
from jitdnn.graph.originals import LEAST_BYTES, Originals

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere all of it stays")

Array = np.ndarray[Any, Any]
SIZE = 2 * LEAST_BYTES // 4


def test_arrays_are_made_again_with_their_elements() -> None:
    before = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    array, originals = before.copy(), Originals()
    with originals.making():
        originals.add([array], lambda: [before.copy()])
    assert originals.given_up == array.nbytes
    middle = slice(SIZE // 4, SIZE // 2)
    assert not array[middle].any()
    with originals.making():
        np.testing.assert_array_equal(array, before)
        with originals.making():
            pass
        np.testing.assert_array_equal(array, before)  # another plan is still being made
    assert originals.given_up == array.nbytes


def test_one_that_is_read_stays() -> None:
    first, second = (np.random.default_rng(n).standard_normal(SIZE).astype(np.float32) for n in range(2))
    copies = first.copy(), second.copy()
    originals = Originals()
    with originals.making():
        originals.add([first, second], lambda: [one.copy() for one in copies])
        originals.read([first.__array_interface__["data"][0] + first.nbytes // 2])
    np.testing.assert_array_equal(first, copies[0])
    assert originals.given_up == second.nbytes


def test_small_ones_stay() -> None:
    array, originals = np.ones(LEAST_BYTES // 8, np.float32), Originals()
    with originals.making():
        originals.add([array], lambda: [np.ones_like(array)])
    assert originals.given_up == 0
    assert array.all()


@functools.cache
def _kept() -> Array:
    return np.ones(SIZE, np.float32)


@pytest.mark.parametrize("make", [_kept, lambda: np.random.default_rng().random(SIZE, np.float32)])
def test_what_is_kept_or_drawn_elsewhere_stays(make: Any) -> None:
    array, originals = make(), Originals()
    before = array.copy()
    with originals.making():
        originals.add([array], lambda: [make()])
    assert originals.given_up == 0
    np.testing.assert_array_equal(array, before)


def test_what_is_derived_is_made_of_what_was_made_again() -> None:
    before = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    array, originals = before.copy(), Originals()
    with originals.making():
        originals.add([array], lambda: [before.copy()])
        half = array / 2
        originals.add([half], lambda: [array / 2])
        originals.add([half[: SIZE // 2]], lambda: [half[: SIZE // 2]])  # a view of it changes nothing
    assert originals.given_up == array.nbytes + half.nbytes
    with originals.making():
        np.testing.assert_array_equal(half, before / 2)


def test_nothing_is_given_up_where_anything_may_be_read() -> None:
    array, originals = np.ones(SIZE, np.float32), Originals()
    with originals.making():
        originals.add([array], lambda: [np.ones_like(array)])
        originals.stay()
    assert originals.given_up == 0
    assert array.all()


CHANNELS = 192


def model() -> Any:
    """Convolutions whose filters are packed, one of them with a normalization folded in, and a product."""
    random = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("Conv", ["r", "w1"], ["c"], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["c"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("MatMul", ["f", "w2"], ["y"]),
    ]
    shape = (CHANNELS, CHANNELS, 3, 3)
    constants = {
        "w0": 0.02 * random.standard_normal(shape), "w1": 0.02 * random.standard_normal(shape),
        "w2": random.standard_normal((CHANNELS, 64)), "s": random.random(CHANNELS) + 0.5,
        "b": random.standard_normal(CHANNELS), "m": random.standard_normal(CHANNELS),
        "v": random.random(CHANNELS) + 0.5,
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, CHANNELS, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(x: Array) -> Array:
    torch = pytest.importorskip("torch", reason="the peer is not installed")
    given = {
        t.name: torch.from_numpy(numpy_helper.to_array(t).copy()).double() for t in model().graph.initializer
    }
    f = torch.nn.functional
    y = f.conv2d(torch.from_numpy(x).double(), given["w0"], padding=1)
    y = f.batch_norm(y, given["m"], given["v"], given["s"], given["b"], eps=1e-5).relu()
    y = f.conv2d(y, given["w1"], padding=1).mean((2, 3)) @ given["w2"]
    return np.asarray(y)


def image(size: int) -> Array:
    return np.random.default_rng(size).standard_normal((1, CHANNELS, size, size)).astype(np.float32)


def originals_of(loaded: Any) -> Originals:
    found = loaded._prepared._shared.originals
    assert isinstance(found, Originals)
    return found


def test_a_model_gives_up_its_filters_and_reads_them_again_for_other_shapes(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model().SerializeToString())
    loaded = jitdnn.onnx.load(path)
    for size in (12, 7, 12):
        (y,) = loaded.run([image(size)])
        want = expected(image(size))
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-5 * np.abs(want).max())
        # of the first filter, which a normalization was folded into: kernels may read the others as they are
        assert originals_of(loaded).given_up >= CHANNELS * CHANNELS * 9 * 4


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_gone_is_still_read(tmp_path: Path, how: str) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model().SerializeToString())
    loaded = jitdnn.onnx.load(path)
    loaded.run([image(12)])
    if how == "removed":
        path.unlink()
    else:
        other = tmp_path / "other.onnx"
        other.write_bytes(b"nothing")
        other.replace(path)
    (y,) = loaded.run([image(7)])
    want = expected(image(7))
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_a_file_that_was_written_to_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model().SerializeToString())
    loaded = jitdnn.onnx.load(path)
    (first,) = loaded.run([image(12)])
    with open(path, "r+b") as file:
        file.truncate(100)
    os.utime(path, ns=(1, 1))
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=r"net\.onnx was written to since it was loaded"):
            loaded.run([image(7)])
    np.testing.assert_array_equal(loaded.run([image(12)])[0], first)


def test_a_model_in_memory_keeps_what_nothing_else_has() -> None:
    loaded = jitdnn.onnx.prepare(model())
    for size in (12, 7):
        (y,) = loaded.run([image(size)])
        want = expected(image(size))
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-5 * np.abs(want).max())
