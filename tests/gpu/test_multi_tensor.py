"""One launch over many rows of arrays: the formulas of all six solvers against float64, and what rows may be."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import cases
import jitdnn as jd
from cases import Buffer
from examples import examples
from harness import _Mirror
from jitdnn.caffe.update_rules import RULES
from jitdnn.kernels.tables import multi_tensor_kernel
from jitdnn.ops.multi_tensor import MultiTensor
from jitdnn.rtcg.formulas import formula
from jitdnn.tensor import TensorDescriptor

AXPY = "a, x, y: a * x + y"


def computed(text: str, values: dict[str, Any]) -> list[Any]:
    """The results of a formula's text, by NumPy."""
    statements = text.partition(":")[2].split(";")
    space: dict[str, Any] = {"sqrt": np.sqrt, "sign": np.sign, "where": np.where, **values}
    for statement in statements[:-1]:
        exec(statement.strip(), space)  # the text is of this repository
    return list(eval(f"({statements[-1].strip()},)", space))


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_solvers_formulas_over_rows_of_any_length(data: st.DataObject, cuda_device: Any) -> None:
    name = data.draw(st.sampled_from(sorted(RULES)))
    is_l2, dtype = data.draw(st.booleans()), data.draw(st.sampled_from(["f32", "f64"]))
    lengths = data.draw(
        st.lists(st.sampled_from([1, 3, 63, 65, 1023, 1024, 1025, 2500]), min_size=1, max_size=4)
    )
    shift = data.draw(st.sampled_from([1024, 1031]))
    rule = RULES[name]
    text = rule.text(is_l2, keeps_update=True)
    numbers = ("share", "decay", "lr", *rule.constants)
    found = formula(text)
    inputs = found.results[0].inputs
    positions = [position for position, one in enumerate(inputs) if one in numbers]
    arrays = 2 + len(rule.histories)
    kernel, table = multi_tensor_kernel(
        found.results, [dtype] * (len(inputs) + len(found.results)), positions, lengths, cuda_device, dtype
    )
    rng = np.random.default_rng(len(lengths))
    kept: list[Any] = []
    rows, mirrors, wanted = [], [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "GUARD", shift)
        for length in lengths:
            buffers = [Buffer(TensorDescriptor.packed((length,), dtype)) for _ in range(arrays)]
            for place, buffer in enumerate(buffers):
                values = rng.standard_normal(length)
                buffer.values[...] = (
                    np.abs(values) if place > 1 else values
                )  # histories of squares are none below 0
            given_numbers = {one: rng.uniform(0.1, 0.9) for one in numbers}
            memory = [np.array([given_numbers[one]], "f4" if dtype == "f32" else "f8") for one in numbers]
            values = dict(zip(inputs, [buffer.values.astype(np.float64) for buffer in buffers], strict=False))
            values |= {one: float(number[0]) for one, number in zip(numbers, memory, strict=True)}
            w, *histories, update = computed(text, values)
            wanted.append([w, update, *histories])
            each = [_Mirror(cuda_device, buffer.memory, buffer.pointer) for buffer in buffers]
            on_device = [_Mirror(cuda_device, number, number.ctypes.data) for number in memory]
            pointers = [mirror.pointer for mirror in each]
            out = [pointers[0], *pointers[2:], pointers[1]]
            rows.append((*pointers, *(mirror.pointer for mirror in on_device), *out))
            mirrors.append((buffers, each, [buffer.outside() for buffer in buffers]))
            kept += on_device
    words = table(rows)
    sent = _Mirror(cuda_device, words, words.ctypes.data)
    kernel(None, [sent.pointer], 1.0, 0.0, 0)
    cuda_device.synchronize()
    tolerance = 1e-5 if dtype == "f32" else 1e-13
    for (buffers, each, outside), results in zip(mirrors, wanted, strict=True):
        for mirror in each:
            mirror.fetch()
        for buffer, result, before in zip(buffers, results, outside, strict=True):
            scale = max(1.0, np.abs(result).max())
            np.testing.assert_allclose(buffer.values, result, rtol=0, atol=tolerance * scale)
            assert np.array_equal(buffer.outside(), before)


def test_long_rows_are_cut_into_pieces(device: Any) -> None:
    """More elements than thread blocks take in their shortest pieces."""
    found = formula("x: x + 1")
    lengths = [1, 2 * 16 * device.multiprocessors * 1024 + 5]
    kernel, table = multi_tensor_kernel(found.results, ["f32", "f32"], [], lengths, device, "f32")
    arrays = [np.arange(length, dtype=np.float32) % 1000 for length in lengths]
    mirrors = [_Mirror(device, array, array.ctypes.data) for array in arrays]
    words = table([(mirror.pointer, mirror.pointer) for mirror in mirrors])
    if device.target == "opencl" and "pthread" not in device.name:
        pytest.skip("addresses in memory are known to work on processors alone")
    assert words.size == 2 * 3 + 1 + -(-lengths[1] // 2048)
    sent = _Mirror(device, words, words.ctypes.data)
    kernel(None, [sent.pointer], 1.0, 0.0, 0)
    device.synchronize()
    for mirror, length in zip(mirrors, lengths, strict=True):
        mirror.fetch()
        np.testing.assert_array_equal(mirror.host.view(np.float32), np.arange(length) % 1000 + 1)


@pytest.mark.usefixtures("at_once")
def test_rows_are_one_launch(device: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = MultiTensor(AXPY, ("a",))
    launched: list[Any] = []
    launch = jd.Handle.launch

    def counted(self: Any, stream: Any, kernel: Any, pointers: Any, *more: Any) -> None:
        launched.append(pointers)
        launch(self, stream, kernel, pointers, *more)

    rng = np.random.default_rng(1)
    hosts = [rng.standard_normal((2, length)).astype(np.float32) for length in (1, 7, 2000, 0)]
    rows, wanted = [], []
    factor = jd.to_device(np.array([2], np.float32), name)
    for host, a in zip(hosts, (factor, 0.5, factor, 1.0), strict=True):
        x, y = (jd.to_device(one, name) for one in host)
        rows.append(((a, x, y), (y,)))
        wanted.append((2 if a is factor else a) * host[0] + host[1])
    monkeypatch.setattr(jd.Handle, "launch", counted)
    step(rows)
    assert len(launched) == 1
    for (_, (y,)), result in zip(rows, wanted, strict=True):
        np.testing.assert_allclose(y.numpy(), result, rtol=1e-6)
    # a number in memory is read when the kernel runs: the table stays
    tables = len(step._tables)
    factor[...] = 0.0
    step(rows)
    assert len(step._tables) == tables
    np.testing.assert_allclose(rows[2][1][0].numpy(), wanted[2], rtol=1e-6)


def test_rows_of_the_host_and_of_devices_without_addresses(name: str) -> None:
    step = MultiTensor(AXPY, ("a",))
    x, y = np.arange(5.0), np.ones(5)
    step([((2.0, x, y), (y,))])
    np.testing.assert_array_equal(y, 2 * x + 1)
    step.settle([((2.0, x, y), (y,))])
    z = jd.to_device(np.ones(5, np.float32), name)
    step([((3.0, z, z), (z,))])
    np.testing.assert_array_equal(z.numpy(), np.full(5, 4))
    step([])


@pytest.mark.usefixtures("at_once")
def test_rows_that_do_not_fit(name: str) -> None:
    def on(*shape: int, dtype: str = "f32") -> Any:
        return jd.to_device(np.zeros(shape, {"f32": "f4", "f64": "f8"}[dtype]), name)

    step = MultiTensor(AXPY, ("a",))
    with pytest.raises(jd.InvalidShape, match=r"x has shape \(4,\).*have 5 elements"):
        step([((1.0, on(4), on(5)), (on(5),))])
    with pytest.raises(jd.InvalidShape, match="a has shape"):
        step([((on(2), on(5), on(5)), (on(5),))])
    with pytest.raises(jd.InvalidShape, match="must be packed"):
        step([((1.0, on(5), on(10)[::2]), (on(5),))])
    with pytest.raises(jd.InvalidType, match="the same dtypes"):
        step([((1.0, on(5), on(5)), (on(5),)), ((1.0, on(5), on(5, dtype="f64")), (on(5),))])
    with pytest.raises(jd.InvalidArgument, match=r"3 .*a, x, y.* 1 results"):
        step([((1.0, on(5)), (on(5),))])
    with pytest.raises(jd.InvalidArgument, match="'b' is no input of the formula: there are a, x, y"):
        MultiTensor(AXPY, ("b",))
