"""Reductions and scans of one's own, with a fold that is no sum: the logarithm of a sum of exponentials."""

import numpy as np

import jitdnn as jd

x, y = np.random.default_rng(0).standard_normal((2, 64, 10_000)).astype(np.float32)

dot = jd.reduction(lambda x, y: x * y)
print("dot products of rows:", dot(x, y, axes=1)[:3])

# mean and variance from one pass over memory
total, squares = jd.reduction(lambda x: (x, x * x))(x, axes=1)
mean = total / x.shape[1]
print("largest variance:", (squares / x.shape[1] - mean**2).max())

log_add = jd.trace(lambda a, b: jd.maximum(a, b) + jd.log1p(jd.exp(-jd.absolute(a - b))))
print("log-sum-exp:", jd.reduction(reduce=log_add, neutral=-1e30)(x, axes=1)[:3])

running = jd.scan(reduce=log_add, neutral=-1e30)(x, axis=1)
print("and so far:", running[0, :3])
