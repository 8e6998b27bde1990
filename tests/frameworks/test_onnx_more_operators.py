"""Operators of ONNX that onnxruntime has too, beyond the node tests: forms, sizes and faults that these do not have."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, JitdnnError, NotSupported

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import helper  # noqa: E402

from jitdnn.frameworks import onnx as backend  # noqa: E402
from onnx_models import by_onnxruntime, feeds, one_node  # noqa: E402

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def run(
    operator: str, inputs: list[Any], version: int = 21, domain: str = "", outputs: int = 1, **attributes: Any
) -> Any:
    """The outputs of one node, which has an input for each that is not None."""
    names = ["" if value is None else f"in{place}" for place, value in enumerate(inputs)]
    node = helper.make_node(operator, names, [f"out{n}" for n in range(outputs)], domain=domain, **attributes)
    results = backend.run_node(node, [value for value in inputs if value is not None], opset_version=version)
    return results[0] if outputs == 1 else results


def agrees(
    operator: str, inputs: list[Any], version: int = 21, domain: str = "", outputs: int = 1, tolerance: float = 1e-5,
    **attributes: Any,
) -> None:  # fmt: skip
    """Ours is what onnxruntime gives."""
    model = one_node(operator, inputs, outputs, version, domain, **attributes)
    expected = by_onnxruntime(model, feeds(inputs))
    actual = run(operator, inputs, version, domain, outputs, **attributes)
    for one, other in zip(actual if outputs > 1 else [actual], expected, strict=True):
        assert one.shape == other.shape
        if other.dtype == object:
            assert one.tolist() == other.tolist()
            continue
        assert one.dtype == other.dtype
        largest = max(1.0, float(np.abs(other).max())) if other.size else 1.0
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * largest)


# ---- spectra


@pytest.mark.parametrize("count", [1, 7, 300, 512, 1009, 1000])
@pytest.mark.parametrize("parts", [1, 2])
def test_transforms_of_any_length(count: int, parts: int) -> None:
    """One product, products of factors, and a prime; against NumPy in float64."""
    x = normal(2, count, parts)
    exact = np.fft.fft(x[..., 0] + (1j * x[..., 1] if parts == 2 else 0), axis=1)
    largest = np.abs(exact).max()
    y = run("DFT", [x, None, np.array(1)])
    assert np.abs(y[..., 0] + 1j * y[..., 1] - exact).max() < 2e-6 * largest
    back = run("DFT", [y, None, np.array(1)], inverse=1)
    assert np.abs(back[..., :parts] - x).max() < 1e-5
    if parts == 1 and count > 1:
        half = run("DFT", [x, None, np.array(1)], onesided=1)
        np.testing.assert_array_equal(half, y[:, : count // 2 + 1])
        again = run("DFT", [half, np.array(count), np.array(1)], inverse=1, onesided=1)
        assert np.abs(again - x).max() < 1e-5


def test_transforms_of_other_lengths_than_the_axis() -> None:
    x = normal(2, 20, 3, 2)
    values = x[..., 0] + 1j * x[..., 1]
    for count in (7, 33):
        y = run("DFT", [x, np.array(count), np.array(-3)])
        exact = np.fft.fft(values, count, axis=1)
        np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], exact, atol=1e-5)
    with pytest.raises(InvalidArgument, match="has the parts of the numbers"):
        run("DFT", [x, None, np.array(-1)])
    with pytest.raises(InvalidShape, match="its last axis has 1 element"):
        run("DFT", [normal(2, 3)])
    with pytest.raises(InvalidShape, match="load_limit"):
        run("DFT", [x, np.array(1 << 40), np.array(1)])


@pytest.mark.parametrize(("length", "hop"), [(16, 5), (400, 160), (800, 160)])
@pytest.mark.parametrize("side", [0, 1])
def test_frames_are_transformed(length: int, hop: int, side: int) -> None:
    """Against NumPy in float64; onnxruntime is 3e-5 off at 400, ours 8e-7."""
    window = np.hanning(length).astype(np.float32)
    inputs = [normal(2, 1000, 1), np.array(hop), window, np.array(length)]
    frames = np.lib.stride_tricks.sliding_window_view(inputs[0][..., 0], length, 1)[:, ::hop]
    exact = np.fft.fft(frames.astype(np.float64) * window)[..., : length // 2 + 1 if side else length]
    y = run("STFT", inputs, 17, onesided=side)
    assert y.shape == (*exact.shape, 2)
    assert np.abs(y[..., 0] + 1j * y[..., 1] - exact).max() < 2e-6 * np.abs(exact).max()
    with pytest.raises(InvalidArgument, match="do not lie in 1000 elements"):
        run("STFT", [inputs[0], np.array(hop), None, np.array(1001)], 17)


def test_mel_matrix() -> None:
    numbers = [
        np.array(value, dtype) for value, dtype in ((40, np.int64), (512, np.int64), (16000, np.int64))
    ]
    agrees("MelWeightMatrix", [*numbers, np.array(20, np.float32), np.array(7600, np.float32)], 17)
    with pytest.raises(InvalidArgument, match="outside of"):
        run("MelWeightMatrix", [*numbers, np.array(20, np.float32), np.array(1e6, np.float32)], 17)


# ---- einsum


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 5, 4), (2, 3, 6, 4)]),
        ("bqhd,bkhd->bhqk", [(2, 5, 3, 4), (2, 6, 3, 4)]),
        ("ij,kl->ikjl", [(2, 3), (4, 5)]),
        ("ii->i", [(4, 4)]),
        ("iij->j", [(4, 4, 3)]),
        ("ijk->ki", [(2, 3, 4)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
        ("ij,j,i->", [(3, 4), (4,), (3,)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("b...,b...->...", [(2, 3, 4), (2, 3, 4)]),
        ("abc,cd,def->abef", [(2, 3, 4), (4, 5), (5, 6, 2)]),
        ("ba,b", [(2, 3), (2,)]),
        (" i j , j k -> i k ", [(3, 0), (0, 5)]),
        ("aab,bb->a", [(3, 3, 2), (2, 2)]),
    ],
)
def test_einsum_is_numpys(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [normal(*shape) for shape in shapes]
    exact = np.einsum(equation, *(array.astype(np.float64) for array in arrays))
    y = run("Einsum", arrays, equation=equation)
    assert y.shape == exact.shape
    np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5)
    integers = [RNG.integers(-9, 9, shape) for shape in shapes]
    np.testing.assert_array_equal(run("Einsum", integers, equation=equation), np.einsum(equation, *integers))


def test_equations_that_mean_nothing() -> None:
    x, y = normal(2, 3), normal(4, 5)
    for equation in ("ij", "ij,kl->im", "ijk,kl->l", "ij,kl->ii", "i1,kl->i", "i.j,kl->i"):
        with pytest.raises(JitdnnError):
            run("Einsum", [x, y], equation=equation)
    with pytest.raises(InvalidShape, match="'j' of 'ij,jk->ik' is 3 and 4"):
        run("Einsum", [x, y], equation="ij,jk->ik")


# ---- boxes and places


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=8)
def test_suppression_is_that_of_onnxruntime(seed: int, is_centred: bool) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.uniform(0, 1, (2, 30, 4)).astype(np.float32)
    scores = rng.integers(0, 12, (2, 3, 30)).astype(np.float32) / 12  # with many equal ones
    inputs = [
        boxes, scores, np.array([7]), np.array([0.3], np.float32), np.array([0.2], np.float32)
    ]  # fmt: skip
    agrees("NonMaxSuppression", inputs, 11, center_point_box=int(is_centred))
    agrees("NonMaxSuppression", inputs[:3], 11, center_point_box=int(is_centred))


def test_suppression_keeps_nothing_unless_asked() -> None:
    assert run("NonMaxSuppression", [normal(1, 4, 4), normal(1, 2, 4)]).shape == (0, 3)
    with pytest.raises(InvalidShape, match="must be"):
        run("NonMaxSuppression", [normal(1, 4, 4), normal(1, 2, 5), np.array([1])])


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_regions_are_those_of_onnxruntime(mode: str, ratio: int) -> None:
    x = normal(2, 3, 9, 11)
    rois = np.array([[0, 0, 10, 8], [2.5, 3, 4, 7], [-3, -2, 20, 15], [5, 5, 5, 5]], np.float32)
    inputs = [x, rois, np.array([0, 1, 1, 0])]
    attributes = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 2}
    for version in (10, 16):
        agrees("RoiAlign", inputs, version, spatial_scale=0.9, **attributes)
    with pytest.raises(InvalidArgument, match="samples a side"):
        run("RoiAlign", [x, rois * np.float32(1e6), inputs[2]], **attributes | {"sampling_ratio": 0})
    with pytest.raises(InvalidArgument, match="outside of an extent"):
        run("RoiAlign", [x, rois, np.array([0, 2, 1, 0])], **attributes)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_cubic_sampling_is_that_of_onnxruntime(padding: str, aligned: int) -> None:
    grid = RNG.uniform(-1.6, 1.6, (2, 6, 7, 2)).astype(np.float32)
    agrees(
        "GridSample", [normal(2, 3, 5, 8), grid], 20, mode="cubic", padding_mode=padding, align_corners=aligned,
        tolerance=2e-5,
    )  # fmt: skip


@pytest.mark.parametrize(("groups", "offsets"), [(1, 1), (2, 2)])
def test_deformable_convolution_is_the_plain_one_where_nothing_moves(groups: int, offsets: int) -> None:
    x, w, bias = normal(2, 4, 7, 9), normal(6, 4 // groups, 3, 2), normal(6)
    attributes: dict[str, Any] = {
        "pads": [1, 0, 1, 1],
        "strides": [2, 1],
        "dilations": [1, 2],
        "group": groups,
    }
    expected = run("Conv", [x, w, bias], **attributes)
    shape = (2, offsets * 12, *expected.shape[2:])
    y = run("DeformConv", [x, w, np.zeros(shape, np.float32), bias], offset_group=offsets, **attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    half = np.full((2, offsets * 6, *expected.shape[2:]), 0.5, np.float32)
    masked = run(
        "DeformConv", [x, w, np.zeros(shape, np.float32), None, half], offset_group=offsets, **attributes
    )
    np.testing.assert_allclose(masked, (expected - bias[:, None, None]) / 2, rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidShape, match="offset must be"):
        run("DeformConv", [x, w, np.zeros((2, 5, 4, 4), np.float32)], **attributes)


def test_deformable_convolution_is_that_of_the_reference() -> None:
    from onnx.reference import ReferenceEvaluator

    inputs = [normal(1, 4, 6, 5), normal(2, 4, 3, 3), 2 * normal(1, 36, 6, 5), normal(2), normal(1, 18, 6, 5)]
    attributes = {"pads": [1, 1, 1, 1], "offset_group": 2}
    model = one_node("DeformConv", inputs, 1, 19, **attributes)
    model.graph.output[0].type.tensor_type.elem_type = 1
    (expected,) = ReferenceEvaluator(model).run(None, feeds(inputs))
    np.testing.assert_allclose(run("DeformConv", inputs, **attributes), expected, rtol=1e-4, atol=1e-4)


# ---- text


def texts(*values: Any) -> Array:
    return np.array(values, object)


def test_text_is_joined_split_and_compared() -> None:
    x = texts("a b", "c  d e", "", "ü-ö")
    agrees("StringConcat", [x[:, None], x[None]], 20)
    agrees("StringSplit", [x], 20, outputs=2, maxsplit=1)
    agrees("StringSplit", [x[[0, 1, 3]]], 20, outputs=2, delimiter="-")
    agrees("Equal", [x, texts("a b", "x", "", "ü-ö")], 19)
    np.testing.assert_array_equal(run("Concat", [x, x], axis=0), [*x, *x])
    assert run("Where", [np.array([True, False]), x[:2], x[2:]]).tolist() == ["a b", "ü-ö"]
    with pytest.raises(NotSupported, match="text is needed"):
        run("StringConcat", [x, np.zeros(4)])


def test_text_is_read_as_numbers_and_written() -> None:
    x = texts("1", "-2.5", "1e-5", "NaN", "+INF")
    np.testing.assert_array_equal(
        run("Cast", [x], to=1), np.array([1, -2.5, 1e-5, np.nan, np.inf], np.float32)
    )
    np.testing.assert_array_equal(run("Cast", [texts("7", "9007199254740993")], to=7), [7, 9007199254740993])
    assert run("Cast", [np.array([1, -2])], to=8).tolist() == ["1", "-2"]
    assert [float(text) for text in run("Cast", [np.array([0.1, 2.0], np.float32)], to=8)] == [0.1, 2.0]
    with pytest.raises(InvalidArgument, match="'seven' is no number of type float32"):
        run("Cast", [texts("seven")], to=1)


@pytest.mark.parametrize("action", ["LOWER", "UPPER", "NONE"])
@pytest.mark.parametrize("sensitive", [0, 1])
def test_text_is_normalized_as_by_onnxruntime(action: str, sensitive: int) -> None:
    x = texts("Monday", "monday", "Tuesday", "friday")
    attributes = {
        "case_change_action": action,
        "is_case_sensitive": sensitive,
        "stopwords": ["monday"],
        "locale": "C",
    }
    agrees("StringNormalizer", [x], 10, **attributes)
    agrees("StringNormalizer", [x[None]], 10, **attributes)
    assert run("StringNormalizer", [texts("a")], stopwords=["a"]).tolist() == [""]


def test_patterns_take_no_time_that_grows_with_their_ways() -> None:
    """Python's own engine would take longer than the sun has."""
    pytest.importorskip("re2")
    text = "a" * 5000 + "!"
    begin = time.perf_counter()
    (found,) = run("RegexFullMatch", [texts(text)], 20, pattern="(a*)*(a|aa)+b")
    assert not found
    assert time.perf_counter() - begin < 30
    agrees("RegexFullMatch", [texts("abc", "x1", "é")], 20, pattern=r"[a-z]+\d?|\pL")
    with pytest.raises(InvalidArgument, match="no pattern of RE2"):
        run("RegexFullMatch", [texts("a")], pattern=r"(a)\1")
    with pytest.raises(InvalidArgument, match="no pattern of RE2"):
        run("RegexFullMatch", [texts("a")], pattern="((a{1000}){1000}){1000}")


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 1, 5])
def test_ngrams_are_counted_as_by_onnxruntime(mode: str, skips: int) -> None:
    x = RNG.integers(1, 6, (3, 12))
    attributes = {
        "mode": mode, "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": skips,
        "ngram_counts": [0, 3, 9], "ngram_indexes": [0, 5, 1, 2, 3, 4, 6],
        "pool_int64s": [1, 2, 3, 1, 2, 2, 3, 3, 3, 1, 2, 3],
    }  # fmt: skip
    attributes["weights"] = [0.5, 2.0, 1.0, 3.0, 0.25, 1.5, 4.0]
    agrees("TfIdfVectorizer", [x], 9, **attributes)
    agrees("TfIdfVectorizer", [x[0]], 9, **attributes)
    with pytest.raises(InvalidArgument, match="too few"):
        run("TfIdfVectorizer", [x], **attributes | {"ngram_indexes": [0, 1]})


# ---- features, trees, random numbers, caches


def test_features_are_those_of_onnxruntime() -> None:
    x = normal(3, 4)
    agrees("Binarizer", [x], domain="ai.onnx.ml", threshold=0.1)
    agrees("Scaler", [x], domain="ai.onnx.ml", offset=[0.5, 1.0, 2.0, 3.0], scale=[2.0, 1.0, 0.5, -1.0])
    agrees("ArrayFeatureExtractor", [x, np.array([2, 0])], domain="ai.onnx.ml")
    names = {"keys_strings": ["a", "b"], "values_int64s": [3, 4], "default_int64": -7}
    agrees("LabelEncoder", [texts("b", "c", "a")], domain="ai.onnx.ml", **names)
    reals = {"keys_floats": [1.5, float("nan")], "values_strings": ["x", "y"]}
    agrees("LabelEncoder", [np.array([np.nan, 1.5, 2], np.float32)], domain="ai.onnx.ml", **reals)
    with pytest.raises(InvalidArgument, match="2 keys have 1 values"):
        run("LabelEncoder", [texts("a")], domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[1])


def test_trees_end() -> None:
    """A node that is below itself would be asked for ever."""
    attributes = {
        "n_targets": 1, "nodes_featureids": [0], "nodes_truenodeids": [0], "nodes_trueleafs": [0],
        "nodes_falsenodeids": [0], "nodes_falseleafs": [1], "leaf_targetids": [0], "tree_roots": [0],
    }  # fmt: skip
    tensors = {"nodes_splits": [1.0], "leaf_weights": [2.0]}
    for name, values in tensors.items():
        attributes[name] = onnx.numpy_helper.from_array(np.array(values, np.float32), name)
    attributes["nodes_modes"] = onnx.numpy_helper.from_array(np.array([0], np.uint8), "nodes_modes")
    above, below = np.full((1, 1), 2, np.float32), np.zeros((1, 1), np.float32)
    assert run("TreeEnsemble", [above], domain="ai.onnx.ml", **attributes) == 2
    with pytest.raises(InvalidArgument, match="come back to themselves"):
        run("TreeEnsemble", [below], domain="ai.onnx.ml", **attributes)
    with pytest.raises(InvalidArgument, match="are not all among 1 features"):
        run("TreeEnsemble", [above], domain="ai.onnx.ml", **attributes | {"nodes_featureids": [3]})


def test_random_numbers_follow_their_seed() -> None:
    for operator, attributes in (("RandomUniform", {}), ("RandomNormal", {"mean": 0.5})):
        one, same, other = (
            run(operator, [], shape=[300, 100], seed=seed, **attributes) for seed in (1.5, 1.5, 2.0)
        )
        np.testing.assert_array_equal(one, same)
        assert (one != other).mean() > 0.99
        assert abs(one.mean() - 0.5) < 0.02
    like = run("RandomUniformLike", [np.zeros((4, 5))], low=2.0, high=3.0)
    assert like.shape == (4, 5)
    assert like.dtype == np.float64
    assert ((like >= 2) & (like <= 3)).all()
    drawn = run("Bernoulli", [np.full((200, 100), 0.3, np.float32)], dtype=7)
    assert drawn.dtype == np.int64
    assert set(np.unique(drawn)) == {0, 1}
    assert abs(drawn.mean() - 0.3) < 0.02
    odds = np.log(np.array([[0.2, 0.8]], np.float32))
    assert abs(run("Multinomial", [odds], sample_size=20000).mean() - 0.8) < 0.02
    with pytest.raises(NotSupported, match="of type int64 are not covered"):
        run("RandomUniformLike", [np.zeros(3, np.int64)])
    with pytest.raises(InvalidShape, match="load_limit"):
        run("RandomUniform", [], shape=[1 << 40])


def test_caches_are_written_within_their_bounds() -> None:
    past, update = np.zeros((2, 3, 5, 2), np.float32), np.ones((2, 3, 2, 2), np.float32)
    y = run("TensorScatter", [past, update, np.array([4, 1])], 24, mode="circular")
    assert (y[0, :, [4, 0]] == 1).all()
    assert (y[1, :, [1, 2]] == 1).all()
    assert y.sum() == update.sum()
    with pytest.raises(InvalidArgument, match="must be within 0 to 3"):
        run("TensorScatter", [past, update, np.array([4, 1])], 24)
    with pytest.raises(InvalidArgument, match="does not fit"):
        run("TensorScatter", [past, normal(2, 3, 6, 2)], 24)


def test_scans_of_version_8_have_lengths() -> None:
    """Sums of the first steps of each element of the batch; the others' outputs are 0."""
    float_ = onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, float_, [2]) for name in ("s", "x", "t", "y")]
    nodes = [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["y"])]
    body = helper.make_graph(nodes, "body", values[:2], values[2:])
    node = helper.make_node("Scan", ["n", "s0", "xs"], ["last", "ys"], body=body, num_scan_inputs=1)
    xs, start = normal(2, 4, 2), normal(2, 2)
    last, ys = backend.run_node(node, [np.array([4, 2]), start, xs], opset_version=8)
    sums = start[:, None] + np.cumsum(xs, 1)
    np.testing.assert_allclose(ys[0], sums[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ys[1, :2], sums[1, :2], rtol=1e-5, atol=1e-6)
    assert not ys[1, 2:].any()
    np.testing.assert_allclose(last, [sums[0, 3], sums[1, 1]], rtol=1e-5, atol=1e-6)


def test_pictures_that_are_none() -> None:
    with pytest.raises(InvalidArgument, match="no image that can be read"):
        run("ImageDecoder", [np.arange(100, dtype=np.uint8)], 20)


def test_wrong_text_is_refused() -> None:
    with pytest.raises((InvalidType, NotSupported)):
        run("StringSplit", [np.array([1, 2])], 20)
