"""Arrays of CuPy on a GPU, taken where they are: ops, formulas, modules and CuPy's own streams.

python examples/arrays_of_cupy.py
"""

import jitdnn as jd
from jitdnn import targets

try:
    import cupy
except ImportError:
    print("CuPy is not installed: pip install cupy-cuda13x, on a machine with an NVIDIA GPU")
    raise SystemExit(0) from None
reason = targets.get("cuda").missing()
if reason:
    print(f"no GPU: {reason}")
    raise SystemExit(0)

x = cupy.random.standard_normal((8, 64, 28, 28), dtype=cupy.float32)
w = cupy.random.standard_normal((64, 64, 3, 3), dtype=cupy.float32)
with cupy.cuda.Stream() as stream:  # the stream in force is the one that the kernels go to
    y = jd.conv(x, w, padding=1)
    z = jd.elementwise("y: maximum(y, 0.0) * 2")(y)
    stream.synchronize()
print(type(y).__module__, y.shape, "largest element", float(cupy.maximum(y, 0).max() * 2), float(z.max()))

scale = jd.module(
    "__global__ void scale(float *x, float by, long long n) {"
    "  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;"
    "  if (i < n) x[i] *= by; }",
    device="cuda",
)["scale"]
before = float(z.sum())
scale(z, 0.5, z.size, grid=-(-z.size // 256), block=256)
print("halved:", before, float(z.sum()))

ours = jd.to_device(cupy.asnumpy(w), "cuda")
theirs = cupy.asarray(ours * 2)  # an expression is computed when it is handed out, without a copy
assert bool((theirs == 2 * w).all())
