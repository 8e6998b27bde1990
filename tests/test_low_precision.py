"""Numbers of half precision and 8-bit integers: stored short, computed long, by every algorithm."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import jitdnn as jd
from conformance import INSTRUCTION_SETS, check
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.elementwise import build_elementwise
from jitdnn.kernels.reference import rounded
from jitdnn.problems import parse
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import DTYPES, REAL_DTYPES, TensorDescriptor, numpy_dtype

CONVOLUTIONS = (
    "conv_fwd n2 c5 h9 w11 k7 r3 s3 pad1",
    "conv_fwd n2 c16 h9 w11 k33 r3 s3 stride2 pad1 nhwc",
    "conv_fwd n1 c64 h14 w14 k64 r1 s1",
    "conv_bwd_data n2 c6 h9 w11 k8 r3 s3 stride2 pad1 g2",
    "conv_bwd_data n2 c16 h9 w11 k8 r1 s1 stride2 nhwc",
    "conv_bwd_filter n3 c6 h9 w11 k8 r3 s3 stride2 pad1",
    "conv_bwd_filter n3 c16 h9 w11 k18 r3 s3 pad1 nhwc",
    "conv_fwd n2 c32 h9 w11 k32 r3 s3 pad1 g32",
    "conv_fwd n2 c32 h9 w11 k32 r3 s3 pad1 g32 nhwc",
    "conv_bwd_data n2 c32 h9 w11 k32 r5 s5 pad2 g32 nhwc",
    "conv_bwd_filter n2 c32 h9 w11 k32 r3 s3 pad1 g32 nhwc",
    "conv_bwd_filter n2 c32 h9 w11 k32 r3 s3 pad1 g32",
    "conv_bwd_bias n3 k7 p5 q6",
    "conv_bwd_bias n3 k40 p5 q6 nhwc",
    "matmul m17 k33 n29",
)
INTEGERS = (
    "conv_fwd n2 c5 h9 w11 k7 r3 s3 pad1 i8",
    "conv_fwd n2 c5 h9 w11 k7 r3 s3 pad1 i8 to_i8",
    "conv_fwd n2 c16 h9 w11 k33 r3 s3 stride2 pad1 i8 to_i32 nhwc",
    "conv_fwd n1 c1200 h3 w3 k8 r1 s1 i8 to_i8",
    "conv_fwd n1 c1200 h3 w3 k8 r1 s1 i8",
    "conv_fwd n2 c32 h9 w11 k32 r3 s3 pad1 g32 i8 to_i8 nhwc",
)
COPY = trace(lambda a: a)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("text", CONVOLUTIONS)
def test_half_precision(text: str, dtype: str) -> None:
    assert len(check(parse(f"{text} {dtype}"), threads=(1,))) > 1


@pytest.mark.parametrize("text", INTEGERS)
def test_integers_are_summed_exactly(text: str) -> None:
    problem = parse(text)
    assert parse(str(problem)) == problem
    assert len(check(problem, threads=(1,))) > 1


def test_integers_are_convolved_as_pytorch_does() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 9, 7, 6), (5, 9, 3, 3)))
    truth = torch.nn.functional.conv2d(
        torch.from_numpy(x).long(), torch.from_numpy(w).long(), padding=1
    ).numpy()
    found = jd.conv(x, w, padding=1)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, truth)
    out = np.zeros(truth.shape, np.int8)
    jd.conv(x, w, padding=1, alpha=2.0**-9, out=out)
    np.testing.assert_array_equal(out, np.clip(np.rint(truth * 2.0**-9), -128, 127))
    with pytest.raises(jd.InvalidType, match="w is f32: it must be i8"):
        jd.conv(x, w.astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tensors_of_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 9, 10, dtype=dtype), torch.randn(12, 8, 3, 3, dtype=dtype)
    bias = torch.randn(12)
    found = jd.conv(x, w, bias, epilogue=lambda a, b: jd.relu(a + b), padding=1)
    truth = torch.relu(torch.nn.functional.conv2d(x.double(), w.double(), bias.double(), padding=1))
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), truth, rtol=2.0 ** (-10 if dtype == torch.float16 else -7), atol=1e-4
    )


def one(values: np.ndarray, cpu: str, target: str) -> np.ndarray:
    """`values` copied to another type by generated code."""
    out = np.zeros(values.shape, numpy_dtype(target))
    tensors = [TensorDescriptor.packed(values.shape, name) for name in (NAMES[values.dtype], target)]
    build_elementwise(COPY, tensors, host(1, cpu))(None, [values.ctypes.data, out.ctypes.data], 1.0, 0.0, 0)
    return out


NAMES = {numpy_dtype(name): name for name in DTYPES}


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wide", ["f32", "f64"])
def test_every_half_is_widened_exactly_and_rounded_to_the_nearest(cpu: str, half: type, wide: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(half)
    with np.errstate(all="ignore"):
        grown = every.astype(numpy_dtype(wide))
        assert same(one(every, cpu, wide), grown)
        assert same(one(grown, cpu, NAMES[every.dtype]), every)
        rng = np.random.default_rng(0)
        between = (grown[:-1].astype(np.float64) + grown[1:].astype(np.float64)) / 2  # ties, exact in f32
        any_ = rng.standard_normal(1 << 15) * np.exp(rng.uniform(-20, 12, 1 << 15))
        values = np.concatenate([between, any_]).astype(numpy_dtype(wide))
        assert same(one(values, cpu, NAMES[every.dtype]), values.astype(half))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("source", DTYPES)
def test_copies_between_all_types(cpu: str, source: str) -> None:
    """Reals to integers are rounded and saturated, integers to integers wrap, anything to bool is != 0."""
    values = np.random.default_rng(0).standard_normal(37) * 100
    if source in REAL_DTYPES:
        values[:6] = [0, -0.0, np.nan, np.inf, -np.inf, 1e-7]
        x = values.astype(numpy_dtype(source))
    else:
        x = values > 0 if source == "bool" else rounded(values, numpy_dtype(source))
    for target in DTYPES:
        dtype = numpy_dtype(target)
        with np.errstate(all="ignore"):
            if target == "bool":
                expected = x.astype(np.float64) != 0
            elif source in REAL_DTYPES:
                expected = rounded(x.astype(np.float64), dtype)
            else:
                expected = x.astype(np.float64 if target in REAL_DTYPES else np.int64).astype(dtype)
        assert same(one(x, cpu, target), expected), f"{source} to {target}"
