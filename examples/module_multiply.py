"""Two vectors multiplied four ways: text in the GPU's own language, a formula, an expression of arrays, and LLVM IR.

python examples/module_multiply.py [cuda | opencl | cpu]
"""

import sys

import numpy as np

import jitdnn as jd
from jitdnn import targets

CUDA = """
__global__ void multiply(const float *a, const float *b, float *product, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) product[i] = a[i] * b[i];
}
"""
OPENCL = """
__kernel void multiply(__global const float *a, __global const float *b, __global float *product, int n) {
  int i = get_global_id(0);
  if (i < n) product[i] = a[i] * b[i];
}
"""
# one task multiplies 100 elements: args has the three addresses
LLVM = """
define void @multiply(ptr %args, i64 %task, i64 %thread) {
entry:
  %b.at = getelementptr ptr, ptr %args, i64 1
  %product.at = getelementptr ptr, ptr %args, i64 2
  %a = load ptr, ptr %args
  %b = load ptr, ptr %b.at
  %product = load ptr, ptr %product.at
  %first = mul i64 %task, 100
  %last = add i64 %first, 100
  br label %loop
loop:
  %i = phi i64 [%first, %entry], [%next, %loop]
  %x.at = getelementptr float, ptr %a, i64 %i
  %y.at = getelementptr float, ptr %b, i64 %i
  %z.at = getelementptr float, ptr %product, i64 %i
  %x = load float, ptr %x.at
  %y = load float, ptr %y.at
  %z = fmul float %x, %y
  store float %z, ptr %z.at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %last
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

usable = [name for name in ("cuda", "opencl") if targets.get(name).missing() is None] + ["cpu"]
device = sys.argv[1] if len(sys.argv) > 1 else usable[0]
a, b = np.random.default_rng(0).standard_normal((2, 400)).astype(np.float32)

if device == "cpu":
    product = np.zeros_like(a)
    jd.module(LLVM)["multiply"](a, b, product, tasks=4)
    by_formula, by_operators = jd.elementwise("x, y: x * y")(a, b), a * b
else:
    x, y = jd.to_device(a, device), jd.to_device(b, device)
    out = jd.empty(x.size, device=device)
    multiply = jd.module(CUDA if device == "cuda" else OPENCL, device=device)["multiply"]
    multiply(x, y, out, x.size, grid=-(-x.size // 128), block=128)
    product = out.numpy()
    by_formula, by_operators = jd.elementwise("x, y: x * y")(x, y).numpy(), (x * y).numpy()

for way, found in (("module", product), ("formula", by_formula), ("operators", by_operators)):
    print(f"{device}, {way:9}: largest difference to NumPy {abs(found - a * b).max():.1e}")
    assert abs(found - a * b).max() < 1e-6
