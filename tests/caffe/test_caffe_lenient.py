"""The lenient reading of nets: each kind of damage, what is told of it, and what stays an error."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn.caffe import load_net, parse, read_leniently, to_text
from jitdnn.caffe.lenient import Repair, import_net
from jitdnn.caffe.schema import NetParameter
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.errors import InvalidArgument, JitdnnError, ParseError
from paths import SHARED

# as such a page has it: quotation marks and blanks of a word processor, braces and a type lost, a layer in the place of
# its blob, data of nowhere
PAGE = """layers {
\u00a0\u00a0name: \u201cImages\u201d
\u00a0\u00a0type: DATA
  top: \u201cpixels\u201d
  top: \u201canswer\u201d
layers {
  name: \u201cFirst\u201d   # \u2192 the features
  type: CONVOLUTION
  bottom: \u201cImages\u201d
  top: \u201cFirst\u201d
  convolution_param {
    num_output: 4
    kernel_size: 3
    weight_filler { type: \u201cgaussian\u201d  mean: \u22120.5 }
layers {
  name: \u201cSecond\u201d
  bottom: \u201cFirst\u201d
  top: \u201cSecond\u201d
  convolution_param {
    num_output: 2
    kernel_size: 1
"""
WHOLE = """
layer { name: "Images" type: "Input" top: "pixels" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "First" type: "Convolution" bottom: "pixels" top: "First"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "gaussian" mean: -0.5 } } }
layer { name: "Second" type: "Convolution" bottom: "First" top: "Second"
        convolution_param { num_output: 2 kernel_size: 1 } }
"""
SHAPES = {"pixels": (1, 3, 8, 8)}


def test_a_page_is_repaired_and_every_repair_told() -> None:
    net, repairs, file = read_leniently(PAGE, SHAPES)
    assert net == upgrade_net(parse(WHOLE, NetParameter))
    assert file is None
    assert [repair.line for repair in repairs] == sorted(repair.line for repair in repairs)
    assert [str(repair) for repair in repairs if "quotation" not in repair.what] == [
        "line 1: layer 'Images' (Data) names no source: an Input layer of the shapes that were given, without "
        "'answer', which nothing reads",
        "line 2: other blanks (U+00A0) replaced",
        "line 3: other blanks (U+00A0) replaced",
        "line 6: } of layers (opened in line 1) added before the next layer",
        "line 9: bottom 'Images' of layer 'First' is the name of a layer: its first top 'pixels'",
        "line 14: typographic dashes (U+2212) replaced",
        "line 15: } of layers.convolution_param (opened in line 11) added before the next layer",
        "line 15: } of layers (opened in line 6) added before the next layer",
        "line 15: layer 'Second' has no type: Convolution, as it has convolution_param",
        "line 22: } of layers.convolution_param (opened in line 19) added at the end",
        "line 22: } of layers (opened in line 15) added at the end",
    ]  # fmt: skip
    assert {repair.line for repair in repairs if "quotation" in repair.what} == {
        2,
        4,
        5,
        7,
        9,
        10,
        14,
        16,
        17,
        18,
    }


def test_the_net_runs_and_the_log_tells(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jitdnn"):
        net = load_net(PAGE, lenient=True, inputs=SHAPES, seed=1)
    assert len(caplog.records) == len(read_leniently(PAGE, SHAPES)[1])
    assert caplog.records[1].getMessage().startswith("text, line 2: ")
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8))
    np.testing.assert_array_equal(
        net.forward(pixels=x)["Second"], load_net(WHOLE, seed=1).forward(pixels=x)["Second"]
    )


def test_the_strict_reading_refuses() -> None:
    with pytest.raises(ParseError, match="unexpected character '\\\\xa0'") as caught:
        load_net(PAGE)
    assert (caught.value.line, caught.value.column) == (2, 1)
    with pytest.raises(InvalidArgument, match=r"inputs are for lenient=True"):
        load_net(WHOLE, inputs=SHAPES)


def test_a_sound_net_needs_no_repair() -> None:
    assert import_net(WHOLE) == (parse(WHOLE, NetParameter), [])


def test_the_announcement_of_2014_loads() -> None:
    path = SHARED / "seed" / "announcement_2014_snippets.txt"
    if not path.is_file():
        pytest.skip("no folder ../shared/seed beside this checkout")
    text = path.read_text(encoding="utf-8").partition("## Net definition")[2].partition("\n")[2]
    net = load_net(text, lenient=True, inputs={"data": (1, 3, 227, 227)})
    assert [layer.name for layer in net.layers] == ["MyData", "Conv1", "Conv2"]
    assert {name: blob.shape for name, blob in net.blobs.items()} == {
        "data": (1, 3, 227, 227), "Conv1": (1, 96, 55, 55), "Conv2": (1, 256, 51, 51),
    }  # fmt: skip


# ---- one by one


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("pooling_param { }", "Pooling"),
        ("inner_product_param { }", "InnerProduct"),
        ("lrn_param { } transform_param { }", "LRN"),
        ("hdf5_data_param { source: 'a' }", "HDF5Data"),
        ("prelu_param { }", "PReLU"),
        ("norm_param { }", "Normalize"),
        ("permute_param { }", "Permute"),
        ("argmax_param { } include { }", "ArgMax"),
        ("", ""),
        ("softmax_param { }", ""),
        ("recurrent_param { }", ""),
        ("pooling_param { } lrn_param { }", ""),
    ],
)
def test_types_follow_from_the_only_message(message: str, kind: str) -> None:
    net, repairs = import_net(f'layer {{ name: "l" {message} }}')
    assert net.layer[0].type == kind
    assert len(repairs) == bool(kind)


def test_v1_types_that_do_not_exist_are_not_made_up() -> None:
    with pytest.raises(InvalidArgument, match="has no type"):
        import_net('layers { name: "l" prelu_param { } }')


def test_a_bottom_that_is_a_blob_is_left_alone() -> None:
    """Also where a layer of that name makes another one; and a layer behind is none."""
    text = """layer { name: "a" type: "Input" top: "b" top: "a" input_param { shape { dim: 1 } } }
              layer { name: "b" type: "ReLU" bottom: "a" top: "c" }
              layer { name: "d" type: "ReLU" bottom: "e" top: "f" }
              layer { name: "e" type: "ReLU" bottom: "c" top: "g" }"""
    net, repairs = import_net(text)
    assert [layer.bottom for layer in net.layer] == [[], ["a"], ["e"], ["c"]]
    assert repairs == []


def test_the_nets_of_2013_keep_their_layers_inside_of_layers() -> None:
    net, repairs = import_net(
        'layers { layer { name: "a" type: "conv" num_output: 1 kernelsize: 1\n'
        'layers { layer { name: "b" type: "relu" } bottom: "x" top: "b" }'
    )
    assert [layer.type for layer in net.layer] == ["Convolution", "ReLU"]
    assert [repair.line for repair in repairs] == [2, 2]


def test_line_ends_of_other_systems_count(tmp_path: Path) -> None:
    text = 'layer { name: "a"\r type: "ReLU" bottom: "x" \u2028 top: “a” }\r\nlayer { name: ”b“ }'
    _, repairs = import_net(text)
    assert [repair.line for repair in repairs] == [3, 4]
    file = tmp_path / "page.txt"
    file.write_bytes(text.replace("\u2028", "").encode("cp1252"))
    _, repairs, path = read_leniently(file)
    assert path == file
    assert repairs[0] == Repair(1, "the file is no UTF-8: read as Windows-1252")
    assert len(repairs) == 3


# ---- what stays an error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('layer { nam: "a" }', "did you mean 'name'"),
        ('layer { name: "a }', "not closed"),
        ("} layer { }", "closes nothing"),
        ('layer { name: "a" type: 3 }', "string"),
        ('layer { name: "a" } layers { name: "b" type: RELU }', "mixes"),
        (
            'layer { name: "d" type: "Data" top: "x" top: "l" }',
            r"layer 'd' \(Data\) \(line 1\) names no source",
        ),
    ],
)
def test_what_no_repair_mends(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        import_net(text)


def test_shapes_must_be_those_of_data() -> None:
    with pytest.raises(InvalidArgument, match="'Second', which no layer of data without a source makes"):
        import_net(PAGE, {**SHAPES, "Second": (1,)})
    with pytest.raises(InvalidArgument, match="'pixels', which no layer"):
        import_net(WHOLE, SHAPES)


WORDS = [
    "layers {", "layer {", "layers", "layer", "{", "}", "name: “a”", "name", ":", "\u00a0", "convolution_param {",
    "top: 'x'", "bottom: 'a'", "type: RELU", "type: 'ReLU'", "\n", "<", ">", "[", "]", "−", "1",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=30))
def test_what_is_read_prints_and_reads_again(tokens: list[str]) -> None:
    """A text ends in a net or a typed error, and without repairs the net is that of a strict reading."""
    text = " ".join(tokens)
    try:
        net, repairs = import_net(text)
    except JitdnnError:
        return
    assert parse(to_text(net), NetParameter) == net
    if not repairs:
        assert upgrade_net(parse(text, NetParameter)) == net
