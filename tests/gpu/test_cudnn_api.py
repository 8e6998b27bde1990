"""cuDNN's names with arrays on a GPU: against the same programs in host memory, and against NVIDIA's library.

The programs are in `cudnn_programs.py`; the module is what differs: `jitdnn.cudnn`, or NVIDIA's library under the same
names.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_programs as programs
import jitdnn as jd
import jitdnn.cudnn as own
import nvidia_cudnn
from cudnn_programs import Program
from jitdnn.devices import cuda

# of each kind of call one is enough on OpenCL, whose kernels have tests of their own: what is tested here is the road
# to them, which is the same on CUDA
_ON_OPENCL = ("plain", "MAX", "INSTANCE", "ACCURATE", "RELU", "SPATIAL", "ADD", "opencl")

rng = np.random.default_rng(17)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def host() -> Program:
    return Program(own, lambda x: x, own.cudnnCreate("cpu"))


@pytest.fixture(params=["opencl", "cuda", "nvidia"])
def p(request: pytest.FixtureRequest) -> Program:
    """This library on each kind of GPU that is here, and NVIDIA's."""
    if request.param == "nvidia":
        if nvidia_cudnn.missing():
            pytest.skip(nvidia_cudnn.missing() or "")
        return Program(nvidia_cudnn, lambda x: jd.to_device(x, "cuda"))
    target = request.param
    if target == "cuda" and not cuda.device_count():
        pytest.skip("no NVIDIA GPU")
    if target == "opencl":
        values = [value for value in request.node.callspec.params.values() if isinstance(value, str)]
        if any(value not in _ON_OPENCL for value in values):
            pytest.skip("one of each kind is enough here")
        from jitdnn.devices import opencl

        if not opencl.device_count():
            pytest.skip("no OpenCL device")
    return Program(own, lambda x: jd.to_device(x, target), own.cudnnCreate(target))


def close(found: Any, expected: Any, limit: float = 1e-3) -> None:
    size = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=limit, atol=limit * size)


def check(p: Program, program: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """A program on the GPU gives what it gives in host memory, which other tests hold against float64."""
    found, expected = (program(one, *arguments, **named) for one in (p, host()))
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    elif not isinstance(found, tuple):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        close(one, other)


FORMS = {
    "plain": ((2, 8, 9, 11), (6, 8, 3, 3), {"pads": (1, 1), "strides": (2, 1), "dilations": (1, 1)}),
    "groups": (
        (2, 6, 9, 8),
        (4, 3, 3, 3),
        {"pads": (0, 1), "strides": (1, 1), "dilations": (1, 2), "groups": 2},
    ),
    "flipped": (
        (1, 4, 9, 8),
        (4, 4, 3, 2),
        {"pads": (1, 1), "strides": (1, 2), "dilations": (1, 1), "flips": True},
    ),
    "3-d": (
        (1, 3, 5, 6, 7),
        (4, 3, 2, 3, 2),
        {"pads": (0, 1, 1), "strides": (1, 2, 1), "dilations": (1, 1, 1)},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_convolution(p: Program, name: str) -> None:
    x_shape, w_shape, form = FORMS[name]
    x, w = normal(*x_shape), normal(*w_shape)
    h = host()
    extents = own.cudnnGetConvolutionNdForwardOutputDim(
        h.convolution(**form), h.tensor(x), h.filter(w), x.ndim
    )
    check(p, programs.convolution, x, w, normal(*extents), normal(*extents), 1.5, -0.5, **form)


def test_bias_and_activation(p: Program) -> None:
    form = {"pads": (1, 1), "strides": (1, 1), "dilations": (1, 1)}
    arrays = normal(2, 4, 7, 8), normal(8, 4, 3, 3), normal(2, 8, 7, 8), normal(1, 8, 1, 1)
    check(p, programs.bias_activation, *arrays, (0.5, 2.0), "RELU", **form)


@pytest.mark.parametrize("mode", ["MAX", "AVERAGE_COUNT_INCLUDE_PADDING", "AVERAGE_COUNT_EXCLUDE_PADDING"])
def test_pooling(p: Program, mode: str) -> None:
    check(p, programs.pooling, normal(2, 3, 9, 8), normal(2, 3, 5, 7), mode, (3, 2), (1, 0), (2, 1), 2.0, 0.5)


@pytest.mark.parametrize("mode", ["INSTANCE", "CHANNEL"])
@pytest.mark.parametrize("algo", ["FAST", "ACCURATE", "LOG"])
def test_softmax(p: Program, algo: str, mode: str) -> None:
    check(p, programs.softmax, normal(2, 5, 3, 4), normal(2, 5, 3, 4), algo, mode)


@pytest.mark.parametrize(
    ("name", "coef"),
    [("SIGMOID", 0.0), ("RELU", 0.0), ("TANH", 0.0), ("CLIPPED_RELU", 0.7), ("ELU", 1.3), ("SWISH", 1.5)],
)
def test_activation(p: Program, name: str, coef: float) -> None:
    check(p, programs.activation, normal(2, 3, 5, 4), normal(2, 3, 5, 4), name, coef)


def test_lrn(p: Program) -> None:
    check(p, programs.lrn, normal(2, 7, 3, 4), normal(2, 7, 3, 4), 5, 0.3, 0.6, 1.5)


@pytest.mark.parametrize("mode", ["SPATIAL", "PER_ACTIVATION"])
def test_batch_norm(p: Program, mode: str) -> None:
    shape = (1, 3, 2, 5) if mode == "PER_ACTIVATION" else (1, 3, 1, 1)
    check(
        p,
        programs.batch_norm,
        normal(4, 3, 2, 5),
        normal(4, 3, 2, 5),
        normal(*shape),
        normal(*shape),
        mode,
        1e-3,
        0.25,
    )


@pytest.mark.parametrize("op", ["ADD", "MUL", "MIN", "MAX", "AMAX", "AVG", "NORM1", "NORM2", "MUL_NO_ZEROS"])
def test_reductions(p: Program, op: str) -> None:
    a, out = normal(2, 3, 4, 5), normal(2, 1, 4, 1)
    found, _ = programs.reduction(p, a, out, op, 2.0, 0.5, False)
    close(found, programs.reduction(host(), a, out, op, 2.0, 0.5, False)[0])


@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_indices(p: Program, op: str) -> None:
    a, out = normal(2, 3, 4, 5), normal(2, 1, 1, 1)
    found, expected = (programs.reduction(one, a, out, op, 1.0, 0.0, True) for one in (p, host()))
    close(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("op", ["ADD", "MUL", "MIN", "MAX"])
def test_operations_on_two(p: Program, op: str) -> None:
    check(p, programs.pair, normal(2, 3, 4, 5), normal(1, 3, 1, 1), normal(2, 3, 4, 5), op, (1.5, -0.5, 0.25))


def test_transform_add_set_scale(p: Program) -> None:
    c, x = p.c, normal(2, 3, 4, 5)
    y = np.ascontiguousarray(normal(2, 4, 5, 3)).transpose(0, 3, 1, 2)
    out, bias = p.put(y), normal(1, 3, 1, 1)
    c.cudnnTransformTensor(p.handle, 2.0, p.tensor(x), p.put(x), 0.5, p.tensor(y), out)
    c.cudnnAddTensor(p.handle, 3.0, p.tensor(bias), p.put(bias), 1.0, p.tensor(y), out)
    c.cudnnScaleTensor(p.handle, p.tensor(y), out, -2.0)
    close(programs.fetched(out), -2.0 * (2.0 * x + 0.5 * y + 3.0 * bias))
    c.cudnnSetTensor(p.handle, p.tensor(y), out, 7.5)
    assert (programs.fetched(out) == 7.5).all()


def test_dropout(p: Program) -> None:
    """Whatever the numbers are: what is kept is scaled, and the gradient drops the same."""
    c, x, dy = p.c, np.ones((4, 3, 50, 20), np.float32), normal(4, 3, 50, 20)
    desc, drop = p.tensor(x), c.cudnnCreateDropoutDescriptor()
    size, reserve = c.cudnnDropoutGetStatesSize(p.handle), c.cudnnDropoutGetReserveSpaceSize(desc)
    states, kept, y, dx = p.space(size), p.space(reserve), p.put(np.zeros_like(x)), p.put(np.zeros_like(x))
    c.cudnnSetDropoutDescriptor(drop, p.handle, 0.25, states, size, 42)
    c.cudnnDropoutForward(p.handle, drop, desc, p.put(x), desc, y, kept, reserve)
    c.cudnnDropoutBackward(p.handle, drop, desc, p.put(dy), desc, dx, kept, reserve)
    found = programs.fetched(y)
    assert abs((found == 0).mean() - 0.25) < 0.03
    close(found[found != 0], np.float32(1 / 0.75), 1e-5)
    close(programs.fetched(dx), dy * found, 1e-5)


def test_announcement(p: Program) -> None:
    """The example, as it stands, on the GPU and by NVIDIA's library."""
    path = Path(__file__).parents[2] / "examples" / "announcement_2014.py"
    spec = importlib.util.spec_from_file_location("announcement_2014", path)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    images, filters = normal(2, 6, 29, 29), normal(16, 6, 7, 7)

    def run(one: Program) -> Any:
        def make(shape: tuple[int, ...]) -> Any:
            return one.put(np.full(shape, np.nan, np.float32))

        return example.announcement(one.c, one.handle, one.put(images), one.put(filters), make, 3)

    (found, extents), (expected, own_extents) = run(p), run(host())
    assert tuple(extents) == tuple(own_extents) == (2, 16, 15, 15)
    close(programs.fetched(found), expected)


def test_spatial_transformer(p: Program) -> None:
    theta = (np.eye(2, 3) + 0.2 * rng.standard_normal((2, 2, 3))).astype(np.float32)
    check(p, programs.spatial, normal(2, 3, 7, 6), theta, normal(2, 3, 5, 8))


@pytest.mark.parametrize("normalizes", [True, False])
def test_ctc(p: Program, normalizes: bool) -> None:
    x = normal(7, 3, 5)
    if not normalizes:
        x = np.exp(x) / np.exp(x).sum(2, keepdims=True)
    lengths = [7, 4, 6]
    found, expected = (
        programs.ctc(one, x, [[1, 2, 2], [4], [3, 1]], lengths, normalizes) for one in (p, host())
    )
    close(found[0], expected[0])
    if not normalizes and p.c is not own:
        return  # by which numbers NVIDIA's gradient is one is not documented: docs/cudnn_api.md
    for number, length in enumerate(lengths):  # NVIDIA's leaves what lies behind an end as it was
        close(found[1][:length, number], expected[1][:length, number])


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN_TANH", "RNN_RELU"])
@pytest.mark.parametrize("layout", ["SEQ_MAJOR_PACKED", "SEQ_MAJOR_UNPACKED"])
def test_recurrent_layers(p: Program, cell: str, layout: str) -> None:
    if p.c is own and p.put(normal(1)).gpu.target != "cuda":
        pytest.skip("recurrent layers run on CUDA, and in host memory")
    lengths, inputs, hidden = (5, 4, 2), 4, 8
    rows = (sum(lengths),) if layout == "SEQ_MAJOR_PACKED" else (5, 3)
    x, dy, dh, dc = (
        normal(*rows, inputs),
        normal(*rows, 2 * hidden),
        normal(4, 3, hidden),
        normal(4, 3, hidden),
    )
    if layout != "SEQ_MAJOR_PACKED":
        dy *= (np.arange(5)[:, None] < np.array(lengths))[..., None]
    seeds: dict[tuple[Any, ...], Any] = {}

    def fill(*key: Any) -> Any:
        return seeds.setdefault(key[:3], 0.3 * normal(*key[3]))

    arguments = (
        cell,
        x,
        lengths,
        2,
        hidden,
        "BIDIRECTIONAL",
        "DOUBLE_BIAS",
        layout,
        {"y": dy, "hy": dh, "cy": dc},
    )
    states = normal(4, 3, hidden), normal(4, 3, hidden)
    found, expected = (programs.recurrent(one, *arguments, 0, fill, states) for one in (p, host()))
    names = ("y", "hy", "dx", "dhx", *(("cy", "dcx") if cell == "LSTM" else ()))
    for name in names:
        close(found[name], expected[name])
    places = {place[:3]: (place[3], place[4]) for place in expected["places"]}
    for *key, start, extents in found["places"]:
        other, _ = places[tuple(key)]
        count = int(np.prod(extents))
        close(found["dw"][start : start + count], expected["dw"][other : other + count])


def test_misuse_has_the_same_family_of_codes(p: Program) -> None:
    """Bad parameters are bad parameters in both."""
    c = p.c
    desc, x = c.cudnnCreateTensorDescriptor(), normal(2, 3, 4, 5)
    with pytest.raises(c.CudnnError) as caught:
        c.cudnnSetTensor4dDescriptor(desc, c.CUDNN_TENSOR_NCHW, c.CUDNN_DATA_FLOAT, 0, 3, 4, 5)
    assert caught.value.category == 2000
    with pytest.raises(c.CudnnError) as caught:
        c.cudnnSetPooling2dDescriptor(c.cudnnCreatePoolingDescriptor(), 0, 0, 0, 2, 0, 0, 1, 1)
    assert caught.value.category == 2000
    with pytest.raises(c.CudnnError) as caught:
        c.cudnnSetLRNDescriptor(c.cudnnCreateLRNDescriptor(), 17, 1e-4, 0.75, 2.0)
    assert caught.value.category == 2000
    conv = p.convolution((0, 0), (1, 1), (1, 1))
    with pytest.raises(c.CudnnError) as caught:  # 3 channels and a filter that takes 4
        c.cudnnGetConvolution2dForwardOutputDim(conv, p.tensor(x), p.filter(normal(2, 4, 3, 3)))
    assert caught.value.category == 2000
