"""Random numbers on the device, a reduction of them, and what a chain of sines costs written in four ways.

    python examples/module_random_speed.py [cuda | opencl | cpu]

The chain is x -> sin(x), some times over. By NumPy every sine is a pass over memory; as text, as a formula and as an
expression of arrays the chain is one kernel.
"""

import sys
import time

import numpy as np

import jitdnn as jd
from jitdnn import targets

SIZE, TIMES = 1 << 16, 16
CUDA = """
__global__ void sines(float *x, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float value = x[i];
    for (int k = 0; k < TIMES; k++) value = sinf(value);
    x[i] = value;
  }
}
"""
OPENCL = """
__kernel void sines(__global float *x, int n) {
  for (int i = get_global_id(0); i < n; i += get_global_size(0)) {
    float value = x[i];
    for (int k = 0; k < TIMES; k++) value = sin(value);
    x[i] = value;
  }
}
"""


def chain(x):
    for _ in range(TIMES):
        x = np.sin(x)
    return x


def timed(run, wait):
    """Seconds of the best of three calls, after one that compiles."""
    run(), wait()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        run()
        wait()
        best = min(best, time.perf_counter() - start)
    return best


usable = [name for name in ("cuda", "opencl") if targets.get(name).missing() is None] + ["cpu"]
device = sys.argv[1] if len(sys.argv) > 1 else usable[0]
with jd.settings(target=device):
    x = jd.uniform((SIZE,), 0.0, 1.0, jd.DropoutState(2026))
kernel = jd.elementwise(chain)
if device == "cpu":
    host, total = x, jd.reduction()(x)[0]
    ways = {"formula": (lambda: kernel(x), lambda: None)}
else:
    host, total = x.numpy(), float(x.sum())
    y, z = x.copy(), jd.empty(SIZE, device=device)
    language = CUDA if device == "cuda" else OPENCL
    sines = jd.module(language, device=device, defines={"TIMES": TIMES})["sines"]
    sines(y, SIZE, grid=SIZE // 256, block=256)
    assert abs(y.numpy() - chain(host)).max() < 1e-5
    assert abs(kernel(x).numpy() - chain(host)).max() < 1e-5

    def by_operators():
        z[...] = chain(x)

    ways = {
        "text": (lambda: sines(y, SIZE, grid=SIZE // 256, block=256), y.wait),
        "formula": (lambda: kernel(x, out=z), z.wait),
        "operators": (by_operators, z.wait),
    }
print(f"{device}: mean of {SIZE} uniform numbers {total / SIZE:.4f}, by NumPy {host.mean():.4f}")
assert abs(total / SIZE - 0.5) < 0.01
for way, (run, wait) in {**ways, "NumPy": (lambda: chain(host), lambda: None)}.items():
    print(f"{way:10}{1e3 * timed(run, wait):8.2f} ms for {TIMES} sines of {SIZE} numbers")
