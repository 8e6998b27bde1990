"""Errors say in attributes where in a text they are wrong: `line`, `file`, and for several `problems`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from jitdnn.caffe import load_net, load_solver, parse, upgrade
from jitdnn.caffe.schema import NetParameter
from jitdnn.errors import InvalidShape, JitdnnError, NotSupported, ParseError

NET = """name: "n"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 dim: 9 dim: 9 } } }
layer {
  name: "c"
  type: "Convolution"
  bottom: "data"
  top: "c"
  convolution_param { num_output: 2 kernel_size: 3 }
}
layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
"""
SOLVER = """net: "net.prototxt"
base_lr: 0.1
lr_policy: "step"
gamma: 0.1
stepsize: 10
max_iter: 10
type: "SGD"
momentum: 0.9
"""


def raised(action: Callable[[], object]) -> JitdnnError:
    with pytest.raises(JitdnnError) as caught:
        action()
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"ReLU"', '"RELU"', 10),
        ('bottom: "c"', 'bottom: "d"', 10),
        ("kernel_size: 3", "kernel_size: 30", 3),
        ("num_output: 2", "group: 3 num_output: 2", 3),
        ("num_output: 2", "num_output: 0", 8),
        ("num_output: 2", 'num_output: 2 weight_filler { type: "no" }', 8),
        ('type: "Input"', 'include { phase: TEST } exclude { phase: TRAIN } type: "Input"', 2),
        ("num_output: 2", "num_outputs: 2", 8),
        ("num_output: 2", 'num_output: "2"', 8),
        ('top: "c" }', 'top: "c" ', 11),
    ],
)
def test_lines_of_a_net(old: str, new: str, line: int, tmp_path: Path) -> None:
    text = NET.replace(old, new)
    assert text != NET
    assert raised(lambda: load_net(text)).line == line
    file = tmp_path / "net.prototxt"
    file.write_text(text)
    error = raised(lambda: load_net(file))
    assert (error.line, error.file) == (line, str(file))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.line, again.file, str(again)) == (type(error), line, str(file), str(error))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"step"', '"stap"', 3),
        ("gamma: 0.1", "gamma: -1", 4),
        ("stepsize: 10", "stepsize: 0", 5),
        ("max_iter: 10", "max_iter: -1", 6),
        ('"SGD"', '"SDG"', 7),
        ("momentum: 0.9", "momentum: -0.5", 8),
        ("gamma: 0.1", "gamna: 0.1", 4),
    ],
)
def test_lines_of_a_solver(old: str, new: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    file = tmp_path / "solver.prototxt"
    file.write_text(SOLVER.replace(old, new))
    error = raised(lambda: load_solver(file))
    assert (error.line, error.file) == (line, str(file))


def test_several_things_have_a_line_each() -> None:
    text = (
        NET.replace("kernel_size: 3", "kernel_size: 30")
        + 'layer { name: "x" type: "Bar" bottom: "data" top: "x" }\n'
    )
    error = raised(lambda: load_net(text))
    assert [(type(each), each.line) for each in error.problems] == [(NotSupported, 11), (InvalidShape, 3)]
    assert error.line == 11
    unknown = raised(
        lambda: parse(NET.replace("num_output", "outputs").replace("type", "tipe"), NetParameter)
    )
    assert isinstance(unknown, ParseError)
    assert [each.line for each in unknown.problems] == [2, 5, 8, 10]
    bottoms = raised(
        lambda: load_net(NET.replace('bottom: "c"', 'bottom: "e"').replace('bottom: "data"', 'bottom: "f"'))
    )
    assert [each.line for each in bottoms.problems] == [6, 10]


def test_lines_of_older_syntax() -> None:
    v1 = 'input: "data"\ninput_dim: [1, 2, 9, 9]\nlayers { name: "a" }\nlayers { name: "b" }\n'
    error = raised(lambda: upgrade(v1))
    assert [each.line for each in error.problems] == [3, 4]
    v0 = 'input: "data"\ninput_dim: [1, 2, 9, 9]\nlayers { layer { name: "a" type: "conf" } bottom: "data" top: "a" }\n'
    assert raised(lambda: upgrade(v0)).line == 3


def test_an_error_without_a_place() -> None:
    error = raised(lambda: load_net("nowhere.prototxt"))
    assert (error.line, error.file, error.problems) == (None, "", ())
