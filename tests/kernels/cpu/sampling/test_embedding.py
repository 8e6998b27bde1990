"""Embedding: rows of a table and the sums that come back, with indices that are none refused or passed over."""

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
from jitdnn.problems import Embedding, parse
from jitdnn.tensor import COMMON_DTYPES
from strategies import descriptors

KINDS = ["embedding_fwd", "embedding_bwd", "embedding_bwd padding0"]
SHAPES = [
    "rows10 columns7 shape5",
    "rows1 columns64 shape50 indices32",  # all sums in one row
    "rows300 columns3 shape2x3x4",  # most rows get nothing
    "rows30 columns33 shape0x4",
    "rows40 columns130 shape30x40 indices32",
    "rows5000 columns40 shape900",  # several tasks
]


def test_canonical_strings() -> None:
    known = {
        "embedding_fwd rows10 columns7 shape5x2 indices32 f16 nchw": Embedding.make(
            "fwd", (10, 7), (5, 2), dtype="f16", index_dtype="i32"
        ),
        "embedding_bwd rows10 columns7 shape5 indices64 padding3 f32 nchw": Embedding.make(
            "bwd", (10, 7), (5,), 3
        ),
    }
    for text, problem in known.items():
        assert str(problem) == text
        assert parse(text) == problem


@pytest.mark.parametrize("dtype", COMMON_DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_shapes(kind: str, dtype: str) -> None:
    for words in SHAPES:
        check(parse(f"{kind} {words} {dtype}"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_orders_in_memory(arrangement: str, kind: str) -> None:
    check(arranged(parse(f"{kind} rows12 columns19 shape3x5"), arrangement))


@pytest.mark.parametrize("cpu", INSTRUCTION_SETS[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_narrower_instruction_sets(kind: str, cpu: str) -> None:
    check(parse(f"{kind} rows12 columns37 shape3x5"), cpu=cpu)


def test_every_algorithm_is_reached() -> None:
    for kind in KINDS[:2]:
        assert unreached([parse(f"{kind} {words}") for words in SHAPES]) == set()


@st.composite
def embeddings(draw: st.DrawFn) -> Embedding:
    dtype, rows = draw(st.sampled_from(COMMON_DTYPES)), draw(st.sampled_from((1, 2, 9, 40)))
    columns = draw(st.sampled_from((1, 3, 16, 17, 70)))
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 5, 9)), min_size=1, max_size=3)))
    direction = draw(st.sampled_from(("fwd", "bwd")))
    is_forward = direction == "fwd"
    return Embedding(
        direction,
        draw(descriptors((rows, columns), dtype, is_output=not is_forward)),
        draw(descriptors(shape, draw(st.sampled_from(("i32", "i64"))))),
        draw(descriptors((*shape, columns), dtype, is_output=is_forward)),
        None if is_forward else draw(st.sampled_from((None, 0, rows - 1))),
    )


@settings(max_examples=examples(25), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(embeddings())
def test_any_embedding(problem: Embedding) -> None:
    assert parse(str(problem)) == problem
    check(problem, scales=((1.5, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize("index", ["i32", "i64"])
def test_indices_that_are_no_rows(index: str) -> None:
    """Kernels give zeros for them, and take nothing from them: they never touch what is outside of the table."""
    limits = np.iinfo(np.int32 if index == "i32" else np.int64)
    indices = np.array([0, -1, 3, 2, limits.max, limits.min, 1])
    inside = np.array([1, 0, 0, 1, 0, 0, 1], bool)
    weight = np.arange(1.0, 58.0, dtype=np.float32).reshape(3, 19)
    for name, y in results_of(
        Embedding.make("fwd", (3, 19), (7,), index_dtype=index), weight, indices
    ).items():
        np.testing.assert_array_equal(y[~inside], 0, err_msg=name)
        np.testing.assert_array_equal(y[inside], weight[indices[inside]], err_msg=name)
    dy = np.arange(7 * 19, dtype=np.float32).reshape(7, 19)
    for name, dw in results_of(Embedding.make("bwd", (3, 19), (7,), index_dtype=index), dy, indices).items():
        np.testing.assert_array_equal(dw, dy[[0, 6, 3]], err_msg=name)


@pytest.mark.parametrize("padding", [None, 3, -1])
def test_against_torch(padding: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(11, 23, generator=generator, dtype=torch.float64, requires_grad=True)
    indices = torch.randint(0, 11, (4, 5, 6), generator=generator)
    expected = torch.nn.functional.embedding(indices, weight, padding_idx=padding)
    dy = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    expected.backward(dy)
    torch.testing.assert_close(jd.embedding(indices, weight.detach()), expected.detach(), rtol=0, atol=0)
    dweight = jd.embedding_backward(dy, indices.int(), 11, padding)
    torch.testing.assert_close(dweight, weight.grad, rtol=1e-12, atol=1e-12)


def test_sums_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(0)
    indices, dy = rng.integers(0, 50, 20000), rng.standard_normal((20000, 33)).astype(np.float32)
    found = []
    for threads in (1, 2):
        with jd.settings(threads=threads):
            found.append(jd.embedding_backward(dy, indices, 50))
    np.testing.assert_array_equal(*found)


def test_half_precision_sums_are_single() -> None:
    """2,049 ones in float16, which cannot count beyond 2,048 by steps of one."""
    dy = np.ones((2049, 3), np.float16)
    dweight = jd.embedding_backward(dy, np.zeros(2049, np.int64), 2)
    np.testing.assert_array_equal(dweight, [[2048] * 3, [0] * 3])
    dweight = jd.embedding_backward(np.ones((4096, 3), np.float16), np.zeros(4096, np.int64), 2)
    np.testing.assert_array_equal(dweight[0], 4096)


def test_memory_past_the_caches() -> None:
    weight = np.random.default_rng(0).standard_normal((1000, 256)).astype(np.float32)
    indices = np.random.default_rng(1).integers(0, 1000, 60000)
    for start in (0, 1):
        out = np.empty(60000 * 256 + 1, np.float32)[start : start + 60000 * 256].reshape(60000, 256)
        np.testing.assert_array_equal(jd.embedding(indices, weight, out=out), weight[indices])


def test_errors() -> None:
    weight, dy = np.ones((4, 3), np.float32), np.ones((2, 2, 3), np.float32)
    with pytest.raises(InvalidArgument, match=r"indices\[1, 0\] is 4: the table has 4 rows"):
        jd.embedding(np.array([[0, 3], [4, -1]]), weight)
    with pytest.raises(InvalidArgument, match=r"indices\[0, 1\] is -1"):
        jd.embedding_backward(dy, np.array([[0, -1], [4, 5]]), 4)
    with pytest.raises(InvalidType, match="indices is f32"):
        jd.embedding(np.ones(3, np.float32), weight)
    with pytest.raises(InvalidArgument, match="padding_idx is 4"):
        jd.embedding_backward(dy, np.zeros((2, 2), np.int64), 4, 4)
    with pytest.raises(InvalidArgument, match="rows is 0"):
        jd.embedding_backward(dy, np.zeros((2, 2), np.int64), 0)
    with pytest.raises(InvalidShape, match="weight has shape"):
        jd.embedding(np.zeros(3, np.int64), np.ones((4, 3, 2), np.float32))
    with pytest.raises(InvalidShape, match="y has shape"):
        jd.embedding_backward(dy, np.zeros(3, np.int64), 4)
