"""Convolutions in JAX's programs by `jitdnn.jax` beside JAX's own, on JAX's default device.

    python benchmarks/jax_calls.py [LAYER ...] [--dtype float32] [--seconds 1] [--threads 2]

Each program is one jitted function: a layer forward, or its loss's gradients by images and filter. Both sides take
turns; milliseconds are the least of the turns, "JAX's / ours" their ratio. Nothing is timed that is not near JAX's
result. `small` is a layer of next to no work: what a call costs.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jitdnn as jd
import jitdnn.jax as jj

#: images, channels, side, filters, filter's side, groups
LAYERS = {
    "small": (1, 4, 8, 4, 3, 1),
    "dense": (32, 64, 56, 64, 3, 1),
    "grouped": (32, 128, 56, 128, 3, 32),
    "depthwise 3": (32, 144, 56, 144, 3, 144),
    "depthwise 7": (32, 384, 14, 384, 7, 384),
    "first": (32, 3, 112, 64, 7, 1),
}


def sides(groups: int, radius: int) -> dict[str, Callable[..., Any]]:
    return {
        "jitdnn": lambda x, w: jj.conv(x, w, padding=radius, groups=groups),
        "jax": lambda x, w: jax.lax.conv_general_dilated(
            x, w, (1, 1), [(radius, radius)] * 2, feature_group_count=groups
        ),
    }


def gradients(forward: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x, w: (forward(x, w).astype("float32") ** 2).mean(), (0, 1))


def difference(found: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(
        float(jnp.abs(a.astype("float32") - b.astype("float32")).max() / jnp.abs(b).max().astype("float32"))
        for a, b in pairs
    )


def turn(run: Callable[..., Any], arrays: Any, seconds: float) -> float:
    """Seconds of a run, of as many one behind the other as take so long."""
    count = 1
    while True:
        begun = time.perf_counter()
        for _ in range(count):
            result = run(*arrays)
        jax.block_until_ready(result)
        spent = time.perf_counter() - begun
        if spent >= seconds:
            return spent / count
        count = max(count + 1, int(1.2 * count * seconds / max(spent, 1e-6)))


def main() -> None:
    """Print a row for each layer and program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"of {', '.join(LAYERS)}; all by default")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side of a row")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    print(f"JAX {jax.__version__} on {jax.devices()[0]}")
    keys = jax.random.split(jax.random.key(0), 2)
    bound = 1e-3 if options.dtype == "float32" else 5e-2
    for name in options.layers or LAYERS:
        n, c, side, k, taps, groups = LAYERS[name]
        x = jax.random.normal(keys[0], (n, c, side, side)).astype(options.dtype)
        w = 0.1 * jax.random.normal(keys[1], (k, c // groups, taps, taps)).astype(options.dtype)
        for what in ("forward", "gradients"):
            runs = {
                who: jax.jit(forward if what == "forward" else gradients(forward))
                for who, forward in sides(groups, taps // 2).items()
            }
            given = {"threads": options.threads} if options.threads else {}
            with jd.settings(**given), jax.default_matmul_precision("highest"):
                results = {who: run(x, w) for who, run in runs.items()}
            if not (off := difference(results["jitdnn"], results["jax"])) <= bound:
                print(f"{name} {what}: {off:.2g} from JAX's, not timed")
                continue
            times: dict[str, list[float]] = {who: [] for who in runs}
            for _ in range(7):
                for who, run in runs.items():
                    times[who].append(turn(run, (x, w), options.seconds / 7))
            ours, theirs = (1e3 * min(times[who]) for who in ("jitdnn", "jax"))
            print(f"{name} {what}: {ours:.4g} ms, JAX's {theirs:.4g}, JAX's / ours {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
