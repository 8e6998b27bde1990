"""Arrays of JAX, on a GPU or on the host: what comes back is JAX's own, and goes into its programs.

python examples/arrays_of_jax.py
"""

import numpy as np

import jitdnn as jd

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    print("JAX is not installed: pip install 'jitdnn[jax]' (for a GPU: pip install 'jax[cuda13]')")
    raise SystemExit(0) from None

import jitdnn.jax as jj

device = jax.devices()[0]
print(f"JAX's arrays are on {device}" + (": there is no GPU for it" if device.platform == "cpu" else ""))
keys = jax.random.split(jax.random.key(0), 2)
x = jax.random.normal(keys[0], (4, 8, 16, 16))
w = jax.random.normal(keys[1], (16, 8, 3, 3)) * 0.1

y = jd.conv(x, w, padding=1)  # where the arrays are, without a copy of them
theirs = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
print(type(y).__name__, y.shape, "largest difference to JAX's", float(abs(y - theirs).max()))
assert isinstance(y, jax.Array)
assert float(abs(y - theirs).max()) < 1e-4


@jax.jit
def loss(x, w):
    """A program of JAX with a convolution of this library in it; it has gradients."""
    return (jax.nn.relu(jj.conv(x, w, padding=1)) ** 2).mean()


def their_loss(x, w):
    return (jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")) ** 2).mean()


slope, their_slope = jax.grad(loss, 1)(x, w), jax.grad(their_loss, 1)(x, w)
print("gradient of the filter:", slope.shape, "largest difference", float(jnp.abs(slope - their_slope).max()))
np.testing.assert_allclose(slope, their_slope, rtol=1e-3, atol=1e-5)
