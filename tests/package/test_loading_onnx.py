"""Files of models: what they may ask for, tensors that lie in other files, and damage of every kind."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitdnn as jd
from jitdnn import limits
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, NotSupported

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from damages import damage  # noqa: E402
from jitdnn.frameworks import onnx as backend  # noqa: E402

FLOAT = TensorProto.FLOAT


def _model(nodes: list[Any], tensors: Any = (), functions: Any = (), inputs: str = "x") -> Any:
    values = [
        [helper.make_tensor_value_info(name, FLOAT, [f"{name}0"]) for name in names]
        for names in (inputs, "y")
    ]
    graph = helper.make_graph(nodes, "g", *values, list(tensors))
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10, functions=list(functions))


RELU = helper.make_node("Relu", ["x"], ["y"])


def _tensor(**fields: Any) -> Any:
    return TensorProto(name="w", **fields)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            _tensor(data_type=1, dims=[1 << 62, 1 << 62], raw_data=b"abcd"),
            r"takes \d{30,} bytes, and its raw_data has 4",
        ),
        (_tensor(data_type=1, dims=[1 << 32, 1 << 32], raw_data=b""), "its raw_data has 0"),
        (_tensor(data_type=1, dims=[5], raw_data=b"abcd"), "takes 20 bytes, and its raw_data has 4"),
        (_tensor(data_type=1, dims=[1], raw_data=b"abcdefgh"), "takes 4 bytes, and its raw_data has 8"),
        (_tensor(data_type=22, dims=[3], raw_data=b"abc"), "takes 2 bytes, and its raw_data has 3"),
        (_tensor(data_type=1, dims=[-5], raw_data=b"abcd"), "no extent is negative"),
        (_tensor(data_type=1, dims=[5], float_data=[1, 2]), "not a valid model"),
        (_tensor(data_type=1, dims=[1 << 40]), "load_limit"),
        (_tensor(data_type=99, dims=[1], raw_data=b"abcd"), "type 99, which ONNX does not have"),
        (_tensor(data_type=8, dims=[1], string_data=[b"\xff"]), "not a valid model"),
    ],
)
def test_tensors_that_lie_are_refused(tensor: Any, message: str) -> None:
    inside = helper.make_node("Constant", [], ["y"], value=tensor)
    for model in (_model([RELU], [tensor]), _model([inside])):
        with pytest.raises(InvalidArgument, match=message):
            backend.prepare(model)


def test_what_is_no_model() -> None:
    for given in (None, b"", 7, onnx.GraphProto()):
        with pytest.raises(InvalidType, match="is no model"):
            backend.prepare(given)


def test_nodes_are_counted_with_functions_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each calls the one before twice: 16 functions are 65,536 nodes, and 30 would be a billion."""

    def function(number: int) -> Any:
        calls = [
            helper.make_node(f"f{number - 1}", [a], [b], domain="d") for a, b in (("x", "t"), ("t", "y"))
        ]
        return helper.make_function("d", f"f{number}", ["x"], ["y"], calls if number else [RELU],
                                    [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)])  # fmt: skip

    functions = [function(number) for number in range(31)]
    with pytest.raises(InvalidArgument, match=r"this model has 1,073,741,824 nodes .* at most 200,000"):
        backend.prepare(_model([helper.make_node("f30", ["x"], ["y"], domain="d")], functions=functions))
    small = _model([helper.make_node("f3", ["x"], ["y"], domain="d")], functions=functions[:4])
    assert len(backend.prepare(small)._graph.steps) == 8
    monkeypatch.setattr(limits, "ONNX_DEPTH", 3)
    with pytest.raises(InvalidArgument, match="functions call each other more than 3 times deep"):
        backend.prepare(small)
    functions[0].node[0].CopyFrom(helper.make_node("f3", ["x"], ["y"], domain="d"))
    with pytest.raises(InvalidArgument, match="calls itself"):
        backend.prepare(_model([RELU], functions=functions[:4]))


def test_graphs_inside_of_nodes_have_a_greatest_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    def around(node: Any) -> Any:
        value = helper.make_tensor_value_info("y", FLOAT, ["y0"])
        body = helper.make_graph([node], "b", [], [value])
        return helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)

    model = _model([around(around(RELU))])
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    backend.prepare(model)
    monkeypatch.setattr(limits, "ONNX_DEPTH", 1)
    with pytest.raises(InvalidArgument, match="graphs nest more than 1 times inside of nodes"):
        backend.prepare(model)
    # deeper than protobuf's own reader goes, which the file format sets at 100 messages
    monkeypatch.undo()
    graph = model.graph
    for _ in range(60):
        node = graph.node.add(op_type="If", input=["c"], output=["y"])
        attribute = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        graph = attribute.g
    with pytest.raises(InvalidArgument, match="graphs nest more than 32 times"):
        backend.prepare(model)


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Add", ["x", "z"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        [RELU, RELU],
        [helper.make_node("Relu", ["y"], ["y"])],
        [helper.make_node("Relu", ["nowhere"], ["y"])],
    ],
)
def test_graphs_with_cycles_or_two_of_a_name(nodes: list[Any]) -> None:
    with pytest.raises(InvalidArgument, match="not a valid model"):
        backend.prepare(_model(nodes))


@pytest.mark.parametrize(
    ("operator", "inputs", "numbers"),
    [
        ("ConstantOfShape", "n", [1 << 42]),
        ("ConstantOfShape", "n", [1 << 62, 1 << 62]),
        ("Expand", "xn", [1 << 42, 1]),
        ("Tile", "xn", [1 << 40]),
        ("Pad", "xn", [1 << 40, 1 << 40]),
        ("Reshape", "xn", [1 << 40]),
        ("OneHot", "inv", [1 << 45]),
        ("Range", "inj", [1 << 45]),
    ],
)
def test_results_that_no_memory_holds_are_refused(operator: str, inputs: str, numbers: list[int]) -> None:
    scalar = operator in ("OneHot", "Range")
    given = {
        "n": np.array(numbers[0] if scalar else numbers), "v": np.zeros(2, np.float32),
        "i": np.array(0) if operator == "Range" else np.array([0]), "j": np.array(1),
    }  # fmt: skip
    tensors = [numpy_helper.from_array(given[name], name) for name in inputs if name in given]
    prepared = backend.prepare(_model([helper.make_node(operator, list(inputs), ["y"])], tensors))
    with pytest.raises((InvalidShape, InvalidArgument)):
        prepared.run([np.zeros(2, np.float32)])


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """A model in a folder of its own, its weights in a file beside it; what to change of where they lie, and a call."""
    folder = tmp_path / "model"
    folder.mkdir()
    weights = np.arange(4, dtype=np.float32)
    (folder / "w.bin").write_bytes(b"head" + weights.tobytes())
    (tmp_path / "secret").write_bytes(weights.tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "inside").symlink_to("w.bin")

    def load(**places: str) -> Any:
        tensor = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
        for key, value in ({"location": "w.bin", "offset": "4"} | places).items():
            tensor.external_data.add(key=key, value=value)
        model = _model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])
        (folder / "m.onnx").write_bytes(model.SerializeToString())
        return backend.load(folder / "m.onnx")

    return load


def test_tensors_in_files_beside_the_model_are_read(stored: Any) -> None:
    for places in ({}, {"length": "16"}, {"location": "./w.bin"}, {"location": "inside"}):
        (y,) = backend.prepare(stored(**places)).run([np.ones(4, np.float32)])
        np.testing.assert_array_equal(y, [1, 2, 3, 4])
    with jd.settings(load_limit="15 B"), pytest.raises(InvalidArgument, match="load_limit"):
        stored()


@pytest.mark.parametrize(
    "places",
    [
        {"location": "../secret", "offset": "0"},
        {"location": "/etc/passwd"},
        {"location": "C:\\secret"},
        {"location": "sub/../../secret"},
        {"location": "link", "offset": "0"},
        {"location": "nothing"},
        {"location": "."},
        {"location": ""},
        {"location": "w.bin\0"},
        {"location": "a" * 5000},
        {"offset": "8"},
        {"offset": "-4"},
        {"offset": "9" * 30},
        {"offset": "x"},
        {"length": "8"},
        {"length": "17"},
    ],
    ids=str,
)
def test_tensors_elsewhere_are_not_read(stored: Any, tmp_path: Path, places: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="tensor 'w', kept in"):
        stored(**places)
    with pytest.raises(InvalidArgument, match="tensor 'w', kept in"):
        backend.prepare(tmp_path / "model" / "m.onnx")


def _beside(folder: Path, tensor: Any, node: Any, offset: int = 0, **places: str) -> Path:
    """A model of one node whose initializer lies in weights.bin."""
    content = tensor.raw_data
    (folder / "weights.bin").write_bytes(bytes(offset) + content)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "weights.bin", "offset": str(offset), "length": str(len(content))} | places
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "m.onnx"
    path.write_bytes(_model([node], [tensor]).SerializeToString())
    return path


@pytest.mark.parametrize("offset", [0, 4096, 6])
def test_tensors_beside_a_model_given_by_its_path_are_mapped(tmp_path: Path, offset: int) -> None:
    """At any offset; they are not written to."""
    w = np.arange(12, dtype=np.float32)
    path = _beside(
        tmp_path, numpy_helper.from_array(w, "w"), helper.make_node("Add", ["x", "w"], ["y"]), offset
    )
    for given in (path, str(path)):
        prepared = backend.prepare(given)
        np.testing.assert_array_equal(prepared.run([np.ones(12, np.float32)])[0], w + 1)
    assert not prepared._graph.constants["w"].flags.writeable
    with jd.settings(load_limit="47 B"), pytest.raises(InvalidArgument, match="load_limit"):
        backend.prepare(path)
    (tmp_path / "weights.bin").write_bytes(bytes(offset + 47))
    with pytest.raises(InvalidArgument, match="48 bytes from"):
        backend.prepare(path)


def test_elements_that_share_bytes_may_lie_in_other_files(tmp_path: Path) -> None:
    values = np.array([1, -2, 7, -8, 3]).astype(ml_dtypes.int4)
    node = helper.make_node("Cast", ["w"], ["y"], to=FLOAT)
    path = _beside(tmp_path, numpy_helper.from_array(values, "w"), node)
    (y,) = backend.prepare(path).run([np.zeros(1, np.float32)])
    np.testing.assert_array_equal(y, [1, -2, 7, -8, 3])


def test_models_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    """A table of 3 GiB, all but two rows of which are a hole of the file: it is never read as a whole."""
    rows, width = 3 << 18, 1024
    table = TensorProto(name="w", data_type=FLOAT, dims=[rows, width])
    table.data_location = TensorProto.EXTERNAL
    table.external_data.add(key="location", value="weights.bin")
    with open(tmp_path / "weights.bin", "wb") as file:
        for row in (7, rows - 1):
            file.seek(row * width * 4)
            file.write(np.full(width, row, np.float32).tobytes())
    cast = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    path = tmp_path / "m.onnx"
    path.write_bytes(
        _model([cast, helper.make_node("Gather", ["w", "i"], ["y"])], [table]).SerializeToString()
    )
    with jd.settings(load_limit="4 GiB"):
        (y,) = backend.prepare(path).run([np.array([7, rows - 1, 0], np.float32)])
    np.testing.assert_array_equal(y, np.repeat([[7], [rows - 1], [0]], width, 1))


def test_files_of_onnxruntime_that_the_checker_refuses() -> None:
    """Outputs without a shape or type, also of a body; initializers of IR 3 that are no inputs; a domain that is not
    imported. They mean the same."""
    x = np.array([1.0, -2.0], np.float32)
    bare = onnx.ValueInfoProto(name="r")
    body = helper.make_graph([helper.make_node("Add", ["x", "w"], ["r"])], "b", [], [bare])
    nodes = [
        helper.make_node("If", ["c"], ["t"], then_branch=body, else_branch=body),
        helper.make_node("QuickGelu", ["t"], ["y"], domain="com.microsoft"),
    ]
    tensors = [
        numpy_helper.from_array(np.ones(2, np.float32), "w"),
        numpy_helper.from_array(np.array(True), "c"),
    ]
    model = _model(nodes, tensors)
    del model.opset_import[1]
    model.ir_version = 3
    model.opset_import[0].version = 11
    for output in (onnx.ValueInfoProto(name="y"), helper.make_tensor_value_info("y", FLOAT, None)):
        model.graph.output[0].CopyFrom(output)
        (y,) = backend.prepare(model).run({"x": x})
        np.testing.assert_allclose(y, (x + 1) / (1 + np.exp(-1.702 * (x + 1))), rtol=1e-5)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(InvalidArgument, match="not a valid model"):
        backend.prepare(model)


def test_all_that_is_not_covered_is_told_at_once() -> None:
    """By the model's own operators and the names of its nodes, in bodies and functions too."""
    inner = helper.make_graph(
        [helper.make_node("Inner", ["x"], ["r"], name="deep", domain="d")], "b", [],
        [helper.make_tensor_value_info("r", FLOAT, [1])],
    )  # fmt: skip
    body = [helper.make_node("Far", ["q"], ["z"], name="far", domain="d")]
    function = helper.make_function("d", "twice", ["q"], ["z"], body, [helper.make_opsetid("d", 1)])
    nodes = [
        helper.make_node("Sideways", ["x"], ["a"], name="one", domain="d"),
        helper.make_node("Sideways", ["a"], ["f"], name="two", domain="d"),
        helper.make_node("twice", ["f"], ["g"], domain="d"),
        helper.make_node("If", ["g"], ["y"], then_branch=inner, else_branch=inner),
    ]
    with pytest.raises(NotSupported, match="3 things are not covered") as caught:
        backend.prepare(_model(nodes, functions=[function]))
    message = str(caught.value)
    for part in ("d.Sideways is not covered (2 nodes: 'one', 'two')", "d.Far is not covered (node 'far')",
                 "d.Inner is not covered (2 nodes: 'deep', 'deep')"):  # fmt: skip
        assert part in message
    node = helper.make_node("Gelu", ["x"], ["y"], name="n", domain="com.microsoft", sideways=1)
    with pytest.raises(NotSupported, match=r"attribute 'sideways' .*\(node 'n'\)"):
        backend.prepare(_model([node]))


def test_a_model_in_memory_reads_no_file(stored: Any, tmp_path: Path) -> None:
    stored()
    model = onnx.load(tmp_path / "model" / "m.onnx", load_external_data=False)
    with pytest.raises(NotSupported, match="lies in another file: give prepare the model's path, or load it"):
        backend.prepare(model)


def test_files_that_are_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    for content in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"text\n" * 9):
        path.write_bytes(content)
        with pytest.raises(InvalidArgument):
            backend.prepare(backend.load(path))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        backend.load(tmp_path)
    path.write_bytes(_model([RELU]).SerializeToString())
    assert backend.load(path).graph.node[0].op_type == "Relu"
    monkeypatch.setattr(limits, "ONNX_BYTES", 10)
    with pytest.raises(InvalidArgument, match="more than 10 bytes, the most that a model"):
        backend.load(path)


def _rich() -> bytes:
    """A model of what computes little: shapes, casts, loops, a branch, a function."""
    n = helper.make_node
    ints = {"s": [2, 3], "r": [2, 1], "p": [0, 1, 1, 0], "i": [1, 0], "a": [0], "m": [3]}
    tensors = [numpy_helper.from_array(np.array(value), name) for name, value in ints.items()]
    tensors.append(helper.make_tensor("f", FLOAT, [3], [1.0, 2.0, 3.0]))
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [n("Add", ["v", "v"], ["u"]), n("Identity", ["k"], ["o"])], "body",
        [value("c", TensorProto.INT64, []), value("k", TensorProto.BOOL, []), value("v", FLOAT, None)],
        [value("o", TensorProto.BOOL, []), value("u", FLOAT, None)],
    )  # fmt: skip
    function = helper.make_function(
        "d", "twice", ["q"], ["z"], [n("Transpose", ["q"], ["t"], perm=[1, 0]), n("Transpose", ["t"], ["z"])],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    nodes = [
        n("Reshape", ["x", "s"], ["b"]), n("Tile", ["b", "r"], ["d"]), n("Pad", ["d", "p"], ["e"]),
        n("Gather", ["e", "i"], ["g"], axis=0), n("twice", ["g"], ["h"], domain="d"),
        n("Cast", ["h"], ["j"], to=FLOAT),
        n("Squeeze", ["m", "a"], ["n"]), n("Loop", ["n", "", "j"], ["l"], body=body),
        n("Unsqueeze", ["l", "a"], ["w"]), n("ReduceMax", ["w"], ["o"], keepdims=0),
        n("ConstantOfShape", ["s"], ["cs"]),
        n("Concat", ["cs", "cs"], ["cc"], axis=1), n("Shape", ["cc"], ["sh"]), n("Cast", ["sh"], ["y"], to=FLOAT),
    ]  # fmt: skip
    return bytes(_model(nodes, tensors, [function]).SerializeToString())


def _may_loop(model: Any) -> bool:
    """Whether the loop has its bound, and that is small: how often a model's loops turn is its own affair."""
    counts = [
        numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.data_type != FLOAT
    ]
    bounds = [node.input[:1] for node in model.graph.node if node.op_type == "Loop"]
    return all(bound == ["n"] for bound in bounds) and all(
        np.abs(count.astype(float)).max(initial=0) < 100 for count in counts
    )


def test_damaged_models(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32)
    path = tmp_path / "m.onnx"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        model = backend.load(path)
        prepared = backend.prepare(model)
        if _may_loop(model):
            prepared.run([x])

    damage((_rich(),), 600, read)


def _sparse(indices: Any, values: Any, dims: list[int], name: str = "w") -> Any:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray(values, np.float32), name),
        numpy_helper.from_array(np.asarray(indices, np.int64), f"{name}_indices"), dims,
    )  # fmt: skip


def _sparse_model(tensor: Any) -> Any:
    model = _model([helper.make_node("Add", ["x", "w"], ["y"])])
    model.graph.sparse_initializer.append(tensor)
    return model


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["positions", "coordinates"])
def test_sparse_initializers_are_dense_arrays(indices: Any) -> None:
    model = _sparse_model(_sparse(indices, [7, 8], [2, 3]))
    expected = np.float32([[0, 7, 0], [0, 0, 8]])
    np.testing.assert_array_equal(backend.prepare(model).run([np.zeros((2, 3), np.float32)])[0], expected)
    constant = helper.make_node("Constant", [], ["w"], sparse_value=_sparse(indices, [7, 8], [2, 3]))
    model = _model([constant, helper.make_node("Add", ["x", "w"], ["y"])])
    np.testing.assert_array_equal(backend.prepare(model).run([np.ones((2, 3), np.float32)])[0], expected + 1)


def test_sparse_initializers_that_name_nothing() -> None:
    model = _sparse_model(_sparse(np.zeros((0,)), [], [2, 3]))
    (y,) = backend.prepare(model).run([np.ones((2, 3), np.float32)])
    np.testing.assert_array_equal(y, np.ones((2, 3)))


@pytest.mark.parametrize(
    ("indices", "dims", "words"),
    [
        ([1, 6], [2, 3], "outside of its shape"), ([-1, 2], [2, 3], "outside of its shape"),
        ([[0, 1], [0, 3]], [2, 3], "outside of its shape"), ([2, 2], [2, 3], "do not ascend"),
        ([3, 1], [2, 3], "do not ascend"), ([1], [2, 3], "is needed"), ([[1], [2]], [2, 3], "is needed"),
        ([0, 1], [1 << 40, 1 << 20], "load_limit"), ([0, 1], [-2, 3], "negative"),
    ],
    ids=str,
)  # fmt: skip
def test_sparse_initializers_that_do_not_fit_are_refused(indices: Any, dims: list[int], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        backend.prepare(_sparse_model(_sparse(indices, [7, 8], dims)))


def test_models_of_jitdnn_onnx_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `load` and by `prepare`, which takes a path as it takes a model; nothing is read into a model."""
    w = np.arange(12, dtype=np.float32)
    path = _beside(tmp_path, numpy_helper.from_array(w, "w"), helper.make_node("Add", ["x", "w"], ["y"]))
    mapped = []
    real = np.memmap

    def noting(*args: Any, **kwargs: Any) -> Any:
        mapped.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(np, "memmap", noting)
    for make in (jd.onnx.load, jd.onnx.prepare):
        for given in (path, str(path)):
            mapped.clear()
            (y,) = make(given).run([np.ones(12, np.float32)])
            np.testing.assert_array_equal(y, w + 1)
            assert len(mapped) == 1
    with pytest.raises(InvalidType, match=r"must be an onnx\.ModelProto, or the path"):
        jd.onnx.prepare(3)  # type: ignore[arg-type]


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc")
def test_tensors_are_in_memory_once(tmp_path: Path) -> None:
    """As arrays; not in the model that was read, too, of which nodes and inputs are parts."""
    w = np.random.default_rng(0).standard_normal(16 << 20).astype(np.float32)
    path = tmp_path / "m.onnx"
    tensor = numpy_helper.from_array(w, "w")
    path.write_bytes(_model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor]).SerializeToString())
    del tensor
    gc.collect()
    before = _resident()
    model = jd.onnx.load(path)
    gc.collect()
    assert _resident() - before < 1.5 * w.nbytes
    assert model.inputs == ("x",)
