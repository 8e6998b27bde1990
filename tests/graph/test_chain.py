"""`jd.chain`: as the function called plainly, in fewer kernels; what cannot be traced is called as it is, and said."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitdnn as jd
from examples import examples
from jitdnn import add, max_pool
from jitdnn import log as told

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(11)
W = (rng.standard_normal((6, 4, 3, 3)) / 6).astype(np.float32)
B = rng.standard_normal(6).astype(np.float32)
gate = jd.elementwise("x, r, s: x * s + r")


def filled(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def fresh_log() -> Iterator[None]:
    """Each test hears what is said once."""
    told._told.clear()
    return


def block(x: Any, r: Any) -> Any:
    y = jd.relu(jd.conv(x, W, B, padding=1) + r)
    return pooled(y)


def pooled(y: Any) -> Any:
    return max_pool(y, 2, 2)


def close(found: Any, expected: Any) -> None:
    assert type(found) is np.ndarray
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 2e-6 * max(1.0, np.abs(expected).max())


def test_it_is_the_function_in_two_kernels() -> None:
    fast = jd.chain(block)
    for shape in ((2, 4, 8, 6), (1, 4, 5, 9), (2, 4, 8, 6)):
        x = filled(*shape)
        r = filled(shape[0], 6, *shape[2:])
        close(fast(x, r), block(x, r))
    assert fast.explain(x, r, measure=False).startswith("2 kernels and 0 functions of the host")
    assert fast.__name__ == "block"
    assert "block" in repr(fast)


def test_strides_do_not_matter() -> None:
    fast, x, r = jd.chain(block), filled(8, 6, 4, 2).T, filled(2, 6, 12, 8)[:, :, ::2]
    close(fast(x, r), block(x, r))


def several(x: Any, y: Any, *, power: int = 1, names: bool = False) -> Any:
    total = add(x, y)
    for _ in range(power):
        total = jd.multiply(total, x, alpha=0.5)
    half = np.concatenate([total[:, ::2], np.transpose(y, (1, 0))[:3].reshape(y.shape[0], -1)[:, :1]], axis=1)
    return {"total": total, "half": half} if names else (total, half)


def test_results_of_any_arrangement_and_other_arguments() -> None:
    fast, x, y = jd.chain(several), filled(4, 6), filled(4, 6)
    for power in (1, 3):
        found, expected = fast(x, y, power=power), several(x, y, power=power)
        assert type(found) is tuple
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    named = fast(x, y=y, names=True)
    assert list(named) == ["total", "half"]
    close(named["half"], several(x, y)[1])


FORMULAS = (
    "x + y",
    "x - y",
    "x * y",
    "x / (y * y + 1)",
    "2 * x - y / 4",
    "-x + 1",
    "1 / (x * x + 2)",
    "3 - y",
    "K * x - y",
    "K / (x * x + 1) + y",
)
K = np.linspace(1, 2, 5)


@settings(max_examples=examples(15), deadline=None)
@given(st.sampled_from(FORMULAS), st.sampled_from(["f4", "f8"]), st.booleans())
def test_arithmetic_is_that_of_numpy(text: str, dtype: str, is_wide: bool) -> None:
    function = eval(f"lambda x, y: {text} + 0 * x * y", {"K": K.astype(dtype)})
    x, y = filled(3, 5).astype(dtype), filled(*((3, 5) if is_wide else (5,))).astype(dtype)
    fast = jd.chain(function)
    found, expected = fast(x, y), function(x, y)
    assert found.dtype == expected.dtype
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)
    if is_wide:  # what is computed of a row alone is computed once for all
        assert "1 kernels" in fast.explain(x, y, measure=False)


def test_numbers_that_are_equal_may_be_other_arguments() -> None:
    fast = jd.chain(lambda x, by: x * by)
    x = np.ones(5, np.float32)
    for by in (0.0, -0.0, np.nan, 1.0):
        np.testing.assert_array_equal(fast(x, by), x * np.float32(by))
        assert np.signbit(fast(x, by)).all() == np.signbit(x * np.float32(by)).all()


def test_a_kernel_of_ones_own_is_fused() -> None:
    def function(x: Any, r: Any) -> Any:
        return gate(jd.conv(x, W, padding=1), r, 0.25)

    x, r = filled(1, 4, 7, 7), filled(1, 6, 7, 7)
    fast = jd.chain(function)
    close(fast(x, r), function(x, r))
    assert fast.explain(x, r, measure=False).startswith("1 kernels")


class Model:
    def __init__(self) -> None:
        self.w = filled(3, 5)

    def __call__(self, x: Any) -> Any:
        return jd.tanh(jd.matmul(x, self.w.T))

    def halved(self, x: Any, factor: float) -> Any:
        return self(x) * factor


def test_methods_partials_and_objects() -> None:
    model, x = Model(), filled(4, 5)
    for function in (model, functools.partial(jd.relu), lambda x: jd.sigmoid(x) + x):
        fast = jd.chain(function)
        close(fast(x), function(x))
        assert "kernels" in fast.explain(x, measure=False)
    # through an attribute of an object jitdnn's functions stay what they are
    fast = jd.chain(functools.partial(model.halved, factor=0.5))
    close(fast(x), model.halved(x, 0.5))


def deep(x: Any, count: int) -> Any:
    return jd.relu(x) if count == 0 else deep(jd.tanh(x), count - 1)


def test_functions_may_call_themselves() -> None:
    fast, x = jd.chain(deep), filled(3, 3)
    close(fast(x, 4), deep(x, 4))


def branches(x: Any) -> Any:
    return jd.relu(x) if x.sum() > 0 else jd.tanh(x)


def in_place(x: Any) -> Any:
    y = np.empty_like(x)
    jd.relu(x, out=y)
    return y


def sorts(x: Any) -> Any:
    return np.sort(jd.relu(x))


def plain_text(x: Any) -> Any:
    jd.relu(x)
    return "nothing"


@pytest.mark.parametrize("function", [branches, in_place, sorts, plain_text])
def test_what_cannot_be_traced_is_called_as_it_is_and_said_once(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fast, x = jd.chain(function), filled(3, 4)
    with caplog.at_level(logging.WARNING, logger="jitdnn"):
        for sign in (1.0, -1.0, 1.0):
            found, expected = fast(sign * np.abs(x)), function(sign * np.abs(x))
            assert found == expected if isinstance(expected, str) else (found == expected).all()
    said = [record.message for record in caplog.records if function.__name__ in record.message]
    assert len(said) == 1
    assert "is called as it is" in said[0]
    assert fast.explain(x).startswith("called as it is: ")


def test_arrays_of_other_kinds_are_called_plainly() -> None:
    fast = jd.chain(lambda x: jd.relu(x))
    torch = pytest.importorskip("torch")
    found = fast(torch.tensor([-1.0, 2.0]))
    assert type(found) is torch.Tensor
    assert found.tolist() == [0.0, 2.0]


def test_errors_are_those_of_the_function() -> None:
    fast = jd.chain(lambda x: jd.conv(x, W))
    with pytest.raises(jd.InvalidShape, match="channels"):
        fast(filled(1, 3, 5, 5))
    with pytest.raises(ZeroDivisionError):
        jd.chain(lambda x: jd.relu(x) * (1 / 0))(filled(3))
    with pytest.raises(jd.InvalidType, match="function is 3"):
        jd.chain(3)  # type: ignore[arg-type]
    with pytest.raises(jd.InvalidArgument, match="threads"):
        jd.chain(block, threads=0)
    with pytest.raises(TypeError):
        jd.chain(block)(filled(3))


def test_results_are_in_memory_of_their_own() -> None:
    fast, x = jd.chain(lambda x: (jd.relu(x), x)), filled(4)
    first, same = fast(x)
    second, _ = fast(x)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(same, x)


def test_threads_share_a_chain() -> None:
    fast = jd.chain(block, threads=1)
    inputs = [(filled(1, 4, 6, 6), filled(1, 6, 6, 6)) for _ in range(4)]
    expected = [block(*one) for one in inputs]
    wrong: list[int] = []

    def run(number: int) -> None:
        for _ in range(40):
            if np.abs(fast(*inputs[number]) - expected[number]).max() > 1e-5:
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
