"""Graphs on GPUs: models of ONNX and chains, against onnx's own reference and the calls that a chain stands for."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import jitdnn as jd  # noqa: E402
import jitdnn.onnx  # noqa: E402
from emulation.device import EmulatedCudaDevice  # noqa: E402
from jitdnn.errors import DeviceError, InvalidArgument, InvalidType  # noqa: E402
from jitdnn.tensor import DeviceArray  # noqa: E402

AnyArray = np.ndarray[Any, Any]
needs_processor = pytest.mark.skipif(
    find_spec("llvmlite") is None, reason="the host's part is compiled by llvmlite"
)


@pytest.fixture
def name(device: Any) -> str:
    return "{}:{}".format(*device.device_id)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(3)


def constant(random: np.random.Generator, name: str, *shape: int, shift: float = 0.0) -> Any:
    scale = 1.0 / np.sqrt(max(1, int(np.prod(shape[1:]))))
    return numpy_helper.from_array((shift + scale * random.standard_normal(shape)).astype(np.float32), name)


def model_of(nodes: Sequence[Any], inputs: Any, outputs: Any, constants: Sequence[Any] = ()) -> Any:
    def infos(given: Any) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, kind, list(shape)) for name, (kind, shape) in given.items()
        ]

    graph = helper.make_graph(list(nodes), "graph", infos(inputs), infos(outputs), list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FLOAT = TensorProto.FLOAT


def network(random: np.random.Generator, channels: int = 8) -> Any:
    """Convolutions with what follows them, pools, parts that are joined, a gate of channels, a product, a softmax."""
    c, node = channels, helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Relu", ["a"], ["a1"]),
        node("Conv", ["a1", "w2"], ["b"], pads=[1, 1, 1, 1], group=c),
        node("BatchNormalization", ["b", "scale", "shift", "mean", "var"], ["b1n"]),
        node("Add", ["b1n", "a1"], ["s"]),
        node("HardSwish", ["s"], ["h"]),
        node("GlobalAveragePool", ["h"], ["m"]),
        node("Conv", ["m", "w3"], ["g"]),
        node("Sigmoid", ["g"], ["g1"]),
        node("Mul", ["h", "g1"], ["k"]),
        node("MaxPool", ["k"], ["p"], kernel_shape=[3, 3], strides=[2, 2]),
        node("AveragePool", ["k"], ["q"], kernel_shape=[3, 3], strides=[2, 2]),
        node("Concat", ["p", "q"], ["j"], axis=1),
        node("Transpose", ["j"], ["t"], perm=[0, 2, 3, 1]),
        node("LayerNormalization", ["t", "ls", "lb"], ["l"]),
        node("ReduceMean", ["l"], ["r"], axes=[1, 2], keepdims=0),
        node("MatMul", ["r", "w4"], ["f"]),
        node("Softmax", ["f"], ["y"]),
    ]
    constants = [
        constant(random, "w1", c, 3, 3, 3), constant(random, "b1", c), constant(random, "w2", c, 1, 3, 3),
        constant(random, "scale", c, shift=1.0), constant(random, "shift", c), constant(random, "mean", c),
        numpy_helper.from_array((0.5 + random.random(c)).astype(np.float32), "var"), constant(random, "w3", c, c, 1, 1),
        constant(random, "ls", 2 * c, shift=1.0), constant(random, "lb", 2 * c), constant(random, "w4", 2 * c, 5),
    ]  # fmt: skip
    inputs, outputs = {"x": (FLOAT, ["n", 3, 12, 9])}, {"y": (FLOAT, ["n", 5]), "h": (FLOAT, ["n", c, 6, 9])}
    return model_of(nodes, inputs, outputs, constants)


def images(random: np.random.Generator, count: int) -> AnyArray:
    return random.standard_normal((count, 3, 12, 9)).astype(np.float32)


def close(found: Any, wanted: Any, bound: float = 1e-5) -> None:
    for one, other in zip(found, wanted, strict=True):
        array = one if isinstance(one, np.ndarray) else one.numpy()
        assert array.shape == other.shape
        assert array.dtype == other.dtype
        np.testing.assert_allclose(array, other, rtol=0, atol=bound * np.abs(other).max(initial=1e-6))


def test_a_network_is_that_of_the_reference(name: str, random: np.random.Generator) -> None:
    model = network(random)
    reference = ReferenceEvaluator(model)
    loaded = jitdnn.onnx.prepare(model, device=name)
    for count in (2, 2, 2, 1, 2, 3):  # runs of one kind are launched, captured, and replayed
        x = images(random, count)
        found = loaded.run([x])
        assert all(isinstance(one, np.ndarray) and one.flags.owndata for one in found)
        close(found, reference.run(None, {"x": x}))


def test_what_runs_is_told(name: str, random: np.random.Generator) -> None:
    loaded = jitdnn.onnx.prepare(network(random), device=name)
    x = images(random, 2)
    text = loaded.explain([x])
    assert "0 functions of the host" in text
    assert "conv" in text
    assert "measured" in text
    assert "estimated" in loaded.explain([x], measure=False)
    events = loaded.profile([x])
    assert events
    assert all(event["dur"] >= 0 for event in events)
    assert 0 < loaded.host_time([x]) < 1


def test_arrays_on_the_device_stay_there(name: str, random: np.random.Generator) -> None:
    model = network(random)
    reference, loaded = ReferenceEvaluator(model), jitdnn.onnx.prepare(model, device=name)
    for number in range(3):
        x = images(random, 2)
        given = jd.to_device(x, name)
        if number == 2:  # channels last, as a view
            given = jd.to_device(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), name).transpose(0, 3, 1, 2)
        found = loaded.run([given])
        assert all(isinstance(one, DeviceArray) for one in found)
        close(found, reference.run(None, {"x": x}))
        close([given], [x], 0.0)


def test_results_are_in_memory_of_their_own(name: str, random: np.random.Generator) -> None:
    model = network(random)
    loaded = jitdnn.onnx.prepare(model, device=name)
    first, second = images(random, 2), images(random, 2)
    for place in (lambda x: x, lambda x: jd.to_device(x, name)):
        found = loaded.run([place(first)])
        before = [np.array(one) for one in found]
        loaded.run([place(second)])
        close(found, before, 0.0)


def test_tensors_of_pytorch_go_in_and_out(name: str, random: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not name.startswith("cuda"):
        pytest.skip("PyTorch sees no such GPU")
    model = network(random)
    reference, loaded = ReferenceEvaluator(model), jitdnn.onnx.prepare(model, device=name)
    stream = torch.cuda.Stream()
    for number in range(4):
        x = images(random, 2)
        with torch.cuda.stream(stream if number % 2 else torch.cuda.current_stream()):
            found = loaded.run([torch.from_numpy(x).cuda()])
            assert all(isinstance(one, torch.Tensor) and one.is_cuda for one in found)
            close([one.cpu().numpy() for one in found], reference.run(None, {"x": x}))


@pytest.mark.parametrize(
    ("options", "bound"), [({"dtype": "float16"}, 1e-2), ({"dtype": "bf16"}, 6e-2), ({"math": "tf32"}, 5e-3)]
)
def test_less_exact_arithmetic(name: str, options: Any, bound: float, random: np.random.Generator) -> None:
    model = network(random)
    loaded = jitdnn.onnx.prepare(model, device=name, **options)
    x = images(random, 2)
    for _ in range(2):
        close(loaded.run([x]), ReferenceEvaluator(model).run(None, {"x": x}), bound)


@needs_processor
def test_narrow_storage_on_the_processor(random: np.random.Generator) -> None:
    model = network(random)
    x = images(random, 2)
    wanted = ReferenceEvaluator(model).run(None, {"x": x})
    found = jitdnn.onnx.prepare(model, dtype="float16").run([x])
    close(found, wanted, 1e-2)
    assert any((one != other).any() for one, other in zip(found, wanted, strict=True))


@needs_processor
def test_what_has_no_kernels_there_is_run_by_the_host(name: str, random: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("LSTM", ["a", "w", "r"], ["h", ""], hidden_size=5),
        helper.make_node("Mul", ["h", "h"], ["y"]),
    ]
    constants = [constant(random, "w", 1, 20, 4), constant(random, "r", 1, 20, 5)]
    model = model_of(nodes, {"x": (FLOAT, [3, "n", 4])}, {"y": (FLOAT, [3, 1, "n", 5])}, constants)
    loaded = jitdnn.onnx.prepare(model, device=name)
    for place in (lambda x: x, lambda x: jd.to_device(x, name)):
        for _ in range(3):
            x = random.standard_normal((3, 2, 4)).astype(np.float32)
            close(loaded.run([place(x)]), ReferenceEvaluator(model).run(None, {"x": x}))
    text = loaded.explain([x])
    if name.startswith("cuda"):  # which has these kernels
        assert "run by the host" not in text
        return
    assert "1 functions of the host" in text
    assert "run by the host: no algorithm takes rnn" in text


def test_spatial_transformer(name: str, random: np.random.Generator) -> None:
    """Both halves are launches of the device, as everything around them."""
    nodes = [
        helper.make_node("AffineGrid", ["theta", "size"], ["grid"]),
        helper.make_node("GridSample", ["x", "grid"], ["a"], mode="linear", padding_mode="border"),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    size = numpy_helper.from_array(np.array([2, 3, 5, 6]), "size")
    inputs = {"x": (FLOAT, [2, 3, 4, 7]), "theta": (FLOAT, [2, 2, 3])}
    model = model_of(nodes, inputs, {"y": (FLOAT, [2, 3, 5, 6])}, [size])
    model.opset_import[0].version = 20
    loaded = jitdnn.onnx.prepare(model, device=name)
    given = {n: random.standard_normal(shape).astype(np.float32) for n, (_, shape) in inputs.items()}
    wanted = ReferenceEvaluator(model).run(None, given)
    for _ in range(3):
        close(loaded.run(given), wanted, 1e-5)
    assert "3 kernels and 0 functions of the host" in loaded.explain(given)


@needs_processor
def test_elements_that_decide_shapes_come_to_the_host(name: str, random: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("NonZero", ["a"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Sqrt", ["f"], ["y"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, ["n"])}, {"y": (FLOAT, [1, "k"])})
    loaded = jitdnn.onnx.prepare(model, device=name)
    for length in (5, 7, 5):
        x = np.where(random.random(length) < 0.5, 0, 1).astype(np.float32)
        wanted = ReferenceEvaluator(model).run(None, {"x": x})
        close(loaded.run([x]), wanted)
        found = loaded.run([jd.to_device(x, name)])
        if wanted[0].size:
            assert isinstance(found[0], DeviceArray)
        close(found, wanted)


def test_elements_that_decide_a_view_are_part_of_the_kind(name: str, random: np.random.Generator) -> None:
    nodes = [helper.make_node("Slice", ["x", "start", "end"], ["s"]), helper.make_node("Neg", ["s"], ["y"])]
    kinds = {"x": (FLOAT, [6, 4]), "start": (TensorProto.INT64, [1]), "end": (TensorProto.INT64, [1])}
    model = model_of(nodes, kinds, {"y": (FLOAT, ["k", 4])})
    loaded = jitdnn.onnx.prepare(model, device=name)
    x = random.standard_normal((6, 4)).astype(np.float32)
    for first, last in ((0, 4), (2, 5), (0, 4)):
        ends = [np.array([first]), np.array([last])]
        close(loaded.run([x, *ends]), [-x[first:last]], 0.0)
        close(loaded.run([jd.to_device(one, name) for one in (x, *ends)]), [-x[first:last]], 0.0)


def test_branches(name: str, random: np.random.Generator) -> None:
    def body(op: str) -> Any:
        value = helper.make_tensor_value_info(op, FLOAT, [3, 4])
        return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [value])

    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=body("Exp"), else_branch=body("Neg"))]
    kinds = {"c": (TensorProto.BOOL, []), "x": (FLOAT, [3, 4])}
    loaded = jitdnn.onnx.prepare(model_of(nodes, kinds, {"y": (FLOAT, [3, 4])}), device=name)
    x = random.standard_normal((3, 4)).astype(np.float32)
    for condition in (True, False, True):
        close(loaded.run([np.array(condition), x]), [np.exp(x) if condition else -x])


def test_constants_inputs_and_nothing_as_results(name: str, random: np.random.Generator) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Exp", ["c"], ["e"])]
    kinds = {"same": (FLOAT, ["n", 3]), "e": (FLOAT, [2, 2])}
    c = constant(random, "c", 2, 2)
    loaded = jitdnn.onnx.prepare(model_of(nodes, {"x": (FLOAT, ["n", 3])}, kinds, [c]), device=name)
    for count in (2, 0):
        x = random.standard_normal((count, 3)).astype(np.float32)
        close(loaded.run([x]), [x, np.exp(numpy_helper.to_array(c))])
    found = loaded.run([jd.to_device(np.ones((2, 3), np.float32), name)])
    assert all(isinstance(one, DeviceArray) for one in found)
    close(found, [np.ones((2, 3), np.float32), np.exp(numpy_helper.to_array(c))])


def test_threads_share_a_model(name: str, random: np.random.Generator) -> None:
    model = network(random)
    loaded, reference = jitdnn.onnx.prepare(model, device=name), ReferenceEvaluator(model)
    given = [images(random, 2) for _ in range(4)]
    wanted = [reference.run(None, {"x": x}) for x in given]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(4):
                x = given[number] if turn % 2 else jd.to_device(given[number], name)
                close(loaded.run([x]), wanted[number])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_bad_arguments(name: str, random: np.random.Generator) -> None:
    model = network(random)
    x = images(random, 2)
    on_gpu = jd.to_device(x, name)
    with pytest.raises(
        DeviceError, match=f"input 'x' is on {name}, and the graph is prepared for the processor"
    ):
        jitdnn.onnx.prepare(model).run([on_gpu])
    with pytest.raises((DeviceError, InvalidArgument), match="99"):
        jitdnn.onnx.prepare(model, device=f"{name.partition(':')[0]}:99")
    with pytest.raises(InvalidArgument, match="the device is"):
        jitdnn.onnx.prepare(model, device="tpu")
    with pytest.raises(InvalidType, match="a name, cpu or cuda:0"):
        jitdnn.onnx.prepare(model, device=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="float16, bfloat16 or float32"):
        jitdnn.onnx.prepare(model, device=name, dtype="int8")
    with pytest.raises(InvalidArgument, match="math"):
        jitdnn.onnx.prepare(model, device=name, math="fp12")
    loaded = jitdnn.onnx.prepare(model, device=name)
    with pytest.raises(InvalidArgument, match="shape"):
        loaded.run([jd.to_device(x[:, :2].copy(), name)])
    with pytest.raises(InvalidType, match="float64"):
        loaded.run([jd.to_device(x.astype(np.float64), name)])
    close(loaded.run([on_gpu]), ReferenceEvaluator(model).run(None, {"x": x}))


def test_chains_of_arrays_on_the_device(name: str, random: np.random.Generator) -> None:
    x, w, r = (
        jd.to_device(random.standard_normal(shape).astype(np.float32), name)
        for shape in ((2, 3, 9, 8), (4, 3, 3, 3), (2, 4, 9, 8))
    )

    def block(x: Any, r: Any) -> Any:
        y = jd.relu(jd.conv(x, w, padding=1) + r)
        return y, jd.softmax(y.reshape(2, -1), axis=1)

    fast = jd.chain(block)
    wanted = [one.numpy() for one in block(x, r)]
    for _ in range(3):
        found = fast(x, r)
        assert all(isinstance(one, DeviceArray) for one in found)
        close(found, wanted)
    text = fast.explain(x, r)
    assert "0 functions of the host" in text
    assert "pointwise" not in text
    with pytest.raises(DeviceError):  # as the function does
        fast(x, r.numpy())


@dataclass(frozen=True)
class _Emulated(EmulatedCudaDevice):
    """The emulator as a device of public calls: all is done when a call returns, and there are no graphs."""

    device_id: Any = ("cuda", 0)
    default_stream: int = 0

    def allocate(self, size: int, stream: Any = None) -> Any:
        memory: Any = super().allocate(size)
        memory.streams = frozenset((0,))
        return memory

    def stream(self, given: Any) -> int:
        return 0

    def own_stream(self) -> int:
        return 0

    def order(self, stream: Any, after: Any) -> None:
        pass

    def is_capturing(self, stream: Any) -> bool:
        return False

    def capture(self, stream: Any, owner: object) -> Any:
        raise DeviceError("the emulator has no graphs")


@pytest.mark.parametrize("options", [{}, {"dtype": "float16"}, {"math": "tf32"}], ids=str)
def test_kernels_of_matrix_units_by_the_emulator(options: Any, random: np.random.Generator) -> None:
    from emulation.device import missing

    if missing():
        pytest.skip(missing())
    model = network(random, 16)
    loaded = jitdnn.onnx.prepare(model, **options)
    loaded._prepared.settings["device"] = _Emulated()
    for number in range(2):
        x = images(random, 1)
        bound = 1e-5 if not options else 1e-2
        close(loaded.run([x]), ReferenceEvaluator(model).run(None, {"x": x}), bound)
        if not number:
            assert "0 functions of the host" in loaded.explain([x], measure=False)


def test_nothing_of_the_processor_is_compiled(name: str, tmp_path: Path) -> None:
    """Without llvmlite a model runs on a GPU, constants that its kernels compute among it."""
    script = """
import sys
sys.modules["llvmlite"] = None
sys.path.insert(0, sys.argv[1])
import numpy as np
from onnx.reference import ReferenceEvaluator
import jitdnn.onnx
from test_graph import FLOAT, close, constant, helper, model_of, network, images

random = np.random.default_rng(3)
model = network(random)
x = images(random, 2)
close(jitdnn.onnx.prepare(model, device=sys.argv[2]).run([x]), ReferenceEvaluator(model).run(None, {"x": x}))
nodes = [helper.make_node("Exp", ["c"], ["e"]), helper.make_node("Mul", ["x", "e"], ["y"])]
model = model_of(nodes, {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])}, [constant(random, "c", 1, 3)])
x = random.standard_normal((2, 3)).astype(np.float32)
close(jitdnn.onnx.prepare(model, device=sys.argv[2]).run([x]), ReferenceEvaluator(model).run(None, {"x": x}))
"""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script, str(here), name],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
