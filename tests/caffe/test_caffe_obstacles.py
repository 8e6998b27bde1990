"""All that is wrong with a file in one error, with files and lines, and slips told from layers that are not built."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_nets import FIXED
from jitdnn.caffe import load_net, load_solver
from jitdnn.caffe.layers import LAYERS, Layer
from jitdnn.caffe.obstacles import CAFFE_TYPES, FORKS, refuse_type
from jitdnn.caffe.prototxt import parse
from jitdnn.caffe.schema import LayerParameter, NetParameter
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported, ParseError

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 } } }\n'


def test_every_obstacle_of_a_net_is_told_at_once() -> None:
    text = (
        INPUT
        + """layer { name: "a" type: "Convolutoin" bottom: "x" top: "a" }
        layer { name: "b" type: "ReLU" bottom: "a" bottom: "x" top: "b" }
        layer { name: "c" type: "InnerProduct" bottom: "x" top: "c" }
        layer { name: "d" type: "Softmax" bottom: "c" top: "d" }
        layer { name: "e" type: "InnerProduct" bottom: "x" top: "e"
                inner_product_param { num_output: 1 weight_filler { type: "xaver" } } }
        layer { name: "f" type: "ROIPooling" bottom: "x" top: "f" }
    """
    )
    with pytest.raises(InvalidArgument) as caught:
        load_net(text)
    first, *lines = str(caught.value).splitlines()
    assert first == "5 things keep this net from being built:"
    assert (
        "'a' (line 2) has type 'Convolutoin', which does not exist: did you mean 'Convolution'?" in lines[0]
    )
    assert "'f' (line 8) has type 'ROIPooling': a layer of Faster R-CNN" in lines[1]
    assert "'b' (ReLU) (line 3): it has 2 bottoms and needs 1" in lines[2]
    assert "layer 'c' (InnerProduct) (line 4)" in lines[3]
    assert "num_output" in lines[3]
    assert "(line 6)" in lines[4]
    assert "xaver" in lines[4]


def test_missing_types_alone_are_not_supported() -> None:
    text = INPUT + "".join(
        f'layer {{ name: "{kind}" type: "{kind}" bottom: "x" top: "{kind}" }}\n'
        for kind in ("MultiBoxLoss", "Proposal")
    )
    with pytest.raises(
        NotSupported, match=r"2 things keep (?s:.*)'MultiBoxLoss': a layer of SSD(?s:.*)'Proposal'"
    ):
        load_net(text)


def test_unknown_bottoms_are_told_together() -> None:
    text = (
        INPUT
        + """layer { name: "a" type: "ReLU" bottom: "y" top: "a" }
        layer { name: "b" type: "ReLu" bottom: "z" top: "b" }"""
    )
    with pytest.raises(InvalidArgument) as caught:
        load_net(text)
    for words in (
        "no layer before it has a top 'y'",
        "no layer before it has a top 'z'",
        "did you mean 'ReLU'",
    ):
        assert words in str(caught.value)


def test_every_wrong_field_of_a_text_is_told_at_once() -> None:
    text = """name: "n"
layer { name: "a" typ: "Input" top: "x" }
layer { name: "b" type: "Pooling" pooling_param { pool: MIN kernel_size: -1 strid { a: [1, 2] b < c: "}" > } pad: 1 } }
layer { name: "c" type: "ReLU" unknown: "a" 'b'
        other: -3 include { phase: TRAIN } }
"""
    with pytest.raises(ParseError) as caught:
        parse(text, NetParameter)
    assert (caught.value.line, caught.value.column) == (2, 19)
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    for line, words in zip(
        lines, ("'type'", "MIN", "kernel_size: -1", "'stride'", "'unknown'", "'other'"), strict=True
    ):
        assert words in line
    assert [line.split(",")[0] for line in lines[1:]] == ["line 3", "line 3", "line 3", "line 4", "line 5"]


def test_a_broken_text_ends_the_search() -> None:
    with pytest.raises(ParseError, match=r"(?s)'nam'.*line 2, column 1: .*'}' closes nothing"):
        parse('nam: "n"\n} layer', NetParameter)
    with pytest.raises(ParseError, match="and 81 more"):
        parse("a: 1 " * 100 + "{", NetParameter)


@pytest.mark.parametrize("text", ["a: }", "a {", "a: [1", "a", "a:", "a: -", 'a: "b" "c"', "a < } >"])
def test_skipping_what_is_unknown_ends(text: str) -> None:
    with pytest.raises(ParseError, match="unknown field"):
        parse(text, NetParameter)


# ---- files


def test_errors_name_the_file(tmp_path: Path) -> None:
    net, solver = tmp_path / "net.prototxt", tmp_path / "solver.prototxt"
    net.write_text(INPUT + 'layer { name: "a" type: "Softmx" bottom: "x" top: "a" }')
    solver.write_text(f'net: "{net}"\nsnapshot_after_train: false {FIXED}')
    for load, file in ((load_net, net), (load_solver, solver)):
        with pytest.raises(NotSupported, match=rf"\(line 2 of {net}\) has type 'Softmx'"):
            load(file)
    net.write_text(INPUT)
    solver.write_text(f'net: "{net}"\n{FIXED} momentum: -1')
    with pytest.raises(InvalidArgument, match=rf"momentum is -1 \(line 2 of {solver}\)"):
        load_solver(solver)
    solver.write_text(FIXED)
    with pytest.raises(InvalidArgument, match=f"^{solver}: a solver names its net"):
        load_solver(solver)
    net.write_text('input_dim: 1 name: "n"')
    with pytest.raises(InvalidArgument, match=f"^{net}: input_dim"):
        load_net(net)
    net.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 99999999 dim: 99999999 } } }'
    )
    with pytest.raises(InvalidShape, match=f"{net}"):
        load_net(net)


# ---- types


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("LSTMUnit", "Caffe has this layer, and this library does not have it yet"),
        ("PSROIPooling", "a layer of Faster R-CNN, which"),
        ("convolution", "did you mean 'Convolution'"),
        ("SoftMaxWithLoss", "did you mean 'SoftmaxWithLoss'"),
        ("BatchNrom", "did you mean 'BatchNorm'"),
        ("Qwertz", "which neither Caffe nor a fork that is known here has; the library has AbsVal"),
        ("", "has no type"),
    ],
)
def test_what_is_said_of_a_type(kind: str, reason: str) -> None:
    assert reason in str(refuse_type(LayerParameter(name="l", type=kind), LAYERS))


def test_layers_are_caffes_or_a_forks() -> None:
    """Nothing that is built here is missing in the lists, so that no slip near it goes unseen."""
    forks = {name for names in FORKS.values() for name in names}
    assert set(LAYERS) <= CAFFE_TYPES | forks
    assert not CAFFE_TYPES & forks
    assert len(CAFFE_TYPES) == 61


def test_what_layers_state_of_their_gradients_is_what_they_answer() -> None:
    """An attribute says nothing where a base computes the answer."""
    for kind in LAYERS.values():
        if "reads" in vars(kind):
            assert kind.backward_reads is Layer.backward_reads, kind
        if "forced_bottoms" in vars(kind):
            assert kind.may_force_backward is Layer.may_force_backward, kind
