"""Nets whose batch cannot be divided, and calls that are wrong, are refused before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitdnn.caffe import load_solver
from jitdnn.caffe.gradient_buckets import Buckets, cut
from jitdnn.errors import InvalidArgument, NotSupported

DATA = (
    'layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param { shape { dim: 8 dim: 4 } '
    "shape { dim: 8 } } }\n"
)
PRODUCT = 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 } }\n'
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }\n'


class Alone:
    """A group that pretends to be the first of several processes."""

    rank = 0

    def __init__(self, size: int = 2) -> None:
        self.size = size

    def gather(self, data: bytes) -> list[bytes]:
        return [data] * self.size

    def share(self, data: bytes) -> bytes:
        return data


def solver(net: str, size: int = 2, **options: Any) -> Any:
    text = f"base_lr: 0.1 lr_policy: 'fixed' snapshot_after_train: false net_param {{ {net} }}"
    return load_solver(text, seed=0, group=Alone(size), **options)  # type: ignore[arg-type]


def test_each_process_has_its_rows() -> None:
    made = solver(DATA + PRODUCT + LOSS, 4)
    assert made.net.blobs["data"].shape == (2, 4)
    assert made.net.layers[-1].norm == 8


SLICE = 'layer { name: "x" type: "Slice" bottom: "data" top: "a" top: "b" slice_param { axis: 0 } }'
FILTER = 'layer { name: "x" type: "Filter" bottom: "data" bottom: "label" top: "a" }'
COLUMNS = PRODUCT.replace('"ip"', '"x"').replace("num_output: 3", "num_output: 3 axis: -2")
WEIGHTS = (
    'layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: 3 } } }\n'
    'layer { name: "x" type: "Reduction" bottom: "p" top: "r" loss_weight: 1 }'
)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (SLICE, "axis of the images"),
        (FILTER, "as many images as it happens"),
        (COLUMNS, "axis of the images"),
        (WEIGHTS, "does not depend on the images"),
    ],
)
def test_layers_that_mix_images_are_refused_by_name_and_line(layer: str, reason: str) -> None:
    with pytest.raises(NotSupported, match=r"layer 'x' .*line \d+") as caught:
        solver(DATA + PRODUCT + LOSS + layer)
    assert reason in str(caught.value)
    assert caught.value.line is not None


def test_batches_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="8 rows, and 9 processes"):
        solver(DATA + PRODUCT + LOSS, 9)
    other = (
        DATA.replace('"data"', '"more"').replace('top: "label"', 'top: "other"').replace("dim: 8", "dim: 6")
    )
    silent = 'layer { name: "s" type: "Silence" bottom: "more" bottom: "other" }'
    with pytest.raises(InvalidArgument, match="both must be multiples of 4"):
        solver(DATA + PRODUCT + LOSS + other + silent, 4)


@pytest.mark.parametrize(("name", "value"), [("batch_norm", "mine"), ("wire", "f8")])
def test_options_that_do_not_exist_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is {value!r}: there are"):
        solver(DATA + PRODUCT + LOSS, **{name: value})


def test_gradients_lie_in_the_order_in_which_backward_finishes_them() -> None:
    made = solver(DATA + PRODUCT + LOSS)
    buckets = made._parallel.buckets
    assert list(buckets.places) == ["ip/1", "ip/0"]
    weight = made.net.parameters[0].blob
    weight.diff[...] = 5
    assert np.count_nonzero(buckets.memory == 5) == weight.size


def test_pieces_of_buckets_have_all_gradients_once() -> None:
    made = solver(DATA + PRODUCT.replace("num_output: 3", "num_output: 300") + LOSS)
    buckets = Buckets(made.net, Alone(2), bytes=1000, is_scattered=True)  # type: ignore[arg-type]
    ends = [0, *(bucket.stop for bucket in buckets.buckets)]
    assert [bucket.start for bucket in buckets.buckets] == ends[:-1]
    assert ends[-1] == buckets.size
    assert {bucket.stop - bucket.start for bucket in buckets.buckets} <= {128, 256}
    found = dict.fromkeys(buckets.places, 0)
    for bucket in buckets.buckets:
        for parameter in bucket.parameters:
            start = buckets.places[parameter.name]
            found[parameter.name] += min(bucket.stop, start + parameter.blob.size) - max(bucket.start, start)
    assert found == {"ip/0": 1200, "ip/1": 300}


def test_the_last_bucket_has_a_small_share() -> None:
    """Nothing is left to hide the exchange of the first layers' gradients."""
    wide = PRODUCT.replace('"data"', '"ip"').replace(' "ip" type', ' "wide" type').replace(": 3 ", ": 300 ")
    wide = wide.replace('top: "ip"', 'top: "wide"')
    made = solver(DATA + PRODUCT + wide + LOSS.replace('"ip"', '"wide"'))
    first, second = ["wide/1", "wide/0"], ["ip/1", "ip/0"]  # of 4800 bytes and of 60
    for size, expected in ((8000, [first, second]), (1 << 20, [first + second])):
        buckets, _, _ = cut(made.net, size)
        assert [[parameter.name for parameter in bucket.parameters] for bucket in buckets] == expected
