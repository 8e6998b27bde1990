"""Parameter lists of CUDA C++ and OpenCL C, read from text."""

from __future__ import annotations

import ctypes

import pytest

from jitdnn.devices.c_signature import Parameter, parameters, signatures
from jitdnn.errors import InvalidArgument


@pytest.mark.parametrize(
    ("language", "text", "kind", "dtype"),
    [
        ("cuda", "const float *__restrict__ x", "array", "f32"),
        ("cuda", "float x[]", "array", "f32"),
        ("cuda", "unsigned char const *x", "array", "u8"),
        ("cuda", "float4 *x", "array", "f32"),
        ("cuda", "float **x", "array", None),
        ("cuda", "const Thing *x", "array", None),
        ("cuda", "std::complex<float> *x", "array", None),
        ("cuda", "int x", "number", "i32"),
        ("cuda", "const unsigned int x", "number", "u32"),
        ("cuda", "long unsigned int x", "number", f"u{8 * ctypes.sizeof(ctypes.c_long)}"),
        ("cuda", "unsigned long long x", "number", "u64"),
        ("cuda", "bool x", "number", "bool"),
        ("cuda", "__half x", "number", "f16"),
        ("cuda", "__nv_bfloat16 x", "number", "bf16"),
        ("cuda", "std::pair<int, float> x", "structure", None),
        ("cuda", "struct thing x", "structure", None),
        ("cuda", "int16_t x", "number", "i16"),
        ("opencl", "__global const float * restrict x", "array", "f32"),
        ("opencl", "__constant double *x", "array", "f64"),
        ("opencl", "__local float *x", "local", "f32"),
        ("opencl", "ulong x", "number", "u64"),
        ("opencl", "long x", "number", "i64"),
        ("opencl", "half x", "number", "f16"),
        ("opencl", "uchar16 x", "vector", "u8"),
    ],
)
def test_types(language: str, text: str, kind: str, dtype: str | None) -> None:
    (read,) = parameters(text, language)
    assert (read.name, read.kind, read.dtype) == ("x", kind, dtype)
    assert read.is_const == ("const" in text and kind == "array")


def test_vectors_of_three() -> None:
    assert [(p.lanes, p.stored) for p in parameters("float3 v", "cuda")] == [(3, 3)]
    assert [(p.lanes, p.stored) for p in parameters("float3 v", "opencl")] == [(3, 4)]


def test_lists() -> None:
    assert parameters("", "cuda") == parameters(" void ", "cuda") == ()
    names = [p.name for p in parameters("int, std::pair<int, float> p, float *", "cuda")]
    assert names == ["argument 0", "p", "argument 2"]
    for bad in ("float &x", "image2d_t x", "*", "int a, , int b"):
        with pytest.raises(InvalidArgument):
            parameters(bad, "opencl")


def test_kernels_of_a_text() -> None:
    text = """
    #define real float   // of this text
    typedef double wide;
    extern "C" __global__ void __launch_bounds__(256, 2) axpy(real a /* , int no */, const wide *x,
                                                              REAL y[]) { f("__global__ void a(int)"); }
    // __global__ void hidden(int x);
    template <typename T> __global__ __launch_bounds__(128) void of_template(T x) {}
    __device__ float helper(float x) { return x; }
    #if A
    __global__ void twice(int x) {}
    #else
    __global__ void twice(float x) {}
    #endif
    __global__ void broken(int &x) {}
    """
    found = signatures(text, "cuda", {"REAL": "int"})
    assert set(found) == {"axpy", "of_template", "twice", "broken"}
    assert found["twice"] is found["broken"] is None
    assert found["axpy"] == (
        Parameter("a", "float a", "number", "f32"),
        Parameter("x", "const double *x", "array", "f64", is_const=True),
        Parameter("y", "int y[]", "array", "i32"),
    )
    opencl = (
        "__kernel __attribute__((reqd_work_group_size(4, 1, 1))) void f(__global T *x) {} kernel void g() {}"
    )
    read = signatures(opencl, "opencl", {"T": "float"})
    assert [p.dtype for p in read["f"] or ()] == ["f32"]
    assert read["g"] == ()
