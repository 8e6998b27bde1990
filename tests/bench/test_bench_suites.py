"""Suites of layers to measure: text, CSV, the built-in ones, other batches and directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitdnn.bench.suites import COLUMNS, Layer, built_in, load, read_csv, read_text, unique
from jitdnn.errors import InvalidArgument, ParseError
from jitdnn.problems import parse
from jitdnn.problems.convolution import Convolution

SMALL = "conv_fwd n2 c3 h9 w8 k4 r3 s3 stride1 pad1 f32 nchw"


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z0-9_.]{0,8}", fullmatch=True),
            st.from_regex(r"[A-Za-z0-9_.]{1,8}", fullmatch=True),
            st.integers(1, 99),
            st.tuples(*[st.integers(1, 9)] * 3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_text_suite_reads_back(entries: list[tuple[str, str, int, tuple[int, int, int]]]) -> None:
    layers = [
        Layer(Convolution.make("fwd", (n, c, 5, 5), (k, c, 3, 3)), network, name, count)
        for network, name, count, (n, c, k) in entries
    ]
    text = "# a comment\n\n" + "\n".join(f"{each.label}*{each.count} {each.problem}" for each in layers)
    assert list(read_text(text)) == layers


def test_a_line_without_a_label_is_a_problem() -> None:
    (layer,) = read_text(f"  {SMALL}  \n")
    assert layer == Layer(parse(SMALL))
    assert layer.label == SMALL


def _csv(**values: Any) -> str:
    row = (
        dict.fromkeys(COLUMNS, 1) | {"pad_d": 0, "pad_h": 0, "pad_w": 0, "suite": "net", "name": "a"} | values
    )
    return ",".join(COLUMNS) + "\n" + ",".join(str(row[column]) for column in COLUMNS) + "\n"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"c": 4, "h": 9, "w": 8, "k": 6, "r": 3, "s": 2, "pad_h": 1, "stride_w": 2, "groups": 2},
         "conv_fwd n1 c4 h9 w8 k6 r3 s2 stride1x2 pad1x0 g2 f32 nchw"),
        ({"n": 2, "c": 3, "w": 50, "k": 5, "s": 7, "pad_w": 3, "stride_w": 4, "dil_w": 2},
         "conv_fwd n2 c3 w50 k5 s7 stride4 pad3 dil2 f32 nchw"),
        ({"d": 5, "h": 6, "w": 7, "t": 2, "r": 3, "s": 3, "stride_d": 2, "pad_w": 1},
         "conv_fwd n1 c1 d5 h6 w7 k1 t2 r3 s3 stride2x1x1 pad0x0x1 f32 nchw"),
    ],
)  # fmt: skip
def test_csv_rows_of_every_rank(values: dict[str, Any], problem: str) -> None:
    (layer,) = read_csv(_csv(count=3, **values))
    assert str(layer.problem) == problem
    assert (layer.network, layer.name, layer.count) == ("net", "a", 3)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (_csv(h=2, r=5), 2, "the filter covers 5"),
        (_csv(c=5, groups=2), 2, "groups=2 does not divide c=5"),
        (_csv(c="many"), 2, "many"),
        (_csv() + "net,b,1\n", 3, "NoneType"),
        ("suite,name\n", 1, "lacks the columns n, c"),
    ],
)
def test_errors_of_csv_suites_have_the_line(text: str, line: int, words: str) -> None:
    with pytest.raises(ParseError, match=words) as caught:
        list(read_csv(text, "my.csv"))
    assert caught.value.line == line
    assert "my.csv" in str(caught.value)


def test_errors_of_text_suites_have_line_and_column() -> None:
    text = f"# one\nnet:a*2 {SMALL} strid2\n"
    with pytest.raises(ParseError, match="did you mean 'stride'") as caught:
        list(read_text(text))
    assert (caught.value.line, caught.value.column) == (2, text.splitlines()[1].index("strid2") + 1)


def test_the_classic_suite() -> None:
    suites = built_in()
    classic = suites["classic"]
    assert len(classic) == sum(len(suites[network]) for network in {layer.network for layer in classic})
    # counted in the papers: 53 convolutions in ResNet-50, 20 in ResNet-18, 57 in GoogLeNet, 13 in VGG-16
    for network, convolutions in (
        ("resnet50_v1.5", 53),
        ("resnet18", 20),
        ("googlenet_v1", 57),
        ("vgg16_D", 13),
    ):
        assert sum(layer.count for layer in load(network)) == convolutions, network
    by_name = {layer.label: str(layer.problem) for layer in classic}
    first = "conv_fwd n128 c3 h224 w224 k64 r7 s7 stride2 pad3 f32 nchw"
    assert by_name["resnet18:conv1"] == first
    grouped = "conv_fwd n256 c96 h27 w27 k256 r5 s5 stride1 pad2 g2 f32 nchw"
    assert by_name["caffenet_grouped:conv2"] == grouped


def test_unknown_suites_are_refused(tmp_path: Any) -> None:
    with pytest.raises(InvalidArgument, match="classic"):
        load("clasic")
    with pytest.raises(InvalidArgument, match="No such file"):
        load(str(tmp_path / "absent.csv"))
    empty = tmp_path / "empty.txt"
    empty.write_text("# nothing\n")
    with pytest.raises(InvalidArgument, match="no problems"):
        load(str(empty))


def test_another_batch_and_another_direction() -> None:
    layer = Layer(parse("conv_fwd n2 c4 h9 w8 k6 r3 s3 stride2 pad1:0x2 dil2 g2 f64 nhwc"), "net", "a", 3)
    other = layer.with_batch(8)
    assert str(other.problem) == str(layer.problem).replace("n2", "n8")
    assert (other.network, other.name, other.count) == ("net", "a", 3)
    assert layer.towards("bwd_filter").problem.kind == "conv_bwd_filter"
    transposed = replace(layer, name="convT_up")
    kinds = [transposed.towards(d).problem.kind for d in ("fwd", "bwd_data", "bwd_filter")]
    assert kinds == ["conv_bwd_data", "conv_fwd", "conv_bwd_filter"]


def test_what_has_no_batch_or_direction_says_so() -> None:
    product = Layer(parse("matmul m3 k4 n5 f32"))
    with pytest.raises(InvalidArgument, match="convolutions only"):
        product.with_batch(8)
    with pytest.raises(InvalidArgument, match="directions"):
        product.towards("fwd")
    strided = Layer(parse("conv_fwd n1 c2 h5 w5 k2 r3 s3 f32 nchw x=s200,100,10,1"))
    with pytest.raises(InvalidArgument, match="packed"):
        strided.with_batch(8)


def test_each_different_problem_once() -> None:
    problem, other = parse(SMALL), parse(SMALL.replace("k4", "k5"))
    layers = [Layer(problem, "a", "x", 2), Layer(other, "a", "y", 1), Layer(problem, "b", "z", 3)]
    assert unique(layers) == [Layer(problem, "a", "x", 5), Layer(other, "a", "y", 1)]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_another_batch_keeps_the_order_of_tensors_that_are_packed_in_both(layout: str) -> None:
    """A filter of one channel and one tap, and an image of one channel, are packed in either order."""
    for text in (f"conv_fwd n9 c8 w40 k16 s1 g8 f32 {layout}", f"conv_fwd n9 c1 h7 w6 k4 r3 s3 f32 {layout}"):
        other = Layer(parse(text)).with_batch(2)
        assert str(other.problem) == str(parse(text.replace("n9", "n2")))
    other = Layer(parse(f"conv_fwd n9 c1 h7 w6 k4 r3 s3 f32 {layout}")).stored("bf16")
    assert other.problem.y.layout == layout
