"""DFT, STFT and MelWeightMatrix.

A transform is a product with the matrix of its roots of unity, which the library's matrix product takes. Long ones
are put together of shorter ones (Cooley and Tukey 1965); lengths with a large prime factor are convolutions of a
power of two (Bluestein 1970).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from jitdnn.errors import InvalidArgument, InvalidShape
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.views import bounded, element_type
from jitdnn.graph import primitives as jd

Parts = tuple[Array, Array]  # the real and the imaginary numbers
_SHORT = 256  # the longest transform that is one product


def dft(
    x: Array,
    length: Array | None = None,
    given_axis: Array | None = None,
    /,
    *,
    axis: int | None = None,
    inverse: int = 0,
    onesided: int = 0,
    site: Site,
) -> Array:
    """x: real numbers with a last axis of 1, or pairs (real, imaginary) with a last axis of 2."""
    if x.ndim < 2 or x.shape[-1] not in {1, 2}:
        raise InvalidShape(
            f"{site.operator}: x is {x.shape}: its last axis has 1 element for real numbers, 2 for complex ones"
        )
    chosen = (
        int(given_axis.item())
        if given_axis is not None
        else (1 if site.version < 20 else -2)
        if axis is None
        else axis
    )
    which = chosen % x.ndim
    if which == x.ndim - 1:
        raise InvalidArgument(f"{site.operator}: axis {chosen} has the parts of the numbers")
    is_half = bool(inverse and onesided)
    n = x.shape[which]
    count = int(length.item()) if length is not None else (2 * (n - 1) if is_half else n)
    if count < 1:
        raise InvalidArgument(f"{site.operator}: a transform has at least one element, and this one {count}")
    bounded((*x.shape[:which], count, *x.shape[which + 1 : -1], 2), x)
    wide = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    lines = np.moveaxis(x, which, -2).astype(wide, copy=False)
    real = lines[..., 0]
    imaginary = lines[..., 1] if x.shape[-1] == 2 else None
    if is_half:
        y = _from_half(real, imaginary, count)[..., None]
    else:
        sign = 1 if inverse else -1
        parts = transformed(
            _resized(real, count), None if imaginary is None else _resized(imaginary, count), sign
        )
        if onesided:
            parts = parts[0][..., : count // 2 + 1], parts[1][..., : count // 2 + 1]
        y = np.stack(parts, -1)
        if inverse:
            y = pointwise(lambda v: v / count, y)
    return np.moveaxis(y, -2, which).astype(x.dtype, copy=False)


def _resized(x: Array, count: int) -> Array:
    """The first `count` elements of each line, or zeros behind them all."""
    missing = count - x.shape[-1]
    return x[..., :count] if missing <= 0 else np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


def _from_half(real: Array, imaginary: Array | None, count: int) -> Array:
    """The real numbers whose spectrum has this first half: its other half is the conjugate."""
    imaginary = np.zeros_like(real) if imaginary is None else imaginary
    half = count // 2 + 1
    real, imaginary = _resized(real, half), _resized(imaginary, half)
    if count <= _SHORT:
        k, n = np.arange(half)[:, None], np.arange(count)
        twice = np.full((half, 1), 2.0)
        twice[0] = 1.0
        if count % 2 == 0:
            twice[-1] = 1.0
        angle = 2 * np.pi * (k * n % count) / count
        matrix = np.concatenate((twice * np.cos(angle), -twice * np.sin(angle))) / count
        return _product(np.concatenate((real, imaginary), -1), matrix.astype(real.dtype))
    inner = slice((count - 1) // 2, 0, -1)
    # the first number, and the middle one of an even count, are real ones
    imaginary = imaginary.copy()
    imaginary[..., 0] = 0
    if count % 2 == 0:
        imaginary[..., -1] = 0
    whole = (
        np.concatenate((real, real[..., inner]), -1),
        np.concatenate((imaginary, -imaginary[..., inner]), -1),
    )
    return pointwise(lambda v: v / count, transformed(*whole, 1)[0])


def transformed(real: Array, imaginary: Array | None, sign: int) -> Parts:
    """sum over n of x[..., n] exp(sign 2 pi i n k / N), N the extent of the last axis; not divided by N."""
    count = real.shape[-1]
    if count <= _SHORT:
        operand = real if imaginary is None else np.concatenate((real, imaginary), -1)
        both = _product(operand, _matrix(count, sign, imaginary is not None, real.dtype.name))
        return both[..., :count], both[..., count:]
    first = _factor(count)
    if first == 1:
        return _bluestein(real, imaginary, sign)
    second = count // first
    # n = second * a + b and k = c + first * d: transforms along a, turned by b and c, then along b
    shape = (*real.shape[:-1], first, second)
    turned = [None if part is None else part.reshape(shape).swapaxes(-1, -2) for part in (real, imaginary)]
    inner = transformed(turned[0], turned[1], sign)  # type: ignore[arg-type]
    roots = _roots(second, first, count, sign, real.dtype.name)
    u, v = _multiplied(inner, roots)
    parts = transformed(u.swapaxes(-1, -2), v.swapaxes(-1, -2), sign)
    return tuple(part.swapaxes(-1, -2).reshape(real.shape) for part in parts)  # type: ignore[return-value]


def _product(x: Array, matrix: Array) -> Array:
    """x (..., N) times the matrix, as one product of all lines."""
    lines = x.reshape(-1, x.shape[-1])
    y: Array = jd.matmul(lines, matrix)
    return y.reshape(*x.shape[:-1], matrix.shape[-1])


@functools.lru_cache(256)
def _factor(count: int) -> int:
    """The factor of a long count next to its root among those that one product transforms, 1 if it has a prime factor
    that is too long."""
    rest, prime, found = count, 2, {1}
    while rest > 1 and prime <= _SHORT:
        if rest % prime == 0:
            found |= {f * prime for f in found if f * prime <= _SHORT}
            rest //= prime
        else:
            prime += 1
    return min(found - {1}, key=lambda f: abs(math.log(f * f / count))) if rest == 1 else 1


@functools.lru_cache(64)
def _matrix(count: int, sign: int, is_complex: bool, dtype: str) -> Array:
    """Rows of [cos, sign sin] for the real parts, and of [-sign sin, cos] for the imaginary ones."""
    places = np.arange(count)
    angle = 2 * np.pi * (places[:, None] * places % count) / count
    cosine, sine = np.cos(angle), sign * np.sin(angle)
    rows = [np.concatenate((cosine, sine), 1)]
    if is_complex:
        rows.append(np.concatenate((-sine, cosine), 1))
    return np.concatenate(rows).astype(dtype)


@functools.lru_cache(64)
def _roots(rows: int, columns: int, count: int, sign: int, dtype: str) -> Parts:
    angle = 2 * np.pi * (np.arange(rows)[:, None] * np.arange(columns) % count) / count
    return np.cos(angle).astype(dtype), (sign * np.sin(angle)).astype(dtype)


def _multiplied(x: Parts, y: Parts) -> Parts:
    return (
        pointwise(lambda a, b, c, d: a * c - b * d, *x, *y),
        pointwise(lambda a, b, c, d: a * d + b * c, *x, *y),
    )


def _bluestein(real: Array, imaginary: Array | None, sign: int) -> Parts:
    """n k = (n^2 + k^2 - (k - n)^2) / 2 makes a convolution of the transform."""
    count = real.shape[-1]
    size = 1 << (2 * count - 2).bit_length()
    chirp, spectrum = _chirp(count, size, sign, real.dtype.name)
    imaginary = np.zeros_like(real) if imaginary is None else imaginary
    turned = _multiplied((real, imaginary), chirp)
    product = _multiplied(transformed(_resized(turned[0], size), _resized(turned[1], size), -1), spectrum)
    u, v = transformed(*product, 1)
    return _multiplied((u[..., :count], v[..., :count]), chirp)


@functools.lru_cache(16)
def _chirp(count: int, size: int, sign: int, dtype: str) -> tuple[Parts, Parts]:
    """exp(sign pi i n^2 / N), and the spectrum of its conjugate around 0, divided by the size."""
    places = np.arange(count, dtype=np.int64)
    turn = np.exp(sign * 1j * np.pi * (places * places % (2 * count)) / count)
    around = np.zeros(size, complex)
    around[:count] = turn.conj()
    around[size - count + 1 :] = turn[:0:-1].conj()
    spectrum = np.fft.fft(around) / size
    return (
        (turn.real.astype(dtype), turn.imag.astype(dtype)),
        (spectrum.real.astype(dtype), spectrum.imag.astype(dtype)),
    )


def stft(
    x: Array,
    step: Array,
    window: Array | None = None,
    length: Array | None = None,
    /,
    *,
    onesided: int = 1,
    site: Site,
) -> Array:
    """x (N, L, 1 or 2) as (N, frames, bins, 2). Frames are views of x, and the window is part of the matrix."""
    if x.ndim == 2:
        x = x[..., None]
    count = (
        int(length.item()) if length is not None else window.shape[0] if window is not None else x.shape[1]
    )
    hop = int(step.item())
    if hop < 1 or not 1 <= count <= x.shape[1]:
        raise InvalidArgument(
            f"{site.operator}: frames of {count} every {hop} elements do not lie in {x.shape[1]} elements"
        )
    if window is not None and window.shape != (count,):
        raise InvalidShape(
            f"{site.operator}: a window of shape {window.shape} does not fit frames of {count}"
        )
    if onesided and x.shape[-1] == 2:
        raise site.refuse("one side of the spectrum of complex numbers is not covered")
    wide = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    signal = np.ascontiguousarray(np.moveaxis(x, -1, 0)).astype(wide, copy=False)
    frames = np.lib.stride_tricks.sliding_window_view(signal, count, -1)[:, :, ::hop]
    bounded((len(x), frames.shape[2], count, 2), signal)
    bins = count // 2 + 1 if onesided else count
    weights = np.ones(count) if window is None else window.astype(np.float64)
    if count <= _SHORT or (x.shape[-1] == 1 and count * bins <= _SHORT * 2048):
        return _frames_by_matrix(frames, weights, bins).astype(x.dtype, copy=False)
    taken = pointwise(lambda v, w: v * w, frames, weights.astype(wide))
    parts = transformed(taken[0], taken[1] if len(taken) == 2 else None, -1)
    return np.stack([part[..., :bins] for part in parts], -1).astype(x.dtype, copy=False)


def _frames_by_matrix(frames: Array, weights: Array, bins: int) -> Array:
    count = len(weights)
    angle = 2 * np.pi * (np.arange(count)[:, None] * np.arange(bins) % count) / count
    cosine, sine = weights[:, None] * np.cos(angle), weights[:, None] * np.sin(angle)
    # bins with their parts beside each other
    matrix = np.stack((cosine, -sine), -1).reshape(count, 2 * bins).astype(frames.dtype)
    y = jd.matmul(frames[0], matrix)
    if len(frames) == 2:
        other = np.stack((sine, cosine), -1).reshape(count, 2 * bins).astype(frames.dtype)
        jd.matmul(frames[1], other, beta=1.0, out=y)
    return np.asarray(y).reshape(*frames.shape[1:3], bins, 2)


def mel_weight_matrix(
    bins: Array,
    length: Array,
    rate: Array,
    lower: Array,
    upper: Array,
    /,
    *,
    output_datatype: int = 1,
    site: Site,
) -> Array:
    """Triangles over the bins of a spectrum, evenly spaced on the mel scale: (length // 2 + 1, bins)."""
    count, size, hertz = int(bins.item()), int(length.item()), int(rate.item())
    if count < 1 or size < 1 or hertz < 1:
        raise InvalidArgument(
            f"{site.operator}: {count} bins of a spectrum of {size} at {hertz} Hz: each must be positive"
        )
    low, high = (2595 * math.log10(1 + float(edge.item()) / 700) for edge in (lower, upper))
    result = np.zeros(bounded((size // 2 + 1, count), np.empty(0)))
    mel = low + np.arange(count + 2) * ((high - low) / (count + 2))
    edges = np.floor((size + 1) * 700 * np.expm1(mel / 2595 * math.log(10)) / hertz).astype(np.int64)
    if edges.min() < 0 or edges.max() > len(result) - 1:
        raise InvalidArgument(
            f"{site.operator}: edges at bins {edges.min()} to {edges.max()} are outside of {len(result)}"
        )
    for column, (left, middle, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        if left == middle:
            result[middle, column] = 1
        else:
            result[left : middle + 1, column] = np.arange(middle - left + 1) / (middle - left)
        if right > middle:
            result[middle:right, column] = np.arange(right - middle, 0, -1) / (right - middle)
    return result.astype(element_type(output_datatype))


OPERATORS = table(DFT=dft, MelWeightMatrix=mel_weight_matrix, STFT=stft)
