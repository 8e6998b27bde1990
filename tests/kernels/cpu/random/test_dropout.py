"""Dropout: the published numbers of its generator, every algorithm against the definition, and its state."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

import jitdnn as jd
from conformance import ARRANGEMENTS, INSTRUCTION_SETS, arranged, check, results_of, unreached
from examples import examples
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems import Dropout, parse
from jitdnn.problems.philox import philox
from jitdnn.tensor import COMMON_DTYPES, TensorDescriptor
from strategies import descriptors, shapes

# Random123's kat_vectors for philox4x32 with 10 rounds: counter, key, output
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
SHAPES = [
    "shape1",
    "shape17",
    "shape65 f64",
    "shape8x5x7",
    "shape5x9x7 bf16",
    "shape3x16x4x5 nhwc",
    "shape2x3x4x5 f16 nhwc",
    "shape1x1x63x1",
    "shape100003",  # several tasks
    "shape8x40x41x9 nhwc",
    "shape0x5",
    "shape2x2x3x1x2x2x2x3",
]


def numbers(words: str) -> list[int]:
    return [int(word, 16) for word in words.split()]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_published_numbers(counter: str, key: str, output: str) -> None:
    assert [int(word) for word in philox(numbers(counter), numbers(key))] == numbers(output)


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS)
def test_published_numbers_of_the_kernel(cpu: str) -> None:
    """Zero key and counter: the halves of the published words decide about eight elements, at every threshold."""
    halves = [half for word in numbers(KNOWN[0][2]) for half in (word & 0xFFFF, word >> 16)]
    x, state = np.ones(8, np.float32), np.zeros(4, np.uint32)
    for half in sorted(halves):
        problem = Dropout.make((8,), (half + 0.5) / 65536)
        for name, y in results_of(problem, x, state, cpu=cpu).items():
            np.testing.assert_array_equal(
                y > 0, [other >= problem.threshold for other in halves], err_msg=name
            )


@pytest.mark.parametrize("words", SHAPES)
def test_awkward_shapes(words: str) -> None:
    check(parse(f"dropout p0.3 {words}"))


@pytest.mark.parametrize("mask", ["mask", "byte_mask"])
def test_masks(mask: str) -> None:
    for words in ("shape5x9x7 bf16", "shape3x16x4x5 nhwc", "shape65 f64"):
        check(parse(f"dropout p0.3 {mask} {words}"))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str) -> None:
    check(arranged(parse("dropout p0.6 shape2x5x3x18"), arrangement))
    check(arranged(parse("dropout p0.6 shape2x5x3x8 bf16"), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("dtype", COMMON_DTYPES)
def test_narrower_instruction_sets(dtype: str, cpu: str) -> None:
    check(parse(f"dropout p0.25 shape3x37 {dtype} mask"), cpu=cpu)


@pytest.mark.parametrize("p", [0.0, 1e-7, 0.999999, 1.0])
def test_ends_of_probability(p: float) -> None:
    check(Dropout.make((3, 50), p))


def test_every_algorithm_is_reached() -> None:
    assert unreached([parse(f"dropout p0.5 {words}") for words in SHAPES]) == set()


@st.composite
def dropouts(draw: st.DrawFn) -> Dropout:
    shape, dtype = draw(shapes()), draw(st.sampled_from(COMMON_DTYPES))
    mask = draw(st.sampled_from((None, "bool", "u8")))
    return Dropout(
        draw(st.floats(0, 1)),
        draw(descriptors(shape, dtype)),
        draw(descriptors(shape, dtype, is_output=True)),
        None if mask is None else draw(descriptors(shape, mask, is_output=True)),
    )


@settings(max_examples=examples(15), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(dropouts())
def test_any_dropout(problem: Dropout) -> None:
    assert parse(str(problem)) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


def test_memory_past_the_caches() -> None:
    """Large tensors are written another way, with rows long or short, aligned or not."""
    shape = (8, 16, 320, 320)
    x = np.ones(13107200 + 3, np.float32)
    state = jd.DropoutState(5)
    y, reserve = jd.dropout(x[3:].reshape(shape), 0.5, state)
    last, _ = jd.dropout(
        x[3:].reshape(shape).transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2), 0.5, reserve
    )
    np.testing.assert_array_equal(y, last)
    values, counts = np.unique(y, return_counts=True)
    assert values.tolist() == [0, 2]
    assert abs(counts[0] / y.size - 0.5) < 5 * 0.5 / np.sqrt(y.size)


def test_same_numbers_everywhere() -> None:
    """One mask for any dtype, order in memory, number of threads and instruction set."""
    state = np.array([7, 8, 9, 10], np.uint32)
    shape = (6, 24, 10, 11)
    expected = Dropout.make(shape, 0.4, "f64").reference(np.ones(shape), state) != 0
    for dtype in COMMON_DTYPES:
        for layout in ("nchw", "nhwc"):
            for cpu in INSTRUCTION_SETS:
                problem = Dropout.make(shape, 0.4, dtype, layout)
                for name, y in results_of(problem, np.ones(shape), state, cpu=cpu).items():
                    np.testing.assert_array_equal(y != 0, expected, err_msg=f"{name} {problem} {cpu}")
    for threads in (1, 2):
        with jd.settings(threads=threads):
            y, _ = jd.dropout(np.ones(shape, np.float32), 0.4, jd.DropoutState(7 + (8 << 32), 9 + (10 << 32)))
        np.testing.assert_array_equal(y != 0, expected)


def test_state_is_restorable() -> None:
    x = np.ones((4, 100), np.float32)
    state = jd.DropoutState(2**63 + 5, 2**64 - 2)
    first, _ = jd.dropout(x, 0.5, state)
    kept = bytes(state)
    following = [jd.dropout(x, 0.5, state)[0] for _ in range(3)]
    restored = jd.DropoutState.from_bytes(kept)
    assert restored == jd.DropoutState(2**63 + 5, 2**64 - 1)
    again = [jd.dropout(x, 0.5, restored)[0] for _ in range(3)]
    np.testing.assert_array_equal(following, again)
    assert restored == state == jd.DropoutState(2**63 + 5, 2)  # 64 bits, then from the beginning
    drawn = [first, *following]
    assert all((one != other).any() for i, one in enumerate(drawn) for other in drawn[:i])


def test_neighbouring_states_differ() -> None:
    x = np.ones(64, np.float32)
    seen = {
        jd.dropout(x, 0.5, jd.DropoutState(seed, offset))[0].tobytes()
        for seed in (0, 1, 1 << 32, 1 << 63)
        for offset in (0, 1, 1 << 32, 1 << 63)
    }
    assert len(seen) == 16


def test_kept_as_often_as_it_should() -> None:
    """Within five standard deviations, as a whole and for pairs of elements at small and large distances."""
    size = 1 << 18
    y, _ = jd.dropout(np.ones(size, np.float32), 0.3, jd.DropoutState(1))
    kept = y != 0
    assert abs(kept.mean() - 0.7) < 5 * np.sqrt(0.21 / size)
    for distance in (1, 2, 3, 8, 16, size // 8, size // 4, size // 2):
        both = (kept & np.roll(kept, distance)).mean()
        assert abs(both - 0.49) < 5 * np.sqrt(0.49 * 0.51 / size) + 1e-3 * (distance == size // 2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_gradient_against_torch(dtype: str) -> None:
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(5, 6, 7, generator=generator).to(kind) for _ in range(2))
    y, reserve, mask = jd.dropout(x, 0.25, jd.DropoutState(11), return_mask=True)
    assert mask.dtype == torch.bool
    leaf = x.double().requires_grad_()
    expected = leaf * mask / 0.75
    expected.backward(dy.double())
    tolerance = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    torch.testing.assert_close(y.double(), expected.detach(), rtol=tolerance, atol=0)
    dx = jd.dropout_backward(dy, 0.25, reserve)
    torch.testing.assert_close(dx.double(), leaf.grad, rtol=tolerance, atol=0)


def test_in_place_and_scaled() -> None:
    x = np.arange(1.0, 101).reshape(4, 25)
    y, reserve = jd.dropout(x, 0.5, jd.DropoutState(3))
    out = np.ones_like(x)
    same, _ = jd.dropout(x, 0.5, reserve.copy(), alpha=2.0, beta=0.5, out=out)
    assert same is out
    np.testing.assert_allclose(out, 2 * y + 0.5)
    place = x.copy()
    jd.dropout(place, 0.5, reserve.copy(), out=place)
    np.testing.assert_array_equal(place, y)


def test_what_is_dropped_is_zero_whatever_it_was() -> None:
    x = np.full(1000, np.nan, np.float32)
    y, _, mask = jd.dropout(x, 0.5, jd.DropoutState(0), return_mask=True)
    np.testing.assert_array_equal(np.isnan(y), mask)
    assert (y[~mask] == 0).all()
    assert (jd.dropout(x, 1.0, jd.DropoutState(0))[0] == 0).all()


def test_errors() -> None:
    x, state = np.ones((2, 3), np.float32), jd.DropoutState(0)
    for p in (-0.1, 1.1, float("nan"), "half"):
        with pytest.raises(InvalidArgument, match="p is"):
            jd.dropout(x, p, state)
    with pytest.raises(InvalidArgument, match="DropoutState"):
        jd.dropout(x, 0.5, 17)
    with pytest.raises(InvalidType, match="x is i32"):
        jd.dropout(np.ones(3, np.int32), 0.5, state)
    with pytest.raises(InvalidShape, match="out has shape"):
        jd.dropout(x, 0.5, state, out=np.ones((3, 2), np.float32))
    assert state.offset == 0  # a call that failed has drawn nothing
    for seed in (-1, 2**64, 0.5, True):
        with pytest.raises(InvalidArgument, match="seed is"):
            jd.DropoutState(seed)
    with pytest.raises(InvalidArgument, match="16 bytes"):
        jd.DropoutState.from_bytes(b"short")
    with pytest.raises(InvalidShape, match="mask has shape"):
        Dropout.make((2, 3), 0.5, mask=TensorDescriptor.packed((3, 2), "bool"))
