"""What an array holds, for the host to look at."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.ops.to_device import empty
from jitdnn.ops.transform import transform
from jitdnn.tensor import Array


def fetched(array: Array) -> np.ndarray[Any, Any]:
    """The array itself where it is in host memory, else a copy there, once all that was to be written is written."""
    if array.device_id is None:
        return array.numpy()
    tensor, (target, index) = array.descriptor, array.device_id
    copy = empty(tensor.shape, tensor.dtype, f"{target}:{index}")
    transform(array, out=copy)
    return copy.numpy()
