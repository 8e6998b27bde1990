"""Copies between layouts and types, borders, folding, joining and cutting: against the reference and PyTorch."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import jitdnn as jd
from conformance import INSTRUCTION_SETS, check
from examples import examples
from jitdnn.kernels.reference import rounded
from jitdnn.problems import Transform, parse
from jitdnn.tensor import DTYPES, TensorDescriptor, numpy_dtype

PROBLEMS = (
    "transform shape3x5x7 pad1:2x0x3 value1.5 f32",
    "transform shape3x5x7 pad0 f32 to_i8",
    "transform shape2x35x7x3 pad0 f16 to_f32 y=nhwc",
    "transform shape2x5x7x33 pad0x1x0x2 bf16 x=nhwc",
    "transform shape70x5 pad1 fill_-inf f64",
    "transform shape2x3x4x5x6 pad0x0x1:0x2x0:1 i32",
    "fold shape2x5x6x9 by2x3 f32",
    "fold shape2x5x6x9 by2x3 dcr bf16 y=nhwc",
    "unfold shape2x12x3x5 by2x3 dcr f32",
    "unfold shape2x12x3x5 by2x3 crd f32 nhwc",
    "fold shape1x2x4x6x4 by2x3x1 u8",
    "concat shape4x9x5 axis1 parts2x3x4 f32",
    "concat shape4x9x5 axis0 parts1x0x3 i64",
    "concat shape4x9x5x3 axis1 parts2x7 f16 nhwc part0=nchw",
)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("text", PROBLEMS)
def test_conformance(text: str, cpu: str) -> None:
    problem = parse(text)
    assert parse(str(problem)) == problem
    assert check(problem, cpu=cpu) == {"elementwise", "reference"}


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
dtypes = st.sampled_from([dtype for dtype in DTYPES if dtype != "bool"])


@given(shapes, dtypes, dtypes, st.data())
@settings(max_examples=examples(40), deadline=None)
def test_any_transform(shape: tuple[int, ...], source: str, target: str, data: st.DataObject) -> None:
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=len(shape), max_size=len(shape))
    )
    value = data.draw(st.sampled_from([0.0, -2.5, 100.0]))
    problem = Transform.make("transform", TensorDescriptor.packed(shape, source), pairs, value)
    y = TensorDescriptor.packed(problem.y.shape, target, data.draw(st.sampled_from(["nchw", "nhwc"])))
    problem = Transform.make("transform", problem.x, pairs, value, y=y)
    assert parse(str(problem)) == problem
    check(problem, threads=(1,), scales=((1.0, 0.0),))


@pytest.mark.parametrize("target", DTYPES)
def test_values_of_another_type(target: str) -> None:
    x = np.array([0, 0.5, 1.5, -2.5, 127.5, 300, -300, 1e30, np.nan], np.float32)
    found = jd.transform(x, dtype=target)
    with np.errstate(all="ignore"):
        expected = x != 0 if target == "bool" else rounded(x.astype(np.float64), numpy_dtype(target))
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
    assert (
        jd.transform(torch.from_numpy(x), dtype=target).dtype == torch.from_numpy(x).to(TORCH[target]).dtype
    )


TORCH: dict[str, Any] = {name: getattr(torch, numpy_dtype(name).name) for name in DTYPES if name != "bf16"}
TORCH["bf16"] = torch.bfloat16


def test_layout_and_border() -> None:
    x = torch.randn(2, 3, 6, 8)
    y = jd.transform(x, layout="nhwc", dtype="bf16")
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, x.bfloat16())
    padded = jd.transform(y, pad=(0, 0, (1, 2), 3), value=2.0)
    assert torch.equal(padded, torch.nn.functional.pad(y, (3, 3, 1, 2), value=2.0))
    assert padded.is_contiguous(memory_format=torch.channels_last)
    out = torch.ones(2, 3, 6, 8, dtype=torch.float64)
    jd.transform(x, out=out, alpha=2.0, beta=-1.0)
    torch.testing.assert_close(out, 2.0 * x.double() - 1.0)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_folding_is_pixel_unshuffle(layout: str) -> None:
    x = torch.randn(2, 3, 6, 8)
    given_ = x if layout == "NCHW" else x.permute(0, 2, 3, 1)
    folded = jd.fold(given_, 2, layout=layout)
    back = folded if layout == "NCHW" else folded.permute(0, 3, 1, 2)
    assert torch.equal(back, torch.nn.functional.pixel_unshuffle(x, 2))
    assert torch.equal(jd.unfold(folded, 2, layout=layout), given_)
    depth = jd.fold(x, (3, 2), order="dcr")
    assert torch.equal(depth[:, :3], x[:, :, ::3, ::2])
    assert torch.equal(depth[:, 3:6], x[:, :, ::3, 1::2])


def test_joining_and_cutting() -> None:
    x = torch.randn(4, 5, 6)
    assert torch.equal(jd.concat([x, x[:, :2], x[:, 3:]]), torch.cat([x, x[:, :2], x[:, 3:]], 1))
    assert torch.equal(jd.concat([x, x], axis=-1), torch.cat([x, x], -1))
    for mine, theirs in zip(jd.split(x, [2, 0, 3]), torch.split(x, [2, 0, 3], 1), strict=True):
        assert torch.equal(mine, theirs)
    assert [tuple(part.shape) for part in jd.split(x, 3, axis=2)] == [(4, 5, 2)] * 3
    array = x.numpy()
    found = jd.slice(array, (None, 4, -1), (None, None, None), (2, -2, -3))
    np.testing.assert_array_equal(found, array[::2, 4::-2, -1::-3])
    assert not np.shares_memory(found, array)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: jd.transform(x, pad=-1), jd.InvalidArgument, "pad is -1"),
        (lambda x: jd.transform(x, dtype="float8"), jd.InvalidType, "'float8' is no dtype"),
        (lambda x: jd.transform(x, value=float("nan"), pad=1), jd.InvalidArgument, "value is NaN"),
        (lambda x: jd.transform(x, out=np.zeros(3)), jd.InvalidShape, "out has shape"),
        (lambda x: jd.fold(x, 4), jd.InvalidShape, "cannot be cut into blocks"),
        (lambda x: jd.fold(x, 0), jd.InvalidArgument, "at least 1"),
        (lambda x: jd.unfold(x, 2), jd.InvalidShape, "must divide"),
        (lambda x: jd.fold(x, 2, order="abc"), jd.InvalidArgument, "order is 'abc'"),
        (lambda x: jd.concat([]), jd.InvalidArgument, "nothing to join"),
        (lambda x: jd.concat([x, x[0]]), jd.InvalidShape, "may differ on axis 1 only"),
        (lambda x: jd.concat([x, x.astype(np.float64)]), jd.InvalidType, "float64|f64"),
        (lambda x: jd.concat([x, x], axis=4), jd.InvalidArgument, "axis is 4"),
        (lambda x: jd.split(x, 2), jd.InvalidArgument, "cannot be cut into 2"),
        (lambda x: jd.split(x, [1, 1]), jd.InvalidArgument, "do not add up"),
        (lambda x: jd.slice(x, (0,), (2,), 0), jd.InvalidArgument, "no step of 0"),
        (lambda x: jd.slice(x, (0, 1), (2,)), jd.InvalidArgument, "give as many of each"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, error: type[Exception], message: str) -> None:
    x = np.zeros((2, 3, 6, 6), np.float32)
    with pytest.raises(error, match=message):
        call(x)


def test_whole_numbers_are_copied_exactly() -> None:
    x = np.array([[2**62 + 1, -(2**63)], [2**63 - 1, 3]])
    np.testing.assert_array_equal(jd.concat([x, x], axis=0), np.concatenate([x, x]))
    np.testing.assert_array_equal(jd.transform(x, pad=1), np.pad(x, 1))
