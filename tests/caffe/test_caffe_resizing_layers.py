"""Layers that give tops their shapes in the forward pass: Filter, and layers written in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caffe_nets import backward, forward, one_layer
from jitdnn.caffe import load_net, load_solver
from jitdnn.errors import InvalidArgument, NotSupported

PROBLEM = '''
import caffe
import numpy as np
from helping import half

class Distance(caffe.Layer):
    def setup(self, bottom, top):
        self.scale = float(self.param_str)

    def reshape(self, bottom, top):
        if bottom[0].count != bottom[1].count:
            raise ValueError("counts differ")
        self.diff = np.zeros_like(bottom[0].data)
        top[0].reshape(1)

    def forward(self, bottom, top):
        self.diff[...] = bottom[0].data - bottom[1].data
        top[0].data[...] = self.scale * np.sum(self.diff ** 2) / bottom[0].num * half

    def backward(self, top, propagate_down, bottom):
        for i, sign in enumerate((1, -1)):
            if propagate_down[i]:
                bottom[i].diff[...] = sign * self.scale * self.diff / bottom[i].num * top[0].diff[0]

class Growing(caffe.Layer):
    """Each pass gives one row more; phase and weights."""
    def setup(self, bottom, top):
        self.rows = 0
        self.blobs.add_blob(2)
        self.blobs[0].data[...] = 1 + self.phase

    def reshape(self, bottom, top):
        self.rows += 1
        top[0].reshape(self.rows, 2)

    def forward(self, bottom, top):
        top[0].data[...] = np.arange(self.rows)[:, None] * self.blobs[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[...] += np.arange(self.rows) @ top[0].diff
'''
NET = """
    force_backward: true
    layer { name: "a" type: "Input" top: "a" top: "b" input_param { shape { dim: 3 dim: 2 } } }
    layer { name: "d" type: "Python" bottom: "a" bottom: "b" top: "d" loss_weight: 1
            python_param { module: "problem" layer: "Distance" param_str: "3" } }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "helping.py").write_text("half = 0.5\n")
    return tmp_path


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(37)


# ---- Filter


def test_filter(random: np.random.Generator) -> None:
    x, y, chosen = (
        random.standard_normal((4, 3, 2)),
        random.standard_normal((4, 1)),
        np.array([0, 1, 0, -2.0]),
    )
    net, node = one_layer('type: "Filter" top: "u" top: "v"', x.shape, y.shape, (4, 1, 1))
    np.testing.assert_array_equal(forward(net, x0=x, x1=y, x2=chosen[:, None, None]), x[[1, 3]])
    np.testing.assert_array_equal(node.top[1].data, y[[1, 3]])
    dy = random.standard_normal((2, 3, 2))
    node.top[1].diff[...] = 5
    dx, d1, _ = backward(node, dy, [True, True, False])
    expected = np.zeros_like(x)
    expected[[1, 3]] = dy
    np.testing.assert_array_equal(dx, expected)
    np.testing.assert_array_equal(d1, [[0], [5], [0], [5]])


def test_what_is_behind_a_filter_follows(random: np.random.Generator) -> None:
    net = load_net("""
        force_backward: true
        layer { name: "x" type: "Input" top: "x" top: "s" input_param { shape { dim: 4 dim: 3 } shape { dim: 4 } } }
        layer { name: "f" type: "Filter" bottom: "x" bottom: "s" top: "f" }
        layer { name: "i" type: "InnerProduct" bottom: "f" top: "i" inner_product_param {
                num_output: 2 weight_filler { type: "gaussian" } } }
        layer { name: "l" type: "Reduction" bottom: "i" top: "l" loss_weight: 2 reduction_param { operation: SUM } }
    """, dtype="f64")  # fmt: skip
    w = net.weights["i"][0].data
    for chosen in ([1, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 0]):
        x = random.standard_normal((4, 3))
        rows = np.flatnonzero(chosen)
        loss = net.forward(x=x, s=np.array(chosen))["l"]
        assert net.blobs["i"].shape == (len(rows), 2)
        np.testing.assert_allclose(loss, (x[rows] @ w.T).sum(), rtol=1e-12)
        net.clear_gradients()
        net.backward()
        np.testing.assert_allclose(net.weights["i"][0].diff, 2 * np.tile(x[rows].sum(0), (2, 1)), rtol=1e-12)
        np.testing.assert_allclose(net.blobs["x"].diff, np.array(chosen)[:, None] * 2 * w.sum(0), rtol=1e-12)
    with pytest.raises(InvalidArgument, match="chose none of 4 images"):
        net.forward(s=np.zeros(4))
    with pytest.raises(
        NotSupported, match=r"'f' \(Filter\) \(line 4\) has tops whose shapes are known in the forward"
    ):
        net.limit_memory("1 GiB")


def test_what_filter_refuses() -> None:
    with pytest.raises(InvalidArgument, match="need 1 tops, not 2"):
        one_layer('type: "Filter" top: "u" top: "v"', (4, 3), (4,))
    with pytest.raises(InvalidArgument, match="the selector is for 3 images"):
        one_layer('type: "Filter"', (4, 3), (3,))
    with pytest.raises(InvalidArgument, match=r"the selector has shape \(2, 2\)"):
        one_layer('type: "Filter"', (4, 3), (2, 2))


# ---- Python


def test_a_layer_written_in_python(folder: Path, random: np.random.Generator) -> None:
    net = load_net(NET, python_layers=folder, dtype="f64")
    a, b = random.standard_normal((2, 3, 2))
    assert net.forward(a=a, b=b)["d"] == pytest.approx(3 * ((a - b) ** 2).sum() / 3 / 2)
    net.backward()
    np.testing.assert_allclose(net.blobs["a"].diff, a - b, rtol=1e-12)
    np.testing.assert_allclose(net.blobs["b"].diff, b - a, rtol=1e-12)
    with pytest.raises(ValueError, match="counts differ"):
        net.reshape(b=(2, 2))


def test_a_python_layer_that_grows(folder: Path) -> None:
    text = """
        layer { name: "g" type: "Python" top: "g" python_param { module: "problem" layer: "Growing" } }
        layer { name: "s" type: "Reduction" bottom: "g" top: "s" loss_weight: 1 }
    """
    net = load_net(text, "TRAIN", python_layers=folder)
    sums = [float(net.forward()["s"]) for _ in range(3)]
    assert sums == [2 * 1, 2 * 3, 2 * 6]  # two rows in the first pass: there was a reshape when it was built
    net.backward()
    np.testing.assert_array_equal(net.weights["g"][0].diff, [6, 6])
    assert float(load_net(text, python_layers=folder).forward()["s"]) == 2 * 2


def test_a_solver_with_python_layers(folder: Path) -> None:
    text = """
        base_lr: 0.1 lr_policy: "fixed" snapshot_after_train: false max_iter: 2
        net_param { layer { name: "g" type: "Python" top: "g" loss_weight: 1
                            python_param { module: "problem" layer: "Growing" } } }
    """
    solver = load_solver(text, python_layers=folder)
    before = solver.net.weights["g"][0].data.copy()
    solver.step(1)
    np.testing.assert_allclose(solver.net.weights["g"][0].data, before - 0.1 * 1, rtol=1e-6)
    with pytest.raises(NotSupported, match="unless you allow the folder"):
        load_solver(text)


def test_python_layers_come_from_the_allowed_folder_alone(folder: Path) -> None:
    with pytest.raises(NotSupported, match="code that a net names is never run unless you allow the folder"):
        load_net(NET)
    below = folder / "below"
    below.mkdir()
    (below / "link.py").symlink_to(folder / "problem.py")
    for module, match in (
        ("os", "has no module 'os'"),
        ("json.decoder", "has no module"),
        ("problem", "has no module 'problem'"),
        ("../problem", "must be names of Python"),
        ("link", "has no module 'link'"),
        ("", "must be names of Python"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            load_net(NET.replace('"problem"', f'"{module}"'), python_layers=below)
    for name in ("None", "np", "missing"):
        with pytest.raises(InvalidArgument, match=f"has no class '{name}'"):
            load_net(NET.replace('"Distance"', f'"{name}"'), python_layers=folder)
