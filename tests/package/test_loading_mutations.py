"""Valid files and texts, damaged in many ways: each is read, or refused by an error of the library."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from damages import damage, only_typed_errors
from jitdnn.bench import report, suites
from jitdnn.caffe import NetParameter, SolverParameter, load_net, load_solver, parse, snapshot
from jitdnn.caffe.arrays import read_npy, read_npz
from jitdnn.errors import JitdnnError
from jitdnn.planner.store import Measurement, Store
from jitdnn.problems import parse as parse_problem
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.formulas import parse_formula
from paths import ROOT

NET = """name: "n" state { phase: TRAIN level: 1 }
layer { name: "d" type: "Data" top: "x" top: "label" include { phase: TRAIN }
        data_param { source: "%s" batch_size: 4 rand_skip: 3 }
        transform_param { crop_size: 6 mirror: true scale: 0.01 mean_value: [1, 2] } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" param { lr_mult: 1 } param { lr_mult: 2 name: "w" }
        convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 group: 2 weight_filler { type: "xavier" } } }
layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "l" type: "LRN" bottom: "p" top: "l" lrn_param { local_size: 3 alpha: 1e-4 } }
layer { name: "r" type: "ReLU" bottom: "l" top: "l" relu_param { negative_slope: 0.1 } }
layer { name: "o" type: "Dropout" bottom: "l" top: "l" dropout_param { dropout_ratio: 0.4 } }
layer { name: "f" type: "Flatten" bottom: "l" top: "f" }
layer { name: "i" type: "InnerProduct" bottom: "f" top: "i" inner_product_param { num_output: 3
        weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "s" type: "SoftmaxWithLoss" bottom: "i" bottom: "label" top: "s" loss_weight: 1.5 }
"""
SOLVER = (
    'lr_policy: "multistep" base_lr: 0.05 gamma: 0.5 stepvalue: [4, 8] momentum: 0.9 weight_decay: 1e-3 max_iter: 20 '
    "iter_size: 2 average_loss: 6 display: 4 random_seed: 1 snapshot_after_train: false solver_mode: CPU\n"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "d.npz"
    np.savez(path, data=rng.integers(0, 9, (10, 2, 8, 9), np.uint8), label=np.arange(10) % 3)
    return path


def test_nets_and_solvers(source: Path) -> None:
    net = NET % source

    def read(content: bytes) -> None:
        file = source.with_name("net.prototxt")
        file.write_bytes(content)
        if content.startswith(b"lr_policy"):
            load_solver(file)
        else:
            load_net(file, phase="TRAIN")

    damage((net.encode(), (SOLVER + f"net_param {{ {net} }}").encode()), 500, read)


def test_messages() -> None:
    """The parser alone, over far more texts."""
    net = (NET % "d.npz").encode()

    def read(content: bytes) -> None:
        text = content.decode("utf-8", "replace")
        parse(text, SolverParameter if text.startswith("lr_policy") else NetParameter)

    damage((net, SOLVER.encode() + b"net_param {" + net + b"}"), 1500, read)


def _saved(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def test_archives(tmp_path: Path) -> None:
    arrays = {
        "a/0": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a/1": np.zeros((), "i2"),
        "b": np.ones(9, ">f8"),
    }
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    single = io.BytesIO()
    np.save(single, np.arange(12).reshape(3, 4))

    def read(content: bytes) -> None:
        path = tmp_path / "a"
        path.write_bytes(content)
        (read_npy if content.startswith(b"\x93") else read_npz)(path)

    damage((_saved(**arrays), packed.getvalue(), single.getvalue()), 1000, read)


def test_weights_in_archives_leave_a_net_whole(tmp_path: Path) -> None:
    net = load_net(
        'input: "x" input_shape { dim: [2, 3] }\n'
        'layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 4 } }\n'
        'layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 2 } }'
    )
    ones = {parameter.name: np.ones_like(parameter.blob.data) for parameter in net.parameters}
    path = tmp_path / "w.npz"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        for parameter in net.parameters:
            parameter.blob.data.fill(7)
        try:
            net.load_weights(path)
        except JitdnnError:
            assert all((parameter.blob.data == 7).all() for parameter in net.parameters)

    damage((_saved(**ones),), 500, read)


def test_snapshots(source: Path) -> None:
    """With their checksums made anew: damage alone never comes so far."""
    solver = load_solver(SOLVER + f"net_param {{ {NET % source} }}")
    solver.step(1)
    path = source.with_name("a.jdsnap")
    good = solver.snapshot(path).read_bytes()
    solver.step(1)
    end = 16 + int.from_bytes(good[8:16], "little")

    def read(content: bytes) -> None:
        if content.startswith(b"JDSNAP1\n"):
            body = content[:-32]
        else:
            body = b"JDSNAP1\n" + len(content).to_bytes(8, "little") + content + good[end:-32]
        path.write_bytes(body + hashlib.sha256(body).digest())
        snapshot.read(path)
        before = [json.dumps([layer.state() for layer in solver.net.layers]), solver.iteration]
        try:
            solver.restore(path)
        except JitdnnError:
            assert before == [json.dumps([layer.state() for layer in solver.net.layers]), solver.iteration]

    damage((good, good[16:end]), 400, read)


def test_exports_suites_and_rows(tmp_path: Path) -> None:
    row = Measurement("conv_fwd n1", "", "cpu", "0.1", "gemm", 1, 0.25, 64, 1.5)
    export = "".join(
        json.dumps(dict(zip(Measurement.__slots__, row.values(), strict=True)) | {"algorithm": name}) + "\n"
        for name in "ab"
    )
    path = tmp_path / "file"
    store = Store(None)

    def merge(content: bytes) -> None:
        path.write_bytes(content)
        count = len(store.rows())
        try:
            store.merge(path)
        except JitdnnError:
            assert len(store.rows()) == count

    damage((export.encode(),), 400, merge)
    columns = ",".join(suites.COLUMNS)
    table = f"{columns}\nnet,l1,8,16,1,28,28,32,1,3,3,0,1,1,1,1,1,1,1,1,2,4\n"
    listed = (
        "# a comment\nnet:l1*4 conv_fwd n8 c64 h56 w56 k64 r3 s3 stride1 pad1 f32 nchw\nmatmul m3 n4 k5 f32\n"
    )

    def suite(content: bytes) -> None:
        name = path.with_suffix(".csv" if content.startswith(b"suite") else ".txt")
        name.write_bytes(content)
        suites.load(str(name))

    damage((table.encode(), listed.encode()), 400, suite)

    def rows(content: bytes) -> None:
        path.write_bytes(content)
        report.read_rows(path)

    damage(
        (b'{"problem": "matmul m3 n4 k5 f32", "network": "", "name": "", "count": 1, "peers": {}}\n',),
        500,
        rows,
    )


def test_images(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    picture = pillow.fromarray(np.random.default_rng(0).integers(0, 255, (12, 10, 3), np.uint8))
    files = []
    for kind, mode in (
        ("PNG", "RGB"),
        ("PNG", "P"),
        ("PNG", "I;16"),
        ("JPEG", "RGB"),
        ("BMP", "RGB"),
        ("PPM", "L"),
    ):
        stream = io.BytesIO()
        (picture.convert("L").convert("I").convert(mode) if mode == "I;16" else picture.convert(mode)).save(
            stream, kind
        )
        files.append(stream.getvalue())
    (tmp_path / "i" / "class").mkdir(parents=True)
    path = tmp_path / "i" / "class" / "a.png"
    net = f'layer {{ name: "d" type: "Data" top: "x" data_param {{ source: "{tmp_path}/i" batch_size: 1 }} }}'

    def read(content: bytes) -> None:
        path.write_bytes(content)
        load_net(net)

    damage(tuple(files), 800, read)


def test_problem_strings() -> None:
    """One of every kind, as the pages of the operations show them."""
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    first = {text.split()[0]: text for text in re.findall(r"`((?:\w+) [^`\n]*\d[^`\n]*)`", pages)}
    texts = tuple(text.encode() for kind, text in first.items() if kind in Problem.registry)
    assert len(texts) > 30
    damage(texts, 3000, lambda content: parse_problem(content.decode("latin-1")))


@given(
    st.sampled_from(sorted(Problem.registry)),
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    "f32",
                    "f16",
                    "nhwc",
                    "max",
                    "avg",
                    "linear",
                    "spatial",
                    "accurate",
                    "shape4x3x2",
                    "axis1",
                    "x=s1",
                    "y=nhwc",
                    "relu",
                ]
            ),
            st.from_regex(
                r"\A(n|c|h|w|k|r|s|m|t|d|g|shape|pad|stride|window|out|axis|size|p)-?[0-9]{1,25}(x[0-9]{1,3})?\Z"
            ),
            st.text(max_size=8),
        ),
        max_size=10,
    ),
)
@settings(max_examples=300, deadline=None)
def test_words_of_problem_strings(kind: str, words: list[str]) -> None:
    text = " ".join([kind, *words])
    with only_typed_errors(text):
        parse_problem(text)


PAGES = ROOT / "docs" / "ops"
FORMULAS = (
    "x, y: t = exp(x); t + y, t * y",
    "where(a < 3.5e-2, a * b ** 2, -a // (1 + b)) % 7",
    "x: u = (x > 0) & ~(x < 1) | (x == 2); where(u, gelu(x), min(x, pi)) - max(x, 1_000)",
)


def test_formulas() -> None:
    damage(
        tuple(text.encode() for text in FORMULAS),
        3000,
        lambda content: parse_formula(content.decode("latin-1")),
    )


@given(st.text(alphabet="xyt01.e(),;:=<>!&|~+-*/% \nnotexpπ'\"[]{}@\\_#", max_size=40))
@settings(max_examples=300, deadline=None)
def test_texts_as_formulas(text: str) -> None:
    with only_typed_errors(text):
        parse_formula(text)
