"""Descriptors: what is set is read back, whatever it is; what cannot be set is refused with cuDNN's status."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitdnn.cudnn as c
from jitdnn.frameworks.cudnn_api.registry import FUNCTIONS

few = settings(max_examples=25)
extent = st.integers(1, 2**20)
REALS = (c.CUDNN_DATA_FLOAT, c.CUDNN_DATA_DOUBLE, c.CUDNN_DATA_HALF, c.CUDNN_DATA_BFLOAT16)
TYPES = (
    *REALS,
    c.CUDNN_DATA_INT8,
    c.CUDNN_DATA_INT32,
    c.CUDNN_DATA_UINT8,
    c.CUDNN_DATA_INT64,
    c.CUDNN_DATA_FP8_E4M3,
)
SIZES = {
    "FLOAT": 4,
    "DOUBLE": 8,
    "HALF": 2,
    "BFLOAT16": 2,
    "INT8": 1,
    "INT32": 4,
    "UINT8": 1,
    "INT64": 8,
    "FP8_E4M3": 1,
}
formats = st.sampled_from([c.CUDNN_TENSOR_NCHW, c.CUDNN_TENSOR_NHWC])


@few
@given(st.sampled_from(TYPES), formats, st.lists(st.integers(1, 40), min_size=3, max_size=8))
def test_packed_tensors(kind: Any, format: Any, dims: list[int]) -> None:
    desc = c.cudnnCreateTensorDescriptor()
    c.cudnnSetTensorNdDescriptorEx(desc, format, kind, len(dims), dims)
    order = [*range(len(dims))] if format == c.CUDNN_TENSOR_NCHW else [0, *range(2, len(dims)), 1]
    strides, step = [0] * len(dims), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= dims[axis]
    assert c.cudnnGetTensorNdDescriptor(desc, 8) == (kind, len(dims), tuple(dims), tuple(strides))
    assert c.cudnnGetTensorNdDescriptor(desc, 2)[2:] == (tuple(dims[:2]), tuple(strides[:2]))
    assert c.cudnnGetTensorSizeInBytes(desc) == step * SIZES[kind.name[11:]]
    w = c.cudnnCreateFilterDescriptor()
    c.cudnnSetFilterNdDescriptor(w, kind, format, len(dims), dims)
    assert c.cudnnGetFilterNdDescriptor(w, 8) == (kind, format, len(dims), tuple(dims))
    assert c.cudnnGetFilterSizeInBytes(w) == step * SIZES[kind.name[11:]]


@few
@given(
    st.sampled_from(TYPES), st.tuples(*[st.integers(1, 999)] * 4), st.tuples(*[st.integers(0, 2**31 - 1)] * 4)
)
def test_strided_tensors(kind: Any, dims: Any, strides: Any) -> None:
    desc = c.cudnnCreateTensorDescriptor()
    c.cudnnSetTensor4dDescriptorEx(desc, kind, *dims, *strides)
    assert c.cudnnGetTensor4dDescriptor(desc) == (kind, *dims, *strides)
    span = 1 + sum((n - 1) * s for n, s in zip(dims, strides, strict=True))
    assert c.cudnnGetTensorSizeInBytes(desc) == span * SIZES[kind.name[11:]]


@few
@given(st.tuples(extent, extent, extent, extent, extent, extent), st.sampled_from(REALS), st.integers(0, 1))
def test_convolutions(sizes: Any, kind: Any, mode: int) -> None:
    conv = c.cudnnCreateConvolutionDescriptor()
    c.cudnnSetConvolution2dDescriptor(conv, *sizes, mode, kind)
    assert c.cudnnGetConvolution2dDescriptor(conv) == (*sizes, mode, kind)
    pads, strides, dilations = sizes[:2], sizes[2:4], sizes[4:]
    assert c.cudnnGetConvolutionNdDescriptor(conv, 2) == (2, pads, strides, dilations, mode, kind)
    c.cudnnSetConvolutionGroupCount(conv, sizes[0])
    assert c.cudnnGetConvolutionGroupCount(conv) == sizes[0]
    for math in c.cudnnMathType_t:
        c.cudnnSetConvolutionMathType(conv, math)
        assert c.cudnnGetConvolutionMathType(conv) == math
    c.cudnnSetConvolutionReorderType(conv, c.CUDNN_NO_REORDER)
    assert c.cudnnGetConvolutionReorderType(conv) == c.CUDNN_NO_REORDER


@few
@given(st.data())
def test_extents_of_results(data: Any) -> None:
    """By the formula, or refused where channels, groups, axes or sizes do not fit."""
    numbers = st.integers(1, 6)
    x_dims, w_dims = (data.draw(st.lists(numbers, min_size=4, max_size=5)) for _ in range(2))
    rank = data.draw(st.integers(1, 3))
    pads = data.draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
    strides, dilations = (data.draw(st.lists(numbers, min_size=rank, max_size=rank)) for _ in range(2))
    groups = data.draw(st.integers(1, 3))
    if data.draw(st.booleans()):  # half of them fit as far as ranks and channels go
        x_dims = [x_dims[0], w_dims[1] * groups, *(9 + pad for pad in pads)]
        w_dims = [w_dims[0] * groups, w_dims[1], *(w_dims[2:] * 2)[:rank]]
    x, w, conv = (
        c.cudnnCreateTensorDescriptor(),
        c.cudnnCreateFilterDescriptor(),
        c.cudnnCreateConvolutionDescriptor(),
    )
    c.cudnnSetTensorNdDescriptorEx(x, 0, 0, len(x_dims), x_dims)
    c.cudnnSetFilterNdDescriptor(w, 0, 0, len(w_dims), w_dims)
    c.cudnnSetConvolutionNdDescriptor(conv, rank, pads, strides, dilations, 1, 0)
    c.cudnnSetConvolutionGroupCount(conv, groups)
    fits = (
        len(x_dims) == len(w_dims) == rank + 2 and x_dims[1] == w_dims[1] * groups and w_dims[0] % groups == 0
    )
    axes = list(zip(x_dims[2:], w_dims[2:], pads, strides, dilations, strict=False))
    fits = fits and all(n + 2 * p >= (k - 1) * d + 1 for n, k, p, _, d in axes)
    if fits:
        space = [(n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, p, s, d in axes]
        expected = (x_dims[0], w_dims[0], *space)
        assert c.cudnnGetConvolutionNdForwardOutputDim(conv, x, w, rank + 2) == expected
        with pytest.raises(c.CudnnBadParam):
            c.cudnnGetConvolutionNdForwardOutputDim(conv, x, w, rank + 3)
        return
    with pytest.raises(c.CudnnBadParam) as caught:
        c.cudnnGetConvolutionNdForwardOutputDim(conv, x, w, rank + 2)
    assert caught.value.status == c.CUDNN_STATUS_BAD_PARAM


@few
@given(st.sampled_from(list(c.cudnnPoolingMode_t)), st.integers(0, 1), st.tuples(*[extent] * 6))
def test_poolings(mode: Any, nan: int, sizes: Any) -> None:
    pool = c.cudnnCreatePoolingDescriptor()
    c.cudnnSetPooling2dDescriptor(pool, mode, nan, *sizes)
    assert c.cudnnGetPooling2dDescriptor(pool) == (mode, nan, *sizes)
    assert c.cudnnGetPoolingNdDescriptor(pool, 1) == (mode, nan, 2, sizes[:1], sizes[2:3], sizes[4:5])


@few
@given(st.sampled_from(list(c.cudnnActivationMode_t)), st.integers(0, 1), st.floats(-9, 9), st.floats(0.1, 9))
def test_activations_and_operations(mode: Any, nan: int, coef: float, beta: float) -> None:
    act = c.cudnnCreateActivationDescriptor()
    c.cudnnSetActivationDescriptor(act, mode, nan, coef)
    c.cudnnSetActivationDescriptorSwishBeta(act, beta)
    assert c.cudnnGetActivationDescriptor(act) == (mode, nan, coef)
    assert c.cudnnGetActivationDescriptorSwishBeta(act) == beta
    for op in c.cudnnOpTensorOp_t:
        pair = c.cudnnCreateOpTensorDescriptor()
        c.cudnnSetOpTensorDescriptor(pair, op, c.CUDNN_DATA_FLOAT, nan)
        assert c.cudnnGetOpTensorDescriptor(pair) == (op, c.CUDNN_DATA_FLOAT, nan)
    for reduced in c.cudnnReduceTensorOp_t:
        how = c.cudnnCreateReduceTensorDescriptor()
        c.cudnnSetReduceTensorDescriptor(how, reduced, c.CUDNN_DATA_DOUBLE, nan, 1, 2)
        assert c.cudnnGetReduceTensorDescriptor(how) == (reduced, c.CUDNN_DATA_DOUBLE, nan, 1, 2)


@few
@given(st.integers(1, 16), st.floats(-5, 5), st.floats(0.01, 5), st.floats(1e-5, 5))
def test_lrn(n: int, alpha: float, beta: float, k: float) -> None:
    norm = c.cudnnCreateLRNDescriptor()
    assert c.cudnnGetLRNDescriptor(norm) == (5, 1e-4, 0.75, 2.0)
    c.cudnnSetLRNDescriptor(norm, n, alpha, beta, k)
    assert c.cudnnGetLRNDescriptor(norm) == (n, alpha, beta, k)


@few
@given(st.data())
def test_recurrent_layers_and_sequences(data: Any) -> None:
    rnn = c.cudnnCreateRNNDescriptor()
    cell = data.draw(st.sampled_from(list(c.cudnnRNNMode_t)))
    hidden = data.draw(st.integers(1, 999))
    projection = data.draw(st.integers(1, hidden)) if cell == c.CUDNN_LSTM else hidden
    kinds = [
        data.draw(st.sampled_from(list(kind))) for kind in (c.cudnnRNNBiasMode_t, c.cudnnDirectionMode_t)
    ]
    made = (
        c.CUDNN_RNN_ALGO_STANDARD, cell, *kinds, c.CUDNN_LINEAR_INPUT, c.CUDNN_DATA_HALF, c.CUDNN_DATA_FLOAT,
        c.CUDNN_FMA_MATH, data.draw(st.integers(1, 999)), hidden, projection, data.draw(st.integers(1, 9)), None, 1,
    )  # fmt: skip
    c.cudnnSetRNNDescriptor_v8(rnn, *made)
    assert c.cudnnGetRNNDescriptor_v8(rnn) == made
    low, high = data.draw(st.floats(-9, 0)), data.draw(st.floats(0, 9))
    c.cudnnRNNSetClip_v8(rnn, c.CUDNN_RNN_CLIP_MINMAX, 1, low, high)
    assert c.cudnnRNNGetClip_v8(rnn) == (c.CUDNN_RNN_CLIP_MINMAX, 1, low, high)
    c.cudnnRNNSetClip_v9(rnn, c.CUDNN_RNN_CLIP_NONE, low, high)
    assert c.cudnnRNNGetClip_v9(rnn) == (c.CUDNN_RNN_CLIP_NONE, low, high)
    c.cudnnBuildRNNDynamic(c.cudnnCreate(), rnn, 3)
    steps, batch = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 9))
    lengths = tuple(
        sorted(data.draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch)), reverse=True)
    )
    fill = data.draw(st.none() | st.floats(-9, 9))
    layout = data.draw(st.sampled_from(list(c.cudnnRNNDataLayout_t)))
    sequences = c.cudnnCreateRNNDataDescriptor()
    c.cudnnSetRNNDataDescriptor(sequences, c.CUDNN_DATA_FLOAT, layout, steps, batch, hidden, lengths, fill)
    expected = (c.CUDNN_DATA_FLOAT, layout, steps, batch, hidden)
    assert c.cudnnGetRNNDataDescriptor(sequences, 99) == (*expected, lengths, fill)
    assert c.cudnnGetRNNDataDescriptor(sequences, 1) == (*expected, lengths[:1], fill)


def test_ctc_and_transforms() -> None:
    loss = c.cudnnCreateCTCLossDescriptor()
    c.cudnnSetCTCLossDescriptor(loss, c.CUDNN_DATA_FLOAT)
    assert c.cudnnGetCTCLossDescriptor(loss) == c.CUDNN_DATA_FLOAT
    c.cudnnSetCTCLossDescriptorEx(loss, 0, 1, 1)
    assert c.cudnnGetCTCLossDescriptorEx(loss) == (0, 1, 1)
    c.cudnnSetCTCLossDescriptor_v8(loss, 0, 0, 1, 77)
    assert c.cudnnGetCTCLossDescriptor_v8(loss) == (0, 0, 1, 77)
    c.cudnnSetCTCLossDescriptor_v9(loss, 0, 1, 1, 78)
    assert c.cudnnGetCTCLossDescriptor_v9(loss) == (0, 1, 1, 78)
    how = c.cudnnCreateTensorTransformDescriptor()
    made = (c.CUDNN_TENSOR_NHWC, (0, 1, 2, 3), (3, 2, 1, 0), (2, 1), c.CUDNN_TRANSFORM_UNFOLD)
    c.cudnnSetTensorTransformDescriptor(how, 4, *made)
    assert c.cudnnGetTensorTransformDescriptor(how, 4) == made


def test_handles_streams_and_callbacks() -> None:
    handle = c.cudnnCreate()
    assert c.cudnnGetStream(handle) is None
    stream = object()
    c.cudnnSetStream(handle, stream)
    assert c.cudnnGetStream(handle) is stream
    c.cudnnSetStream(handle, np.zeros(3))  # an array has no truth
    c.cudnnSetStream(handle, 0)
    assert c.cudnnGetStream(handle) is None
    assert c.cudnnQueryRuntimeError(handle, c.CUDNN_ERRQUERY_BLOCKING) == c.CUDNN_STATUS_SUCCESS
    before = c.cudnnGetCallback()
    c.cudnnSetCallback(c.CUDNN_SEV_ERROR_EN, stream, print)
    assert c.cudnnGetCallback() == (c.CUDNN_SEV_ERROR_EN, stream, print)
    c.cudnnSetCallback(*before)
    c.cudnnDestroy(handle)
    for call in (c.cudnnGetStream, c.cudnnDestroy, c.cudnnDropoutGetStatesSize):
        with pytest.raises(c.CudnnBadParam, match="destroyed"):
            call(handle)


CREATED = {
    name: entry.function
    for name, entry in FUNCTIONS.items()
    if name.startswith("cudnnCreate") and not entry.reason
}


@pytest.mark.parametrize("name", [name for name in CREATED if name != "cudnnCreate"])
def test_destroyed_and_unset_descriptors_are_refused(name: str) -> None:
    kind = name.removeprefix("cudnnCreate")
    destroy = getattr(c, f"cudnnDestroy{kind}")
    made, other = CREATED[name](), c.cudnnCreate()
    readers = {
        "TensorDescriptor": "cudnnGetTensorSizeInBytes",
        "FilterDescriptor": "cudnnGetFilterSizeInBytes",
    }
    reader = readers.get(kind)
    if reader is not None:
        with pytest.raises(c.CudnnBadParam, match="not set"):
            getattr(c, reader)(made)
    with pytest.raises(c.CudnnBadParam):
        destroy(other)
    destroy(made)
    destroy(None)
    with pytest.raises(c.CudnnBadParam, match="destroyed"):
        destroy(made)


NONSENSE = st.sampled_from(
    [None, -1, 2**31, 2**70, 0.5, "3", True, float("nan"), [], object(), np.int8(-3), b"1"]
)


@settings(max_examples=60)
@given(st.integers(0, 6), NONSENSE)
def test_nonsense_in_a_tensor_is_a_bad_parameter(place: int, value: Any) -> None:
    desc = c.cudnnCreateTensorDescriptor()
    c.cudnnSetTensor4dDescriptor(desc, 0, 0, 1, 2, 3, 4)
    before = c.cudnnGetTensor4dDescriptor(desc)
    arguments: list[Any] = [desc, 0, 0, 1, 2, 3, 4]
    arguments[place] = value
    with pytest.raises(c.CudnnBadParam) as caught:
        c.cudnnSetTensor4dDescriptor(*arguments)
    assert caught.value.status == c.CUDNN_STATUS_BAD_PARAM
    assert c.cudnnGetTensor4dDescriptor(desc) == before


TAKES_NUMBERS = ("cudnnGetProperty", "cudnnGetErrorString", "cudnnSetCallback", "cudnnGetLastErrorString")
WORKING = sorted(name for name, entry in FUNCTIONS.items() if entry.reason is None)


@pytest.mark.parametrize("value", [None, -1, 0, "x", 2**80, object(), (), np.zeros(0), float("inf")])
def test_nonsense_everywhere_is_a_status(value: Any) -> None:
    """Every function, every argument the same nonsense: nothing but a result or a status of cuDNN comes back."""
    before = c.cudnnGetCallback()
    for name in WORKING:
        function = FUNCTIONS[name].function
        count = len(inspect.signature(function).parameters)
        with contextlib.suppress(c.CudnnBadParam, c.CudnnNotSupported):
            function(*[value] * count)
            assert count == 0 or value is None or name in TAKES_NUMBERS
    c.cudnnSetCallback(*before)


@pytest.mark.parametrize("format", [c.CUDNN_TENSOR_NCHW_VECT_C, c.CUDNN_TENSOR_NHWC])
def test_what_is_not_there_is_not_supported(format: Any) -> None:
    desc = c.cudnnCreateTensorDescriptor()
    kind = c.CUDNN_DATA_FLOAT if format == c.CUDNN_TENSOR_NCHW_VECT_C else c.CUDNN_DATA_INT8x32
    with pytest.raises(c.CudnnNotSupported) as caught:
        c.cudnnSetTensor4dDescriptor(desc, format, kind, 1, 32, 4, 4)
    assert caught.value.category == 3000


def test_memory_that_does_not_fit_its_descriptor() -> None:
    handle, desc = c.cudnnCreate("cpu"), c.cudnnCreateTensorDescriptor()
    c.cudnnSetTensor4dDescriptor(desc, 0, c.CUDNN_DATA_FLOAT, 2, 3, 4, 5)
    frozen = np.zeros(120, np.float32)
    frozen.flags.writeable = False
    for wrong in (
        None, 5, np.zeros(119, np.float32), np.zeros(120, np.float64), np.zeros((120, 2), np.float32)[:, 0],
        np.zeros(120, np.float32)[::-1], np.zeros(481, np.uint8)[1:], frozen,
    ):  # fmt: skip
        with pytest.raises(c.CudnnBadParam):
            c.cudnnSetTensor(handle, desc, wrong, 1.0)
    raw = np.zeros(480, np.uint8)
    c.cudnnSetTensor(handle, desc, raw, 1.0)
    assert (raw.view(np.float32) == 1).all()
    overlapping = c.cudnnCreateTensorDescriptor()
    c.cudnnSetTensor4dDescriptorEx(overlapping, c.CUDNN_DATA_FLOAT, 2, 3, 4, 5, 1, 1, 1, 1)
    with pytest.raises(c.CudnnBadParam, match="overlaps"):
        c.cudnnSetTensor(handle, overlapping, raw, 1.0)
