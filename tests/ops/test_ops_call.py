"""What every op promises about the arrays it takes and gives; the numbers of kernels are tested elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import jitdnn as jd
from ops_cases import CASES, AnyArray, Case

TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
each_op = pytest.mark.parametrize("case", CASES, ids=str)


def assert_close(got: Any, expected: AnyArray, dtype: str = "float32") -> None:
    got = np.asarray(got)
    assert got.shape == expected.shape
    scale = max(np.abs(expected).max(initial=0.0), 1.0)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


def with_gaps(array: AnyArray) -> AnyArray:
    """The same values in a region of a larger array, backwards along the last axis, with NaN all around."""
    widened = np.full([2 * n + 3 for n in array.shape], np.nan, array.dtype)
    region = widened[tuple(slice(1, 2 * n + 1, 2) for n in array.shape)][..., ::-1]
    region[...] = array
    return region


def channels_last(array: AnyArray) -> AnyArray:
    """The same array with its channels next to each other in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


@each_op
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_in_numpy_out(case: Case, dtype: str) -> None:
    arrays = case.arrays(dtype)
    before = [array.copy() for array in arrays]
    result = case.run(*arrays)
    assert type(result) is np.ndarray
    assert result.dtype == np.dtype(dtype)
    assert result.flags.c_contiguous
    assert_close(result, case.truth(arrays), dtype)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


@each_op
def test_torch_in_torch_out(case: Case) -> None:
    arrays = case.arrays()
    tensors = [torch.from_numpy(array).requires_grad_() for array in arrays]
    result = case.run(*tensors)
    assert type(result) is torch.Tensor
    assert (result.dtype, result.requires_grad) == (torch.float32, False)
    assert_close(result, case.truth(arrays))


@each_op
def test_inputs_may_be_any_views(case: Case) -> None:
    arrays = case.arrays()
    result = case.run(*(with_gaps(array) for array in arrays))
    assert_close(result, case.truth(arrays))


@each_op
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-0.5, 0.0), (1.0, 1.0), (2.0, -0.25), (0.0, 1.0)])
def test_out_is_scaled_and_added_to(case: Case, alpha: float, beta: float) -> None:
    arrays = case.arrays()
    plain = case.truth(arrays)
    old = np.random.default_rng(1).standard_normal(plain.shape).astype(np.float32)
    out = old.copy() if beta else np.full(plain.shape, np.nan, np.float32)
    result = case.run(*arrays, alpha=alpha, beta=beta, out=out)
    assert result is out
    assert_close(out, alpha * plain + beta * old)


@each_op
def test_out_may_be_a_region_and_nothing_else_is_written(case: Case) -> None:
    arrays = case.arrays()
    plain = case.truth(arrays)
    out = with_gaps(np.zeros(plain.shape, np.float32))
    whole = out.base
    assert whole is not None
    inside = np.zeros(whole.shape, bool)
    inside[tuple(slice(1, 2 * n + 1, 2) for n in plain.shape)] = True
    whole[inside] = np.nan
    assert case.run(*arrays, out=out) is out
    assert_close(out, plain)
    assert np.isnan(whole[~inside]).all()


@each_op
def test_out_of_torch(case: Case) -> None:
    arrays = case.arrays()
    plain = case.truth(arrays)
    out = torch.full(plain.shape, float("nan"))
    assert case.run(*map(torch.from_numpy, arrays), out=out) is out
    assert_close(out, plain)
    # the result goes where the caller says, whoever made the inputs
    assert case.run(*arrays, out=out) is out


@each_op
def test_the_second_call_of_a_kind_makes_no_plan(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = jd.Handle()
    case.run(*case.arrays(seed=0), handle=handle)
    monkeypatch.setattr(jd.Handle, "plan", None)
    arrays = case.arrays(seed=1)
    assert_close(case.run(*arrays, handle=handle), case.truth(arrays))
    assert len(handle.calls) == 1


@each_op
def test_beta_needs_an_out(case: Case) -> None:
    with pytest.raises(jd.InvalidArgument, match=r"beta is 0\.5 and no out is given"):
        case.run(*case.arrays(), beta=0.5)


@each_op
def test_scale_factors_are_numbers(case: Case) -> None:
    arrays = case.arrays()
    plain = case.truth(arrays)
    assert_close(case.run(*arrays, alpha=np.float32(2)), 2 * plain)
    assert_close(case.run(*arrays, alpha=3), 3 * plain)
    with pytest.raises(jd.InvalidType, match="alpha is 'two': it must be a number"):
        case.run(*arrays, alpha="two")
    with pytest.raises(jd.InvalidType, match=r"beta is None: it must be a number"):
        case.run(*arrays, beta=None)


@each_op
def test_bad_outputs_are_refused(case: Case) -> None:
    arrays = case.arrays()
    plain = case.truth(arrays)
    shape = plain.shape
    with pytest.raises(jd.InvalidShape, match=r"out has shape|cannot be broadcast"):
        case.run(*arrays, out=np.empty((*shape[:-1], shape[-1] + 1), np.float32))
    if case.name != "transform":  # which converts
        with pytest.raises(jd.InvalidType, match=r"is f32 and out is f64: they must be of one dtype"):
            case.run(*arrays, out=np.empty(shape))
    read_only = np.empty(shape, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(jd.InvalidArgument, match="out is read-only"):
        case.run(*arrays, out=read_only)
    repeated = np.lib.stride_tricks.as_strided(np.empty(shape, np.float32), shape, [0] * len(shape))
    if plain.size > 1:
        with pytest.raises(jd.InvalidArgument, match=r"overlap|share one element"):
            case.run(*arrays, out=repeated)
    with pytest.raises(jd.InvalidArgument, match="out records gradients"):
        case.run(*arrays, out=torch.empty(shape, requires_grad=True))
    with pytest.raises(jd.InvalidType, match="out: list cannot be borrowed"):
        case.run(*arrays, out=plain.tolist())


@each_op
def test_inputs_of_other_types_are_refused_by_name(case: Case) -> None:
    arrays = case.arrays()
    if not case.takes_integers:
        with pytest.raises(jd.InvalidType, match=r"^\w+ is i32: it must be f16, bf16, f32"):
            case.run(arrays[0].astype(np.int32), *arrays[1:])
    with pytest.raises(jd.InvalidType, match=r"^[\w ]+: list cannot be borrowed"):
        case.run(arrays[0].tolist(), *arrays[1:])
    with pytest.raises(jd.InvalidType, match=r"^[\w ]+: dtype complex64"):
        case.run(arrays[0].astype(np.complex64), *arrays[1:])
    if len(arrays) > 1:
        apart = r" is f32 and [\w ]+ is f64: they must be of one dtype|^\w+ is f64: it must be f32"
        with pytest.raises(jd.InvalidType, match=apart):
            case.run(*arrays[:-1], arrays[-1].astype(np.float64))


@each_op
def test_out_in_the_memory_of_an_input(case: Case) -> None:
    """Allowed where it is safe and the very same view; refused by name everywhere else."""
    arrays = case.arrays()
    plain = case.truth(arrays)
    for position, array in enumerate(arrays):
        if array.shape == plain.shape and position in case.safe_in_place:
            given = [other.copy() for other in arrays]
            assert case.run(*given, out=given[position]) is given[position]
            assert_close(given[position], plain)
        elif array.shape == plain.shape:
            given = [other.copy() for other in arrays]
            with pytest.raises(jd.InvalidArgument, match=r"pass another out$"):
                case.run(*given, out=given[position])
        # an output that begins one element after the input: no order of reading and writing is safe
        memory = np.zeros(array.size + plain.size + 1, np.float32)
        given = [other.copy() for other in arrays]
        given[position] = memory[: array.size].reshape(array.shape)
        given[position][...] = array
        out = memory[1 : 1 + plain.size].reshape(plain.shape)
        with pytest.raises(jd.InvalidArgument, match=r"out shares memory with \w+"):
            case.run(*given, out=out)
        np.testing.assert_array_equal(given[position], array)


@each_op
def test_out_between_the_elements_of_an_input_is_apart(case: Case) -> None:
    arrays = case.arrays()
    plain = case.truth(arrays)
    # even places for the first input, odd ones for the output
    memory = np.full(2 * max(arrays[0].size, plain.size), np.nan, np.float32)
    inner = memory[: 2 * arrays[0].size : 2].reshape(arrays[0].shape)
    inner[...] = arrays[0]
    out = memory[1 : 2 * plain.size : 2].reshape(plain.shape)
    for _ in range(2):
        case.run(inner, *arrays[1:], out=out)
        assert_close(out, plain)


@pytest.mark.parametrize("case", [case for case in CASES if case.space], ids=str)
def test_the_result_lies_in_memory_as_the_input_does(case: Case) -> None:
    arrays = case.arrays()
    plain = case.truth(arrays)
    first = channels_last(arrays[0])
    result = case.run(first, *arrays[1:])
    assert_close(result, plain)
    assert np.moveaxis(result, 1, -1).flags.c_contiguous
    tensor = torch.from_numpy(arrays[0])
    if tensor.ndim == 4:
        last = tensor.to(memory_format=torch.channels_last)
        result = case.run(last, *map(torch.from_numpy, arrays[1:]))
        assert result.is_contiguous(memory_format=torch.channels_last)
        assert_close(result, plain)


def test_an_empty_result_that_numpy_cannot_make_is_refused_for_its_extents() -> None:
    with pytest.raises(jd.DeviceError, match="is empty, and yet of larger extents"):
        jd.resize(np.zeros((0, 1, 4, 4, 4), np.float32), size=10**9)
