"""Where nets compute: what the names of devices mean, and what is said where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import load_net, load_solver
from jitdnn.caffe.synced import Synced
from jitdnn.devices import cuda
from jitdnn.errors import DeviceError, InvalidArgument

NET = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }'


def test_names() -> None:
    net = load_net(NET, device="cpu")
    assert net.device is None
    assert isinstance(net.blobs["x"].values, np.ndarray)
    for name in ("gpu", "cud", "cuda:x", ""):
        with pytest.raises(InvalidArgument, match="device is"):
            load_net(NET, device=name)


def test_a_gpu_that_is_not_there() -> None:
    number = cuda.device_count() + 7
    with pytest.raises(DeviceError):
        load_net(NET, device=f"cuda:{number}")
    with pytest.raises(DeviceError):
        load_solver(
            f'net_param {{ {NET} }} base_lr: 1 lr_policy: "fixed" snapshot_after_train: false',
            device=f"cuda:{number}",
        )


def test_scalars_and_blobs_of_many_axes_have_arrays_that_kernels_take() -> None:
    net = load_net(NET)
    blob = net.blobs["x"]
    blob.reshape(())
    assert blob.data.shape == ()
    assert blob.values.shape == blob.gradient.shape == (1,)
    blob.values[0] = 3
    assert blob.data == 3
    blob.reshape((1, 2) * 5)
    assert blob.values.shape == (32,)
    assert np.shares_memory(blob.values, blob.data)
    assert blob.read() is blob.data


class _Gpu:
    """Memory of a GPU, in the host's."""

    def staged_copy(self, size: int) -> None:
        raise AssertionError("nothing is streamed here")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.full(shape, np.nan, dtype)

    def upload(self, array: np.ndarray, values: np.ndarray) -> None:
        array[...] = values

    def download(self, array: np.ndarray, values: np.ndarray) -> None:
        values[...] = array


def test_what_the_caller_wrote_is_sent_whoever_reads_in_between() -> None:
    synced = Synced(_Gpu(), (2,), np.dtype("f4"))  # type: ignore[arg-type]
    synced.host()[:] = 1
    assert synced.device().tolist() == [1, 1]
    synced.host()[:] = 2
    synced.enter()  # a layer on the host that does not read it
    synced.leave()
    assert synced.device().tolist() == [2, 2]
    synced.enter()  # one that reads it, and nothing is sent again
    assert synced.host().tolist() == synced.host().tolist() == [2, 2]
    synced.leave()
    synced.where.upload = None  # type: ignore[method-assign,assignment]
    assert synced.device().tolist() == [2, 2]
