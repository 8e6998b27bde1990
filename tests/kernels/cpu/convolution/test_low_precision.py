"""Numbers of half precision and 8-bit integers: stored short, computed long, by every algorithm."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch

import jitdnn as jd
from conformance import INSTRUCTION_SETS, accepting, check, make_case, run
from jitdnn.devices.cpu import host
from jitdnn.kernels.cpu.elementwise.generator import build_elementwise
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
    "conv_fwd n2 c5 h9 w11 k7 r3 s3 pad1 u8 to_u8",
    "conv_fwd n2 c32 h9 w11 k32 r3 s3 pad1 g32 u8 by_i8 to_i8 nhwc",
    "conv_fwd n2 c16 h9 w11 k33 r3 s3 stride2 pad1 i8 to_i32 nhwc",
    "matmul m17 k70 n29 u8 by_i8 to_u8",
    "matmul batch2x3 m5 k33 n40 i8 to_i32",
    "matmul m33 k40 n70 u8 by_i8 to_i8 b=columns",
    "matmul m1 k1200 n35 u8 by_i8",
    "conv_fwd n1 c1200 h3 w3 k8 r1 s1 i8 to_i8",
    "conv_fwd n1 c1200 h3 w3 k8 r1 s1 i8",
    "conv_fwd n2 c32 h9 w11 k32 r3 s3 pad1 g32 i8 to_i8 nhwc",
)
MORE_HALVES = (  # which no other shape of theirs reaches
    ("conv_fwd n2 c32 h9 w11 k32 r3 s3 pad1 g32 nhwc", "bf16"),
    ("conv_bwd_data n2 c32 h9 w11 k32 r5 s5 pad2 g32 nhwc", "f16"),
    ("conv_bwd_filter n2 c32 h9 w11 k32 r3 s3 pad1 g32 nhwc", "bf16"),
    ("conv_bwd_bias n3 k40 p5 q6 nhwc", "f16"),
    ("matmul m17 k33 n29", "bf16"),
    ("conv_fwd n1 c64 h14 w14 k64 r1 s1", "bf16"),
)
COPY = trace(lambda a: a)


HALVES = ("f16", "bf16")
# The two differ in how an element is loaded and stored, which is one piece of code for all of an algorithm's shapes:
# every algorithm meets both, every shape one.
IN_HALVES = [*((text, HALVES[CONVOLUTIONS.index(text) % 2]) for text in CONVOLUTIONS), *MORE_HALVES]


@pytest.mark.parametrize(("text", "dtype"), IN_HALVES)
def test_half_precision(text: str, dtype: str) -> None:
    assert len(check(parse(f"{text} {dtype}"), threads=(1,))) > 1


def test_every_algorithm_meets_both_halves() -> None:
    def met(cases: Iterable[tuple[str, str]]) -> set[tuple[str, str, str]]:
        return {
            (text.split()[0], algorithm.name, dtype)
            for text, dtype in cases
            for algorithm in accepting(parse(f"{text} {dtype}"), host(1))
        }

    assert met(IN_HALVES) == met(product(CONVOLUTIONS, HALVES))


@pytest.mark.parametrize("text", INTEGERS)
def test_integers_are_summed_exactly(text: str) -> None:
    problem = parse(text)
    assert parse(str(problem)) == problem
    assert len(check(problem, threads=(1,))) > 1


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize(
    "text",
    [
        "conv_fwd n1 c8 h7 w6 k18 r3 s3 pad1 u8 by_i8 to_u8 nhwc",
        "conv_fwd n1 c16 h7 w6 k16 r3 s3 pad1 stride2 g16 u8 by_i8 to_i8 nhwc",
        "matmul m9 k700 n20 u8 by_i8 to_u8",
    ],
)
def test_integers_without_dot_products(text: str, cpu: str) -> None:
    assert len(check(parse(text), cpu=cpu, threads=(1,))) > 1


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


def test_integers_without_a_sign_are_convolved_as_pytorch_does() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 9, 7, 6), np.uint8)
    w = rng.integers(-128, 128, (5, 9, 3, 3)).astype(np.int8)
    truth = torch.nn.functional.conv2d(
        torch.from_numpy(x).long(), torch.from_numpy(w).long(), padding=1
    ).numpy()
    np.testing.assert_array_equal(jd.conv(x, w, padding=1), truth)
    for out in (np.zeros(truth.shape, np.uint8), np.zeros(truth.shape, np.int8)):
        limits = np.iinfo(out.dtype)
        jd.conv(x, jd.KeptFilter(w), padding=1, alpha=2.0**-9, out=out)
        np.testing.assert_array_equal(out, np.clip(np.rint(truth * 2.0**-9), limits.min, limits.max))
        assert {limits.min, limits.max} & set(out.ravel().tolist())
    for x_dtype, w_dtype in ((np.uint8, np.uint8), (np.int8, np.uint8), (np.uint8, np.float32)):
        with pytest.raises(jd.InvalidType, match="it must be i8"):
            jd.conv(x.astype(x_dtype), w.astype(w_dtype))
    with pytest.raises(jd.InvalidType, match="dy is u8"):
        jd.conv_backward_data(x, np.zeros((9, 4, 3, 3), np.int8), (2, 4, 7, 6), padding=1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_products_of_integers_are_exact(dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    a = rng.integers(limits.min, limits.max, (3, 5, 70), dtype, endpoint=True)
    b = rng.integers(-128, 128, (70, 33)).astype(np.int8)
    truth = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(jd.matmul(a, b), truth)
    out = np.zeros(truth.shape, np.uint8)
    scale = np.full(33, 2.0**-8, np.float32)
    jd.matmul(a, jd.KeptFilter(b), operands=(scale,), epilogue=lambda v, s: v * s + 100.0, out=out)
    np.testing.assert_array_equal(out, np.clip(np.rint(truth * 2.0**-8 + 100), 0, 255))
    with pytest.raises(jd.InvalidType, match="b is u8: it must be i8"):
        jd.matmul(a, b.astype(np.uint8))


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
    for number, target in enumerate(DTYPES):
        # the widest set has every pair; of those of two integers, which LLVM converts alike on all, others have a third
        is_whole = source not in REAL_DTYPES and target not in REAL_DTYPES
        turn = (number + list(DTYPES).index(source) + INSTRUCTION_SETS.index(cpu)) % 3
        if is_whole and turn and cpu != INSTRUCTION_SETS[0]:
            continue
        dtype = numpy_dtype(target)
        with np.errstate(all="ignore"):
            if target == "bool":
                expected = x.astype(np.float64) != 0
            elif source in REAL_DTYPES:
                expected = rounded(x.astype(np.float64), dtype)
            else:
                expected = x.astype(np.float64 if target in REAL_DTYPES else np.int64).astype(dtype)
        assert same(one(x, cpu, target), expected), f"{source} to {target}"


WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
FACTORS = ((1.0, 0.0), (2.0, 0.0), (-0.5, 0.0), (0.0, 0.5), (0.3, 0.0), (1.0, 0.1), (-0.7, 1.0 / 3.0))


def whole_numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def blended(result: np.ndarray, out: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """The rule of integers: products and sum in float64, to the nearest, of two the even one, saturated."""
    limits = np.iinfo(out.dtype)
    return np.clip(np.rint(alpha * result + beta * out), limits.min, limits.max).astype(out.dtype)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", WHOLE)
def test_integers_are_scaled_in_double_precision(dtype: str, cpu: str) -> None:
    rng, handle = np.random.default_rng(1), jd.Handle(cpu=cpu)
    shape = (2, 3, 7, 33)
    for source in (dtype, "float32"):
        x = whole_numbers(rng, shape, dtype).astype(source)
        for out in (
            whole_numbers(rng, shape, dtype),
            whole_numbers(rng, (2, 7, 33, 3), dtype).transpose(0, 3, 1, 2),
        ):
            for alpha, beta in FACTORS:
                previous = out.copy(order="K")
                jd.transform(x, alpha=alpha, beta=beta, out=out, handle=handle)
                np.testing.assert_array_equal(out, blended(x.astype(np.float64), previous, alpha, beta))
                out[...] = previous


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("mode", ["max", "avg"])
def test_pools_of_integers_are_scaled_in_double_precision(mode: str, dtype: str, cpu: str) -> None:
    rng, handle = np.random.default_rng(2), jd.Handle(cpu=cpu)
    pool = getattr(torch.nn.functional, f"{mode}_pool2d")
    for shape, window in (((2, 3, 9, 40), 3), ((1, 19, 6, 8), 2), ((1, 2, 12, 12), 12)):
        x = whole_numbers(rng, shape, dtype)
        truth = pool(torch.from_numpy(x.astype(np.float64)), window, 1).numpy()
        for channels_last in (False, True):
            image = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) if channels_last else x
            for alpha, beta in FACTORS:
                out = whole_numbers(rng, (*truth.shape[:3], 2 * truth.shape[3]), dtype)[..., ::-2]
                expected = blended(truth, out, alpha, beta)
                getattr(jd, f"{mode}_pool")(
                    image, window, stride=1, alpha=alpha, beta=beta, out=out, handle=handle
                )
                np.testing.assert_array_equal(out, expected, f"{shape} {alpha} {beta}")


def test_averages_of_long_windows_of_integers() -> None:
    # the mean is 201.499994, of which float32 makes 201.5; the sum is beyond the whole numbers that it holds
    x = np.full((1, 1, 301, 299), 201, np.uint8)
    x.reshape(-1)[: x.size // 2] = 202
    for image in (x, x.repeat(3, 1), x.repeat(16, 1).transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)):
        np.testing.assert_array_equal(jd.avg_pool(image, (301, 299)), 201)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", ["int8", "int32"])
@pytest.mark.parametrize(("channels", "groups"), [(5, 1), (32, 1), (32, 32), (1200, 1)])
def test_convolutions_of_integers_are_scaled_in_double_precision(
    channels: int, groups: int, dtype: str, cpu: str
) -> None:
    rng, handle = np.random.default_rng(3), jd.Handle(cpu=cpu)
    x = whole_numbers(rng, (1, channels, 5, 9), "int8")
    w = whole_numbers(rng, (32, channels // groups, 3, 3), "int8")
    truth = torch.nn.functional.conv2d(
        torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=1, groups=groups
    ).numpy()
    size = 1.0 if dtype == "int32" else 2.0**-8
    for channels_last in (False, True):
        image = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) if channels_last else x
        for alpha, beta in FACTORS:
            out = whole_numbers(rng, truth.shape, dtype)
            expected = blended(truth, out, alpha * size, beta)
            jd.conv(image, w, padding=1, groups=groups, alpha=alpha * size, beta=beta, out=out, handle=handle)
            np.testing.assert_array_equal(out, expected, f"{alpha} {beta}")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    "words",
    [
        "conv_fwd n2 c4 h5 w6 k3 r2 s4 stride1x2 pad3",  # most results read nothing but padding
        "conv_fwd n2 c3 d3 h4 w5 k5 t2 r2 s3 pad3 nhwc",
        "conv_fwd n2 c4 h5 w6 k6 r3 s3 pad4 g2",
        "conv_bwd_data n2 c4 h11 w13 k3 r2 s3 stride5",  # and these positions meet no tap
        "conv_bwd_data n2 c4 h11 w13 k6 r7 s1 stride5 nhwc g2",
        "conv_bwd_data n2 c3 h7 w9 k5 r2 s2 stride2 pad1",
        "conv_fwd n2 c9 h7 w8 k11 r3 s3 pad1",
        "conv_bwd_filter n2 c4 h7 w8 k6 r3 s3 pad1",
        "matmul m17 k33 n29",
    ],
)
def test_what_is_added_to_is_rounded_once(words: str, dtype: str) -> None:
    """alpha * sum + beta * y in the computing type: what is stored lies between the roundings of its neighbours.

    The sums are exact: they are of few small integers.
    """
    problem, device, rng = parse(f"{words} {dtype}"), host(2), np.random.default_rng(5)
    given = [rng.integers(-4, 5, o.descriptor.shape).astype(numpy_dtype(dtype)) for o in problem.sources]
    previous = rng.integers(-9, 10, problem.output.shape).astype(numpy_dtype(dtype))
    alpha, beta = 0.37, 0.3
    exact = alpha * problem.reference(*(a.astype(np.float64) for a in given)) + beta * previous.astype(
        np.float64
    )
    near = 4 * 2.0**-24 * (np.abs(exact) + 2 * beta * np.abs(previous.astype(np.float64)))
    low, high = (rounded(exact + side * near, numpy_dtype(dtype)).astype(np.float64) for side in (-1, 1))
    for algorithm in accepting(problem, device):
        if algorithm.name.startswith(("winograd", "fft")):
            continue  # whose sums are not exact
        case = make_case(problem, given=given)
        case.previous = [previous]
        kernel, room = algorithm.build(problem, device), algorithm.workspace(problem, device)
        found = run(kernel, case, room, alpha, beta)[0].astype(np.float64)
        assert ((low <= found) & (found <= high)).all(), algorithm.name
