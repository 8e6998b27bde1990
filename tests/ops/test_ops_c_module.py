"""Text of C in modules: what is refused without a GPU, how values are written as C, headers in folders, and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from jitdnn.devices.c_signature import parameters
from jitdnn.devices.c_text import CText, define_text, settled_defines, settled_headers
from jitdnn.ops.c_arguments import given_argument

CUDA = "__global__ void f(float *x) { x[threadIdx.x] = 1; }"
OPENCL = "__kernel void f(__global float *x) { x[get_global_id(0)] = 1; }"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CUDA, r"CUDA C\+\+.*LLVM IR.*device='cuda'"),
        (OPENCL, "OpenCL C.*LLVM IR.*device='opencl'"),
        ("#include <math.h>\nvoid f(float *x) { x[0] = 1; }", "source is C, .*LLVM IR"),
        ("static int f(int a)\n{ return a; }", "source is C, .*LLVM IR"),
    ],
)
def test_c_on_the_cpu_is_refused_in_plain_words(text: str, words: str) -> None:
    with pytest.raises(jd.CompileError, match=words) as caught:
        jd.module(text)
    assert "\n" not in str(caught.value)


def test_what_is_of_c_is_no_option_of_llvm() -> None:
    with pytest.raises(jd.InvalidArgument, match="defines, headers"):
        jd.module("define void @f(ptr %a, i64 %b, i64 %c) {\n  ret void\n}", defines={"N": 1})
    with pytest.raises(jd.InvalidArgument, match="the device is"):
        jd.module(CUDA, device="gpu")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), ("a + b", "a + b"), (True, "1"), (3, "3"), (-3, "(-3)"), (1 << 63, "9223372036854775808U"),
        (2.0, "2.0"), (-0.5, "(-0.5)"), (1e30, "1e+30"), (np.float32(0.1), "0.1f"), (np.float32(2), "2.0f"),
        (np.float32(1e30), "1e+30f"), (np.int8(-1), "(-1)"), ([1, 2], "{1, 2}"), (float("inf"), "(1.0 / 0.0)"),
        (np.float32([[1, 2], [3, 4]]), "{{1.0f, 2.0f}, {3.0f, 4.0f}}"), (np.float64([0.1]), "{0.1}"),
    ],
)  # fmt: skip
def test_values_of_defines(value: Any, text: str) -> None:
    assert define_text("N", value) == text


def test_defines_that_are_none() -> None:
    for bad in ({"a b": 1}, {"1a": 1}, {3: 1}, [("N", 1)], {"N": "a\nb"}):
        with pytest.raises(jd.InvalidArgument):
            settled_defines(bad)
    for value in (object(), np.array(["a"]), 1j):
        with pytest.raises(jd.InvalidType):
            settled_defines({"N": value})


def test_headers_in_folders_are_found_with_what_they_include(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.h").write_text('#include "sub/b.h"\n')
    (tmp_path / "sub" / "b.h").write_text('#include "c.h"\n#include <unknown.h>\n')
    (tmp_path / "sub" / "c.h").write_text("// c\n")
    found = settled_headers('#include "a.h"\n# include "given.h"', {"given.h": "int given;"}, tmp_path)
    assert [name for name, _ in found] == ["a.h", "c.h", "given.h", "sub/b.h"]
    for headers, folders in (
        ({"../a.h": ""}, None),
        ({"/a.h": ""}, None),
        ({"a.h": 3}, None),
        ("a.h", None),
        (None, tmp_path / "no"),
        (None, 3),
    ):
        with pytest.raises(jd.InvalidArgument):
            settled_headers("", headers, folders)


def test_lines_of_a_log_are_shown() -> None:
    text = CText("mine", "mine.cu", "one\ntwo\nthree\nfour\nfive\nsix", headers=(("a.h", "first\nsecond"),))
    error = text.failure("sm_80", 'mine.cu(3): error: identifier "x" is undefined\na.h(2): error: no')
    assert (error.file, error.line) == ("mine.cu", 3)
    assert ">    3  three\n     4  four" in str(error)
    assert "a.h, line 2:\n     1  first\n>    2  second" in str(error)
    assert text.failure("sm_80", "something else").line is None
    assert text.complete.splitlines()[0] == '#line 1 "mine.cu"'


def number(kind: str, value: Any) -> bytes:
    (parameter,) = parameters(f"{kind} n", "cuda")
    given = given_argument("f", parameter, value, ("cuda", 0))
    assert isinstance(given.value, bytes)
    return given.value


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", 7, np.int32(7)), ("int", np.int64(-7), np.int32(-7)), ("unsigned char", 255, np.uint8(255)),
        ("unsigned long long", (1 << 64) - 1, np.uint64((1 << 64) - 1)), ("float", 2.5, np.float32(2.5)),
        ("float", 3, np.float32(3)), ("double", np.float32(0.1), np.float64(np.float32(0.1))),
        ("float", np.float64(0.1), np.float32(0.1)), ("half", 0.5, np.float16(0.5)), ("bool", True, np.bool_(True)),
        ("float", float("nan"), np.float32("nan")), ("float", float("inf"), np.float32("inf")),
        ("float2", (1, 2.5), np.float32([1, 2.5])), ("int3", np.array([1, 2, 3]), np.int32([1, 2, 3])),
        ("float", np.array(1.5), np.float32(1.5)),
    ],
)  # fmt: skip
def test_numbers_are_handed_over_as_what_the_text_says(kind: str, value: Any, expected: Any) -> None:
    assert number(kind, value) == expected.tobytes()


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("int", 1 << 31, jd.InvalidArgument), ("unsigned char", -1, jd.InvalidArgument), ("int", 2.0, jd.InvalidType),
        ("int", True, jd.InvalidType), ("float", True, jd.InvalidType), ("float", "1", jd.InvalidType),
        ("float", 1e300, jd.InvalidArgument), ("half", 70000, jd.InvalidArgument), ("bool", 2, jd.InvalidType),
        ("float", 1 << 5000, jd.InvalidArgument), ("float", None, jd.InvalidType), ("float", 1j, jd.InvalidType),
        ("float2", (1, 2, 3), jd.InvalidType), ("float2", 1.0, jd.InvalidType), ("Thing", 3, jd.InvalidType),
        ("Thing", np.array([1, 2]), jd.InvalidType), ("Thing", np.array(object()), jd.InvalidType),
        ("float", np.zeros(3), jd.InvalidType), ("float *", 1.5, jd.InvalidType), ("float *", -1, jd.InvalidArgument),
        ("float *", np.zeros(3, np.float32), jd.DeviceError), ("float *", "x", jd.InvalidType),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_the_parameter(kind: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^n of f"):
        number(kind, value)


def test_structures_are_handed_over_as_they_are() -> None:
    kind = np.dtype([("n", "i4"), ("x", "f8")], align=True)
    one = np.array((3, 2.5), kind)
    assert number("Thing", one) == one.tobytes() == number("Thing", one[()]) == number("Thing", one.tobytes())
    assert number("Thing", np.float16(1)) == np.float16(1).tobytes()
