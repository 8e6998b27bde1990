"""Inference with filters that are prepared once: a small network at batch 1, with and without."""

import time

import numpy as np

import jitdnn as jd

rng = np.random.default_rng(0)
widths = [(64, 56), (128, 28), (256, 14), (512, 7)]
images = [rng.standard_normal((1, c, side, side)).astype(np.float32) for c, side in widths]
weights = [rng.standard_normal((c, c, 3, 3)).astype(np.float32) / (3 * c**0.5) for c, _ in widths]


def milliseconds(filters):
    """One pass over all layers, the best of ten."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        results = [jd.conv(x, w, padding=1) for x, w in zip(images, filters, strict=True)]
        times.append(time.perf_counter() - start)
    return 1e3 * min(times), results


kept = [jd.KeptFilter(w) for w in weights]
ordinary, expected = milliseconds(weights)
prepared, results = milliseconds(kept)
print(f"filters as they are: {ordinary:.2f} ms, kept: {prepared:.2f} ms")
print("kept beside the filters:", sum(w.nbytes for w in kept) >> 10, "KiB")
print("largest difference:", max(np.abs(a - b).max() for a, b in zip(results, expected, strict=True)))

# weights that change in place are prepared anew when it is said so
weights[0] *= 2
kept[0].update()
doubled = jd.conv(images[0], kept[0], padding=1)
print("twice as much:", np.allclose(doubled, 2 * results[0], rtol=1e-4, atol=1e-5))
