"""`jitdnn run`: models of ONNX on images and arrays, and what is wrong with them in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.cli.app import main

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

rng = np.random.default_rng(4)
W = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)


def model(path: Path, shape: tuple[Any, ...] = (1, 3, 8, 10), last: bool = False) -> Path:
    """relu(conv(x)), and the mean of all; with the channels last a transposition before."""
    first = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])] if last else []
    nodes = [
        *first,
        helper.make_node("Conv", ["t" if last else "x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["m"], keepdims=0),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, ("n", 4, "h", "w")), info("m", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(W, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    made.ir_version = 8
    path.write_bytes(made.SerializeToString())
    return path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["run", *map(str, arguments)])
    return int(ended.value.code or 0)


def expected(x: Any) -> Any:
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.maximum(np.einsum("nchwrs,kcrs->nkhw", windows, W), 0.0)


def test_arrays_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = rng.standard_normal((1, 3, 8, 10)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    np.save(tmp_path / "in.npy", x)
    file = model(tmp_path / "m.onnx")
    for given in (tmp_path / "in.npz", tmp_path / "in.npy", f"x={tmp_path / 'in.npy'}"):
        out = tmp_path / "out.npz"
        assert run(file, "--input", given, "--output", out, "--threads", 1) == 0
        with np.load(out) as results:
            np.testing.assert_allclose(results["y"], expected(x), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(results["m"], expected(x).mean(), rtol=1e-4)
    assert "1x4x8x10" in capsys.readouterr().out


def test_a_trace_and_an_account(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3, 8, 10), np.float32))
    trace = tmp_path / "trace.json"
    file = model(tmp_path / "m.onnx")
    assert run(file, "--input", tmp_path / "x.npy", "--profile", trace, "--explain", "--repeat", 3) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    said = capsys.readouterr().out
    assert "median of 3 runs" in said
    assert "Conv" in said


@pytest.mark.parametrize("last", [False, True])
def test_images(tmp_path: Path, last: bool) -> None:
    """Resized to what the model declares, from 0 to 1 less the mean, in the model's order of axes."""
    images = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    images.fromarray(np.full((16, 20, 3), (255, 51, 0), np.uint8)).save(tmp_path / "x.png")
    shape = (1, 8, 10, 3) if last else (1, 3, 8, 10)
    out = tmp_path / "y.npz"
    file = model(tmp_path / "m.onnx", shape, last)
    assert (
        run(file, "--input", tmp_path / "x.png", "--mean", "0.5,0.1,0", "--std", "0.5", "--output", out) == 0
    )
    x = np.broadcast_to(np.float32([1.0, 0.2, 0.0])[None, :, None, None], (1, 3, 8, 10))
    with np.load(out) as results:
        np.testing.assert_allclose(results["y"], expected(x), rtol=1e-4, atol=1e-5)


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3, 8, 10), np.float32))
    np.save(tmp_path / "small.npy", np.ones((1, 3, 8, 9), np.float32))
    np.savez(tmp_path / "z.npz", z=np.ones(3))
    file, x = model(tmp_path / "m.onnx"), tmp_path / "x.npy"
    flat = model(tmp_path / "flat.onnx", ("n", 3, "h", "w"))
    flat_bytes = tmp_path / "no.png"
    flat_bytes.write_bytes(b"no image")
    wrong: list[tuple[list[object], str]] = [
        ([file], "x"),
        ([tmp_path / "none.onnx"], "none.onnx"),
        ([file, "--input", tmp_path / "small.npy"], "(1, 3, 8, 10)"),
        ([file, "--input", tmp_path / "z.npz"], "z"),
        ([file, "--input", x, "--input", x], "no more inputs"),
        ([file, "--input", f"x={tmp_path / 'z.npz'}"], "names of its own"),
        ([flat, "--input", flat_bytes], "no.png"),
        ([file, "--input", x, "--size", "4"], "--size"),
        ([file, "--input", x, "--mean", "a"], "--mean"),
        ([file, "--input", x, "--std", "0"], "--std"),
        ([file, "--input", x, "--output", tmp_path / "out.npy"], "2 outputs"),
        ([file, "--input", x, "--output", tmp_path / "no" / "out.npz"], "cannot be written"),
    ]
    for arguments, words in wrong:
        assert run(*arguments) == 1
        said = capsys.readouterr().err
        assert words in said
        assert len(said.strip().splitlines()) == 1
        assert "Traceback" not in said
