"""Two numbers of 64 bits for an image: one of its values, one of how it looks."""

from __future__ import annotations

import hashlib

import numpy as np
from PIL import Image

from jitdnn.studio.data.dataset import Array

_SIDE, _KEPT = 32, 8
_ANGLES = np.pi / _SIDE * (np.arange(_SIDE) + 0.5)
#: the 8 slowest cosines over 32 places
_COSINES = np.cos(np.outer(np.arange(_KEPT), _ANGLES))


def exact_hash(image: Array) -> int:
    """Of the values and the shape: equal images have equal numbers."""
    digest = hashlib.blake2b(
        np.ascontiguousarray(image).tobytes(), digest_size=8, key=str(image.shape).encode()[:64]
    )
    return int.from_bytes(digest.digest(), "little", signed=True)


def alike_hash(image: Array) -> int:
    """Of how a picture (C, H, W) of bytes looks: bit k says whether the k-th of its 8 x 8 slowest cosines is above the
    median of them. Pictures that look the same differ in few bits, whatever their size and brightness. 0 for what
    is no picture.

    C. Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions", 2010.
    """
    if image.dtype != np.uint8 or min(image.shape[1:]) < _KEPT:
        return 0
    grey = image[len(image) // 2]  # green is most of the brightness
    small = np.asarray(Image.fromarray(grey).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR), np.float64)
    slow = (_COSINES @ small @ _COSINES.T).ravel()
    slow = slow[1:]  # without the brightness
    bits = slow > np.partition(slow, len(slow) // 2)[len(slow) // 2]
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little", signed=True)
