"""Empty tensors, and numbers from users that index memory: right shapes, or errors by type, and nothing wild."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitdnn as jd
from conformance import check
from jitdnn.problems import parse
from paths import HELPERS

AnyArray = np.ndarray[Any, Any]


def ones(*shape: int) -> AnyArray:
    return np.ones(shape, np.float32)


def places(*values: int, dtype: Any = np.int64) -> AnyArray:
    return np.array(values, dtype)


# ---- nothing to do

# the call, and the shapes of its results
EMPTY: dict[str, tuple[Callable[[], Any], list[tuple[int, ...]]]] = {
    "gelu": (lambda: jd.gelu(ones(0, 3)), [(0, 3)]),
    "swish_backward": (lambda: jd.swish_backward(ones(2, 0), ones(2, 0)), [(2, 0)]),
    "prelu_backward": (lambda: jd.prelu_backward(ones(0, 3), ones(0, 3), ones(3)), [(0, 3), (3,)]),
    "batch_norm_inference": (
        lambda: jd.batch_norm_inference(ones(0, 3, 2), ones(3), ones(3), ones(3), ones(3)),
        [(0, 3, 2)],
    ),
    "layer_norm": (lambda: jd.layer_norm(ones(0, 3), save=True), [(0, 3), (0, 1), (0, 1)]),
    "layer_norm_backward": (
        lambda: jd.layer_norm_backward(ones(0, 3), ones(0, 3), ones(3), ones(0, 1), ones(0, 1)),
        [(0, 3), (3,), (3,)],
    ),
    "rms_norm_backward": (
        lambda: jd.rms_norm_backward(ones(2, 0, 3), ones(2, 0, 3), ones(3), ones(2, 0, 1)),
        [(2, 0, 3), (3,)],
    ),
    "group_norm_backward": (
        lambda: jd.group_norm_backward(
            ones(0, 4, 2), ones(0, 4, 2), ones(4), ones(0, 2), ones(0, 2), groups=2
        ),
        [(0, 4, 2), (4,), (4,)],
    ),
    "lrn": (lambda: jd.lrn(ones(0, 5, 3)), [(0, 5, 3)]),
    "divisive_norm_backward": (
        lambda: jd.divisive_norm_backward(ones(0, 5, 3), ones(0, 5, 3), None, 3),
        [(0, 5, 3)],
    ),
    "reduce": (lambda: jd.reduce(ones(0, 3), "norm1", 0), [(3,)]),
    "dropout": (lambda: jd.dropout(ones(0, 3), 0.5, jd.DropoutState(1))[:1], [(0, 3)]),
    "uniform": (lambda: jd.uniform((0, 3), 0.0, 1.0, jd.DropoutState(1)), [(0, 3)]),
    "transform": (lambda: jd.transform(ones(0, 3), pad=1), [(2, 5)]),
    "concat": (lambda: jd.concat([ones(2, 0), ones(2, 0)]), [(2, 0)]),
    "slice": (lambda: jd.slice(ones(2, 3), [2], [1]), [(0, 3)]),
    "fold": (lambda: jd.fold(ones(0, 3, 4), 2), [(0, 6, 2)]),
    "max_pool": (lambda: jd.max_pool(ones(0, 3, 4), 2, return_indices=True), [(0, 3, 2), (0, 3, 2)]),
    "adaptive_avg_pool": (lambda: jd.adaptive_avg_pool(ones(0, 3, 4), 2), [(0, 3, 2)]),
    "max_unpool": (lambda: jd.max_unpool(ones(0, 3, 2), places().reshape(0, 3, 2), 4), [(0, 3, 4)]),
    "resize": (lambda: jd.resize(ones(0, 3, 4), 9), [(0, 3, 9)]),
    "affine_grid_backward": (lambda: jd.affine_grid_backward(ones(0, 4, 5, 2)), [(0, 2, 3)]),
    "grid_sample_backward": (
        lambda: jd.grid_sample_backward(ones(0, 3, 2, 2), ones(0, 3, 4, 4), ones(0, 2, 2, 2)),
        [(0, 3, 4, 4), (0, 2, 2, 2)],
    ),
    "embedding": (lambda: jd.embedding(places(), ones(4, 3)), [(0, 3)]),
    "embedding_backward": (lambda: jd.embedding_backward(ones(0, 3), places(), 4), [(4, 3)]),
    "cross_entropy": (lambda: jd.cross_entropy(ones(0, 3), places(), reduction="none"), [(0,)]),
    "cross_entropy_sum": (lambda: jd.cross_entropy(ones(0, 3), places(), reduction="sum"), [(1,)]),
    "ctc_loss": (lambda: jd.ctc_loss(ones(4, 0, 3), places().reshape(0, 2), [], []), [(1,)]),
    "attention": (lambda: jd.attention(ones(0, 2, 3, 4), ones(0, 2, 5, 4), ones(0, 2, 5, 6)), [(0, 2, 3, 6)]),
    "attention_keys": (
        lambda: jd.attention(ones(1, 2, 3, 4), ones(1, 2, 0, 4), ones(1, 2, 0, 6)),
        [(1, 2, 3, 6)],
    ),
    "attention_backward": (
        lambda: jd.attention_backward(
            ones(1, 1, 0, 4), ones(1, 1, 0, 4), ones(1, 1, 5, 4), ones(1, 1, 5, 4), ones(1, 1, 0, 4), ones(1, 1, 0)
        ),
        [(1, 1, 0, 4), (1, 1, 5, 4), (1, 1, 5, 4)],
    ),
    "conv_backward_filter": (
        lambda: jd.conv_backward_filter(ones(0, 2, 5), ones(0, 4, 3), (4, 2, 3)),
        [(4, 2, 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors(name: str) -> None:
    """Results have the right shapes; sums of nothing are 0, whatever the memory held."""
    run, shapes = EMPTY[name]
    results = run()
    results = results if isinstance(results, tuple) else (results,)
    assert [result.shape for result in results] == shapes
    for result in results:
        np.testing.assert_array_equal(result, 0)


# every algorithm, also those that the call layer has no use for where nothing is to be written
EMPTY_PROBLEMS = [
    "activation_fwd gelu shape0x3",
    "prelu_fwd shape0x3",
    "prelu_bwd shape0x3x2 bf16",
    "prelu_bwd single shape2x0x3",
    "op_tensor mul shape0x3 b=s0,1",
    "fill shape0x3",
    "concat shape0x5 axis1 parts2x3 f32",
    "transform shape0x3 pad1 f32",
    "fold shape0x2x4x4 by2x2 f32",
    "dropout p0.5 shape0x3 mask",
    "reduce add shape0x3 axis0",
    "reduce mul shape0x3 axis0 bf16",
    "reduce norm2 shape2x0x3 axis1",
    "reduce max shape0x3 axis1 indices_i64",
    "softmax_fwd accurate shape0x3 axis1",
    "softmax_bwd log shape0x3 axis1 bf16",
    "layer_norm_fwd shape0x5",
    "layer_norm_bwd shape0x5",
    "rms_norm_bwd shape0x5 bf16",
    "layer_norm_bwd shape3x0x5 axis2",
    "group_norm_fwd shape0x4x3 groups2",
    "group_norm_bwd shape0x4x3 groups2",
    "group_norm_bwd shape0x4x3x2 groups4 no_weight no_bias nhwc",
    "batch_norm_inference spatial shape0x4x3",
    "pool_fwd max n0 c3 h4 w4 window2 indices64",
    "pool_fwd avg n0 c3 h4 w4 adaptive2x2 nhwc",
    "pool_bwd max n0 c3 h4 w4 window2",
    "pool_bwd avg n0 c3 h4 w4 window2",
    "unpool_fwd shape0x3x2x2 to4x4 indices64",
    "unpool_bwd shape0x3x2x2 to4x4 indices32",
    "lrn_fwd across shape0x5x3 size5",
    "lrn_bwd within shape0x5x3 size3",
    "divisive_norm_fwd shape0x3x4 size3",
    "divisive_norm_bwd means shape0x3x4 size3",
    "resize_fwd linear half_pixel shape0x3x4 out9",
    "resize_bwd linear half_pixel shape0x3x4 out9",
    "affine_grid_fwd shape0x5x7",
    "affine_grid_bwd shape0x5x7",
    "grid_sample_fwd linear zeros shape0x3x5x7 out4x6",
    "grid_sample_bwd_data linear zeros shape0x3x5x7 out4x6",
    "grid_sample_bwd_grid linear zeros shape0x3x5x7 out4x6",
    "embedding_fwd rows10 columns7 shape0 indices64",
    "embedding_bwd rows10 columns7 shape0 indices64",
    "random uniform low0.0 high1.0 shape0x3",
    "cross_entropy_fwd sum shape0x3 classes64 save",
    "cross_entropy_bwd none shape0x3 classes64",
    "ctc_loss_fwd sum t4 n0 a3 s2",
    "ctc_loss_bwd none t4 n0 a3 s2",
    "attention_fwd n0 h2 t3 s4 d5 save",
    "attention_bwd n1 h2 t0 s4 d5",
    "attention_bwd n1 h2 t3 s0 d5",
    "conv_bwd_filter n0 c4 h5 w5 k6 r3 s3 bf16",
    "conv_bwd_bias n0 k4 p3 q3 bf16",
    "matmul m3 k0 n4 bf16",
]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("text", EMPTY_PROBLEMS)
def test_empty_problems(text: str) -> None:
    check(parse(text), threads=(2,))


# ---- numbers that index memory

TABLE, SCORES, LABELS = ones(5, 3), ones(3, 5), np.array([[1, 2, 3], [3, 3, 1]])
LOGITS, X, PACKED = np.log(np.full((7, 2, 5), 0.2, np.float32)), ones(5, 3, 4), ones(9, 4)
WEIGHTS = [ones(24, 4), ones(24, 6), ones(24), ones(24)]
QUERIES, KEYS = ones(2, 1, 5, 4), ones(2, 1, 7, 4)
POOLED = ones(2, 3, 4)
MOST = 2**62


def ctc(targets: Any = LABELS, times: Any = (7, 7), counts: Any = (3, 2), **options: Any) -> Any:
    return jd.ctc_loss(LOGITS, targets, times, counts, **options)


def attend(**options: Any) -> Any:
    return jd.attention(QUERIES, KEYS, KEYS, **options)


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: jd.embedding(places(0, 5), TABLE),
        jd.InvalidArgument,
        r"indices\[1\] is 5: the table has 5 rows",
    ),
    (lambda: jd.embedding(places(-1), TABLE), jd.InvalidArgument, r"indices\[0\] is -1"),
    (lambda: jd.embedding(places(-(2**31), dtype=np.int32), TABLE), jd.InvalidArgument, "-2147483648"),
    (lambda: jd.embedding(places(1, dtype=np.uint64), TABLE), jd.InvalidType, "indices is u64"),
    (lambda: jd.embedding(places(1), ones(4)), jd.InvalidShape, r"\(rows, columns\)"),
    (lambda: jd.embedding_backward(ones(2, 3), places(0, MOST), 5), jd.InvalidArgument, "5 rows"),
    (lambda: jd.embedding_backward(ones(3, 3), places(0, 1), 5), jd.InvalidShape, r"\(3, 3\)"),
    (lambda: jd.embedding_backward(ones(2, 3), places(0, 1), 5, 5), jd.InvalidArgument, "padding_idx is 5"),
    (lambda: jd.embedding_backward(ones(2, 3), places(0, 1), 5, 1.5), jd.InvalidArgument, "padding_idx"),
    (lambda: jd.max_unpool(POOLED, np.zeros((2, 3, 5), np.int64), 8), jd.InvalidShape, r"\(2, 3, 5\)"),
    (lambda: jd.max_unpool(POOLED, np.zeros((2, 3, 4), np.int16), 8), jd.InvalidType, "indices is i16"),
    (lambda: jd.max_unpool(POOLED, np.zeros((2, 3, 4), np.int64), -8), jd.InvalidArgument, "space is -8"),
    (lambda: jd.max_unpool(POOLED[0], np.zeros((3, 4), np.int64), 4), jd.InvalidShape, "3 to 5 dims"),
    (lambda: jd.cross_entropy(SCORES, places(0, 1, 5)), jd.InvalidArgument, "class 5"),
    (lambda: jd.cross_entropy(SCORES, places(0, -1, 2)), jd.InvalidArgument, "class -1"),
    (lambda: jd.cross_entropy(SCORES, places(0, 1, 255, dtype=np.uint8)), jd.InvalidArgument, "class 255"),
    (lambda: jd.cross_entropy(SCORES, places(0, 1)), jd.InvalidShape, "target"),
    (lambda: jd.cross_entropy(SCORES, places(0, 1, 2, dtype=np.int16)), jd.InvalidType, "i16"),
    (
        lambda: jd.cross_entropy(SCORES, places(0, 1, 2), ignore_index=2**70),
        jd.InvalidArgument,
        "ignore_index is",
    ),
    (
        lambda: jd.cross_entropy(SCORES, places(0, 1, 2), ignore_index=0.5),
        jd.InvalidArgument,
        "only integers",
    ),
    (lambda: jd.cross_entropy(SCORES, places(0, 1, 2), label_smoothing="much"), jd.InvalidArgument, "'much'"),
    (lambda: ctc(np.array([[1, 2, 5], [3, 3, 1]])), jd.InvalidArgument, "label 5"),
    (lambda: ctc(np.array([[1, 0, 3], [3, 3, 1]])), jd.InvalidArgument, "label 0"),
    (lambda: ctc(times=(7, 8)), jd.InvalidArgument, "input_lengths has 8"),
    (lambda: ctc(times=(7, -1)), jd.InvalidArgument, "input_lengths has -1"),
    (lambda: ctc(counts=(3, 4)), jd.InvalidArgument, "target_lengths has 4"),
    (lambda: ctc(counts=(3,)), jd.InvalidShape, "target_lengths"),
    (lambda: ctc(places(1, 2, 3, 3)), jd.InvalidArgument, "add up to 5"),
    # whose sum is -2 in 64 bits
    (lambda: ctc(places(1, 2, 3), counts=(2**63 - 1, 2**63 - 1)), jd.InvalidArgument, "lengths are 0 to 3"),
    (lambda: ctc(times=(7.5, 7)), jd.InvalidType, "input_lengths is"),
    (lambda: ctc(times=(2**70, 7)), jd.InvalidType, "64 bits"),
    (lambda: ctc([[1, 2], [3]]), jd.InvalidType, "targets is"),
    (lambda: ctc(blank=9), jd.InvalidArgument, "blank is 9"),
    (lambda: ctc(blank=0.5), jd.InvalidArgument, "blank"),
    (lambda: jd.lrn(POOLED, layout=3), jd.InvalidArgument, "layout is 3"),
    (lambda: jd.concat([POOLED, POOLED], axis=0.5), jd.InvalidArgument, "axis is 0.5"),
    (lambda: attend(lengths=places(1, 2, 3)), jd.InvalidShape, "lengths"),
    (lambda: attend(lengths=places(1, 2, dtype=np.int16)), jd.InvalidType, "lengths is i16"),
    (lambda: attend(lo=places(1, 2)), jd.InvalidShape, "lo"),
    (lambda: attend(window=(-1, 0)), jd.InvalidArgument, "left is -1"),
    (lambda: attend(window=(0.5, 0)), jd.InvalidArgument, "only integers"),
    (lambda: attend(window=3), jd.InvalidArgument, "window is 3"),
    (lambda: attend(window=(None, 2**70)), jd.InvalidArgument, "at most"),
    (lambda: attend(past=MOST, causal=True), jd.InvalidArgument, "at most"),
    (lambda: attend(past="all"), jd.InvalidArgument, "only integers"),
    (lambda: attend(mask=np.ones((5, 8), bool)), jd.InvalidShape, "mask"),
    (lambda: attend(scale="x"), jd.InvalidArgument, "scale is 'x'"),
    (lambda: jd.lstm(X, WEIGHTS, lengths=[6, 1, 3]), jd.InvalidArgument, "0 to 5"),
    (lambda: jd.lstm(X, WEIGHTS, lengths=[-1, 1, 3]), jd.InvalidArgument, "0 to 5"),
    (lambda: jd.lstm(X, WEIGHTS, lengths=[5.5, 1, 3]), jd.InvalidType, "lengths is"),
    (lambda: jd.lstm(X, WEIGHTS, lengths=[5, 1]), jd.InvalidShape, "lengths"),
    (lambda: jd.lstm(PACKED, WEIGHTS, batch_sizes=[3, 3, 2]), jd.InvalidArgument, "add up to 8 for 9 rows"),
    (lambda: jd.lstm(PACKED, WEIGHTS, batch_sizes=[2, 3, 4]), jd.InvalidArgument, "never grow"),
    (lambda: jd.lstm(PACKED, WEIGHTS, batch_sizes=[10, -1]), jd.InvalidArgument, "at least 1"),
    # whose sum is 9 in 64 bits
    (lambda: jd.lstm(PACKED, WEIGHTS, batch_sizes=[MOST] * 4 + [9]), jd.InvalidArgument, "9 rows"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_numbers_that_are_no_places_are_refused(number: int) -> None:
    run, error, message = REFUSED[number]
    with pytest.raises(error, match=message):
        run()


# ---- numbers that may be anything, and must lead nowhere

WILD = """
import numpy as np
import jitdnn as jd
from guarded_run import place
from jitdnn.tensor import TensorDescriptor, view

rooms = []


def put(values, at_end):
    values = np.asarray(values)
    names = {"float32": "f32", "int64": "i64", "int32": "i32"}
    descriptor = TensorDescriptor.packed(values.shape, names[values.dtype.name])
    room, pointer = place(descriptor, at_end)
    rooms.append(room)
    found = view(pointer, descriptor)
    found[...] = values
    return found


rng = np.random.default_rng(0)
for at_end in (True, False):
    for dtype in (np.int64, np.int32):
        info = np.iinfo(dtype)
        for wild in (info.min, info.max, info.min // 2, info.max // 2, -1, -9, 9, 2**31 - 1, -(2**31), 64):
            wild = dtype(wild)
            # indices outside of the image are left out
            for layout, shape, image in (("NCHW", (2, 3, 2, 4), (2, 3, 4, 8)), ("NHWC", (2, 2, 4, 19), (2, 4, 8, 19))):
                x = put(rng.standard_normal(shape).astype("f"), at_end)
                indices = put(np.full(shape, wild, dtype), at_end)
                out = put(np.full(image, np.nan, "f"), at_end)
                y = jd.max_unpool(x, indices, (4, 8), layout=layout, out=out)
                back = jd.max_unpool_backward(put(y + 1, at_end), indices, layout=layout)
                inside = 0 <= int(wild) < 32
                assert (back == 0).all() != inside and (y == 0).all() != inside
            # lengths and bounds are clipped to the keys that there are
            q = put(rng.standard_normal((2, 1, 5, 4)).astype("f"), at_end)
            k = put(rng.standard_normal((2, 1, 7, 4)).astype("f"), at_end)
            for name, count in (("lengths", 2), ("lo", 5), ("hi", 5)):
                numbers = put(np.full(count, wild, dtype), at_end)
                y, lse = jd.attention(q, k, k, return_lse=True, **{name: numbers})
                clipped = np.clip(numbers, 0, 7)
                expected = jd.attention(q, k, k, **{name: clipped})
                np.testing.assert_array_equal(y, expected)
                y, lse = put(y, at_end), put(lse, at_end)
                grads = jd.attention_backward(q, q, k, k, y, lse, **{name: numbers})
                assert all(np.isfinite(grad).all() for grad in grads)
print("done")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
def test_wild_numbers_lead_nowhere() -> None:
    """With every tensor at the edge of a page that must not be touched."""
    run = subprocess.run(
        [sys.executable, "-c", WILD],
        cwd=HELPERS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode != -signal.SIGSEGV, "touched what is not its own"
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr[-2000:]


IMAGE = ones(2, 4, 6, 6)
NONSENSE: dict[str, Callable[[], Any]] = {
    "prelu axis": lambda: jd.prelu(IMAGE, ones(4), "a"),
    "split axis": lambda: jd.split(IMAGE, 2, "c"),
    "split sections": lambda: jd.split(IMAGE, 1.5),
    "reduce axes": lambda: jd.reduce(IMAGE, axes=1.5),
    "reduce indices": lambda: jd.reduce(IMAGE, "max", indices=-1),
    "slice ranges": lambda: jd.slice(IMAGE, 1, 2),
    "transform value": lambda: jd.transform(IMAGE, value="a"),
    "fold factors": lambda: jd.fold(IMAGE, 1.5),
    "resize size": lambda: jd.resize(IMAGE, size=1.5),
    "resize huge": lambda: jd.resize(IMAGE, size=2**70),
    "lrn huge": lambda: jd.lrn(IMAGE, size=2**70),
    "divisive huge": lambda: jd.divisive_norm(IMAGE, size=2**70),
    "adaptive huge": lambda: jd.adaptive_avg_pool(IMAGE, 2**70),
    "uniform huge": lambda: jd.uniform(2**70, 0.0, 1.0, jd.DropoutState(1)),
    "pad huge": lambda: jd.transform(IMAGE, pad=2**70),
    "unpool huge": lambda: jd.max_unpool(IMAGE, IMAGE.astype(np.int64), 2**70),
    "grid huge": lambda: jd.affine_grid(ones(1, 2, 3), (1, 1, 2**70, 3)),
    "conv huge": lambda: jd.conv(IMAGE, ones(3, 4, 3, 3), padding=2**70),
    "weights": lambda: jd.lstm(IMAGE, [1, 2]),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_arguments_of_a_nonsensical_type_or_size(name: str) -> None:
    with pytest.raises(jd.JitdnnError):
        NONSENSE[name]()


@pytest.mark.parametrize("function", [jd.rms_norm, jd.relu, jd.elementwise("x: x + 1")])
def test_the_same_view_may_have_other_strides_of_unit_axes(function: Any) -> None:
    """NumPy and others fill the stride of an axis of one element as they like."""
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 4, 3)
    same = np.lib.stride_tricks.as_strided(x, x.shape, (48, 4, 12, 4))
    expected = function(x)
    function(x, out=same)
    np.testing.assert_array_equal(x, expected)
