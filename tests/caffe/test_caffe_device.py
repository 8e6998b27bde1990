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

    def empty(self, shape: tuple[int, ...], dtype: Any, is_channels_last: bool = False) -> np.ndarray:
        n, c, h, w = shape if is_channels_last else (0, 0, 0, 0)
        return np.full((n, h, w, c) if is_channels_last else shape, np.nan, dtype)

    def upload(self, array: np.ndarray, values: np.ndarray) -> None:
        array[...] = values

    def download(self, array: np.ndarray, values: np.ndarray) -> None:
        values[...] = array


def test_channels_last_on_the_gpu_are_packed_on_the_host() -> None:
    values = np.arange(2 * 3 * 4 * 5, dtype="f4").reshape(2, 3, 4, 5)
    synced = Synced(_Gpu(), values.shape, np.dtype("f4"))  # type: ignore[arg-type]
    synced.host()[...] = values
    synced.lay_channels_last()  # what is there already is kept
    np.testing.assert_array_equal(synced.device(), values.transpose(0, 2, 3, 1))
    synced.device()[0, 1, 2, 0] = -7
    values[0, 0, 1, 2] = -7
    np.testing.assert_array_equal(synced.read(), values)
    assert synced.host().flags.c_contiguous
    vector = Synced(_Gpu(), (6,), np.dtype("f4"), is_channels_last=True)  # type: ignore[arg-type]
    vector.host()[...] = range(6)
    assert vector.device().tolist() == list(range(6))


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
