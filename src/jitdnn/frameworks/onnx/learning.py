"""Operators of the domain ai.onnx.ml that models of features begin and end with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.text import is_text
from jitdnn.frameworks.onnx.views import checked_indices
from jitdnn.graph import primitives as jd


def label_encoder(
    x: Array,
    /,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Sequence[float] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: Array | None = None,
    values_floats: Sequence[float] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: Array | None = None,
    site: Site,
) -> Array:
    """The value whose key each element is; NaN finds NaN."""
    keys = _given(site, "keys", keys_tensor, keys_strings, keys_int64s, keys_floats)
    values = _given(site, "values", values_tensor, values_strings, values_int64s, values_floats)
    if len(keys) != len(values):
        raise InvalidArgument(f"{site.operator}: {len(keys)} keys have {len(values)} values")
    default: Any
    if values_tensor is not None:
        default, dtype = (
            default_tensor.reshape(-1)[0] if default_tensor is not None else None,
            values_tensor.dtype,
        )
        if default is None:
            default = "_Unused" if is_text(values_tensor) else dtype.type(-1 if dtype.kind == "i" else -0.0)
    elif values_strings is not None:
        default, dtype = default_string, np.dtype(object)
    elif values_int64s is not None:
        default, dtype = default_int64, np.dtype(np.int64)
    else:
        default, dtype = default_float, np.dtype(np.float32)
    if keys_floats is not None:
        keys = np.asarray(keys, np.float32)
    found = dict(zip(map(_key, keys.tolist() if isinstance(keys, np.ndarray) else keys), values, strict=True))
    result = np.empty(x.shape, object if is_text(np.empty(0, dtype)) else dtype)
    result.reshape(-1)[:] = [found.get(_key(value), default) for value in x.reshape(-1).tolist()]
    return result


def _given(site: Site, what: str, tensor: Array | None, *lists: Sequence[Any] | None) -> Any:
    if tensor is not None:
        return tensor.reshape(-1)
    for values in lists:
        if values is not None:
            return values
    raise site.refuse(f"no {what} are given")


def _key(value: Any) -> Any:
    """NaN is equal to nothing: one name for all."""
    return None if value != value else value


def array_feature_extractor(x: Array, indices: Array, /, *, site: Site) -> Array:
    places = checked_indices(indices.reshape(-1), x.shape[-1], site)
    found = np.take(x, places, -1)
    return found.reshape(1, -1) if x.ndim == 1 else found


def binarizer(x: Array, /, *, threshold: float = 0.0) -> Array:
    return pointwise(lambda v: jd.where(v > threshold, 1.0, 0.0), x)


def scaler(x: Array, /, *, offset: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> Array:
    """(x - offset) * scale, one of each for all features or for each of them."""
    shift, factor = np.asarray(offset, np.float32), np.asarray(scale, np.float32)
    return pointwise(lambda v, o, f: (v - o) * f, x, shift, factor, dtype=np.dtype(np.float32))


OPERATORS = table(
    ArrayFeatureExtractor=array_feature_extractor,
    Binarizer=binarizer,
    LabelEncoder=label_encoder,
    Scaler=scaler,
)
