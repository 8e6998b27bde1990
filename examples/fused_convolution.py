"""A function of one's own fused into the end of a convolution, and its gradient derived."""

import numpy as np

import jitdnn as jd

rng = np.random.default_rng(0)
x = rng.standard_normal((8, 32, 28, 28)).astype(np.float32)
w = rng.standard_normal((64, 32, 3, 3)).astype(np.float32) / 17
bias = rng.standard_normal(64).astype(np.float32)


def softsign(v):
    return v / (1.0 + jd.absolute(v))


# the sums never go to memory before the function has been applied
y = jd.conv(x, w, bias, epilogue=lambda acc, b: softsign(acc + b), padding=1)
plain = jd.conv(x, w, padding=1) + bias[:, None, None]
print("largest difference:", np.abs(y - plain / (1 + np.abs(plain))).max())

# the backward pass of the function, as a kernel of its own, from the traced derivative
slope = jd.trace(softsign).derivative()
dy = np.ones_like(y)
backward = jd.elementwise(jd.trace(lambda dy, v: dy / ((1.0 + jd.absolute(v)) * (1.0 + jd.absolute(v)))))
print(
    "derived and written by hand agree:",
    np.allclose(jd.elementwise(slope)(plain), backward(dy, plain), rtol=1e-5),
)
