"""Shorter ways to compute what is rounded to half precision."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from jitdnn.rtcg.c_source import c_function
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.functions import erf, exp, maximum, normal_tail

ROOT = 2.0**0.5


def _text(function: Any, is_rough: bool = True) -> str:
    text = c_function(trace(function), "f", "f32", is_rough)
    return text[text.index("FUNCTION f32 f(") :]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (erf(x / ROOT) + 1.0) * 0.5,
        lambda x: 0.5 * x * (1.0 + erf(x * (1 / ROOT))),
        lambda x: (x * 0.5) * (1.0 + erf(x / ROOT)),
        lambda x: x * (1.0 + erf(x / ROOT)) / 2.0,
        lambda x: (1.0 + erf(np.float32(1 / ROOT).item() * x)) * (0.5 * x),
    ],
)
def test_gelu_is_found_however_it_is_spelled(function: Any) -> None:
    assert "return gelu_rough(x0);" in _text(function)
    assert "gelu_rough" not in _text(function, is_rough=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (erf(x / ROOT) + 1.0),
        lambda x: x * (erf(x) + 1.0) * 0.5,
        lambda x: exp(x) * (erf(x / ROOT) + 1.0) * 0.5,
        lambda x: x * (erf(x / ROOT) + 2.0) * 0.5,
        lambda x: x * (exp(x / ROOT) + 1.0) * 0.5,
        lambda x: x * x * (erf(x / ROOT) + 1.0) * 0.5,
    ],
)
def test_what_looks_like_it_is_not(function: Any) -> None:
    assert "gelu_rough" not in _text(function)


def test_what_is_read_besides_is_computed_besides() -> None:
    def function(x: Any) -> Any:
        inner = erf(x / ROOT)
        return x * (inner + 1.0) * 0.5 + inner

    text = _text(function)
    assert "gelu_rough(x0)" in text
    assert "erf(" in text


def test_the_tail_of_the_normal_distribution_is_short_too() -> None:
    assert "upper_tail_rough(" in _text(normal_tail)
    assert "upper_tail_f32(" in _text(normal_tail, is_rough=False)


def test_constant_divisors_and_maxima() -> None:
    assert "(x0 * 0.33333334f)" in _text(lambda x: x / 3.0)
    assert "(x0 / 3.0f)" in _text(lambda x: x / 3.0, is_rough=False)
    assert "maximum_rough(" in _text(lambda x: maximum(x, 0.0))
    assert "/" in _text(lambda x: x / 0.0)
    assert "/" in _text(lambda x, y: x / y)


def test_the_function_is_as_exact_as_it_says(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    header = files("jitdnn.rtcg").joinpath("c_rough.h").read_text("utf-8")
    source = tmp_path / "rough.cpp"
    source.write_text(
        "#include <cmath>\n#define FUNCTION static\ntypedef float f32;\n"
        "static f32 maximum_rough(f32 a, f32 b) { return a > b || a != a ? a : b; }\n"
        "static f32 exp2_approximate(f32 x) { return x < -126 ? 0 : exp2f(x); }\n"
        f'{header}\nextern "C" void all(const f32 *x, f32 *y, int n)'
        " { for (int i = 0; i < n; ++i) y[i] = gelu_rough(x[i]); }\n"
    )
    library = tmp_path / "rough.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    x = np.concatenate([np.linspace(-40, 40, 200_001), [0.0, 1e-30, -1e-30, 3e38, np.inf, np.nan]]).astype(
        np.float32
    )
    y = np.empty_like(x)
    ctypes.CDLL(str(library))["all"](
        x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), len(x)
    )
    wide = x.astype(np.float64)
    exact = wide * ndtr(wide)
    near = np.abs(wide) < 5.8
    assert np.all(np.abs(y[near] - exact[near]) <= 6e-6 * np.abs(exact[near]))
    far = np.isfinite(exact) & ~near
    assert np.all(np.abs(y[far] - exact[far]) <= 1e-10 + 1e-6 * np.abs(exact[far]))
    assert y[-2] == np.inf
    assert np.isnan(y[-1])
