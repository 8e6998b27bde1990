"""What is loaded from files and texts: limits and what lies just beyond them, files that lie about their sizes, paths
that lead elsewhere, and nothing half done behind an error."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitdnn as jd
from jitdnn import limits
from jitdnn.caffe import NetParameter, SolverParameter, load_net, load_solver, parse
from jitdnn.caffe.arrays import read_npy, read_npz
from jitdnn.caffe.load import parse_file
from jitdnn.caffe.message import Message, sub
from jitdnn.errors import (
    InvalidArgument,
    InvalidShape,
    NotSupported,
    ParseError,
)

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 4 } }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 2 } }
"""


# ---- prototxt


class Recursive(Message):
    """A message that may hold itself, which none of Caffe's does."""


Recursive.inner = sub(Recursive)  # type: ignore[attr-defined]
Recursive.inner.__set_name__(Recursive, "inner")  # type: ignore[attr-defined]
Recursive.fields["inner"] = Recursive.inner  # type: ignore[attr-defined]


def test_messages_nest_so_deep_and_no_deeper() -> None:
    most = limits.PROTOTXT_DEPTH
    parse("inner {" * most + "}" * most, Recursive)
    with pytest.raises(ParseError, match=f"line 2, column 1: more than {most} messages inside of each other"):
        parse("inner {" * most + "inner\n{" + "}" * (most + 1), Recursive)
    with pytest.raises(ParseError, match="more than 100 messages"):
        parse("inner {" * 100_000, Recursive)


def test_no_message_of_caffe_holds_itself() -> None:
    def depth(kind: type[Message], around: tuple[type[Message], ...]) -> int:
        assert kind not in around
        inner = {field.message for field in kind.fields.values() if field.message is not None}
        return 1 + max((depth(one, (*around, kind)) for one in inner), default=0)

    assert depth(SolverParameter, ()) < 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name: "' + "a" * 70_000 + '"', r"line 1, column 7: a string of 70,002 characters: at most 65,536"),
        ("name: " + '"abcd" ' * 70_000, r"name: at most 65,536 characters"),
        ("a" * 70_000 + ": 1", r"line 1, column 1: a word of 70,000 characters"),
        ("a" * 60_000 + ": 1", r"unknown field 'a{60}'\.\.\. \(60,000 characters\) in NetParameter$"),
        ("input_dim: " + "1" * 70_000, r"column 12: a number of 70,000 characters"),
        ("input_dim: " + "1" * 5_000, r"an integer of 5000 characters is out of every range"),
        ('name: "' + "\\a" * 40_000, r"column 7: this string is not closed"),
        ("force_backward: " + "t" * 60_000, r"not 't{60}'\.\.\. "),
    ],
)
def test_long_words_are_refused_in_short_messages(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        parse(text, NetParameter)
    assert len(str(caught.value)) < 500


def test_fields_and_entries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROTOTXT_VALUES", 5)
    parse("input_dim: [1, 2, 3] name: 'a'", NetParameter)
    with pytest.raises(ParseError, match=r"line 1, column 29: more than 5 fields and entries"):
        parse("input_dim: [1, 2, 3, 4, 5,  6]", NetParameter)
    with pytest.raises(ParseError, match="more than 5 fields"):
        parse("name: 'a' 'b' 'c' 'd' 'e' 'f'", NetParameter)
    with pytest.raises(ParseError, match="more than 5 fields"):
        parse("input_shape {}" * 6, NetParameter)


def test_a_text_is_read_in_time_and_memory_in_proportion_to_it() -> None:
    """Comments, empty lines and escapes by the million: patterns that try again what they have matched would take
    memory for each of them."""
    for text in ("#\n" * 1_000_000, "\n" * 3_000_000, " #" * 1_000_000):
        assert not list(parse(text, NetParameter).present())


def test_files_have_a_greatest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "net.prototxt"
    file.write_text(NET)
    parse_file(file, NetParameter)
    monkeypatch.setattr(limits, "PROTOTXT_BYTES", len(NET) - 1)
    with pytest.raises(
        InvalidArgument, match=r"net\.prototxt has more than .* bytes, the most that a net or solver"
    ):
        parse_file(file, NetParameter)
    with pytest.raises(ParseError, match="characters: at most"):
        load_net(NET)
    if os.path.exists("/dev/zero"):
        with pytest.raises(InvalidArgument, match="/dev/zero has more than"):
            load_net(Path("/dev/zero"))


def test_nets_have_a_greatest_number_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NET_LAYERS", 2)
    with pytest.raises(InvalidArgument, match=r"this net has 3 layers .* at most 2"):
        load_net(NET)


def test_layers_that_are_code_are_refused_by_name() -> None:
    with pytest.raises(
        NotSupported, match=r"layer 'p' \(line 3\) is a layer of Python: code that a net names is never run"
    ):
        load_net(
            """
            input: "x" input_shape { dim: 2 }
            layer { name: "p" type: "Python" bottom: "x" top: "y"
                    python_param { module: "os" layer: "system" param_str: "true" } }
            """
        )
    with pytest.raises(NotSupported, match="code that a net names is never run"):
        load_net("layer { name: 'p' type: 'Python' }")


@pytest.mark.parametrize(
    "shape",
    [
        "dim: 9223372036854775807",
        "dim: 4294967296 dim: 4294967296",
        "dim: 1099511627776 dim: 3",
        "dim: 1 " * 40,
    ],
)
def test_shapes_that_no_memory_holds_are_refused(shape: str) -> None:
    net = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {shape} }} }} }}'
    with pytest.raises(
        InvalidShape, match=r"layer 'x'.*(takes .* bytes, and the setting load_limit|has 40 axes)"
    ):
        load_net(net)


def test_weights_that_no_memory_holds_are_refused() -> None:
    with jd.settings(load_limit="1 MiB"), pytest.raises(InvalidShape, match="load_limit"):
        load_net(NET.replace("num_output: 4", "num_output: 4000000000"))


@pytest.mark.parametrize(
    "name",
    [
        "a" * 5000,
        "~nobody-of-this-name/net",
        "net\0",
        "package:models//etc/passwd",
        "package:models/../../../pyproject.toml",
    ],
)
def test_names_of_files_that_are_none(name: str) -> None:
    with pytest.raises(InvalidArgument):
        load_solver(f'net: "{name}"' if "\0" not in name else 'net: "net\\0"')
    with pytest.raises(InvalidArgument):
        load_net(NET, weights=name)


# ---- arrays


def _npy(header: str, content: bytes = b"", version: bytes = b"\1\0") -> bytes:
    text = header.encode() + b"\n"
    return (
        b"\x93NUMPY" + version + struct.pack("<H" if version == b"\1\0" else "<I", len(text)) + text + content
    )


def _header(descr: str = "'<f4'", shape: str = "(2,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


@given(
    st.sampled_from(["<f4", ">f8", "<f2", "|u1", "<i8", ">u2", "|b1", "<c8"]),
    st.lists(st.integers(0, 4), max_size=5),
    st.booleans(),
)
def test_arrays_that_numpy_writes_are_read(dtype: str, shape: list[int], is_fortran: bool) -> None:
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    values = np.asfortranarray(values) if is_fortran else values
    stream = io.BytesIO()
    np.savez(stream, values)
    path = Path(_scratch("npz"))
    path.write_bytes(stream.getvalue())
    (read,) = read_npz(path).values()
    assert read.dtype == values.dtype
    assert read.shape == values.shape
    assert (read == values).all()


def _scratch(suffix: str) -> str:
    """A file of this process in memory, or beside the other temporary ones."""
    import tempfile

    return os.path.join(tempfile.gettempdir(), f"jitdnn-loading-{os.getpid()}.{suffix}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_npy(_header(shape="(1000000000000,)"), b"12345678"), "by its header, and has 8 bytes"),
        (_npy(_header(shape="(4294967296, 4294967296)")), "by its header, and has 0 bytes"),
        (_npy(_header(shape="(3,)"), b"12345678"), "by its header, and has 8 bytes"),
        (_npy(_header(shape="(1,)"), b"12345678"), "by its header, and has 8 bytes"),
        (_npy(_header(shape="(" + "1, " * 33 + ")"), b"1234"), "33 axes: at most 32"),
        (_npy(_header(shape="(-2,)"), b"12345678"), "its header is"),
        (_npy(_header(shape="(2.0,)"), b"12345678"), "its header is"),
        (_npy(_header("'|O'"), b"12345678"), "no Python objects"),
        (_npy(_header("[('a', '<f4')]"), b"12345678"), "its header is"),
        (_npy(_header(order="0"), b"12345678"), "its header is"),
        (_npy(_header(shape="(__import__('os').getpid(),)"), b"12345678"), "its header is"),
        (_npy("{" * 5000 + "}" * 5000), "its header is"),
        (_npy(" " * 20_000), "the header says that it has"),
        (_npy(_header(), b"12345678", b"\7\0"), "version 7.0"),
        (b"", "does not start with"),
        (b"\x93NUMPY\1\0\xff\xff", "does not start with|the header says"),
        (b"\x80\x04\x95", "does not start with"),
    ],
)
def test_arrays_that_lie_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(InvalidArgument, match=message):
        read_npy(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(InvalidArgument, match=message):
        read_npz(tmp_path / "a.npz")


def test_archives_that_unpack_to_too_much_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", data=np.zeros(1 << 20, np.float32), other=np.zeros(3))
    assert (tmp_path / "a.npz").stat().st_size < 10_000
    assert read_npz(tmp_path / "a.npz")["data"].nbytes == 4 << 20
    with (
        jd.settings(load_limit="4 MiB"),
        pytest.raises(InvalidArgument, match=r"load_limit .* allows 4,194,304"),
    ):
        read_npz(tmp_path / "a.npz")
    with jd.settings(load_limit="1 MiB"):
        assert list(read_npz(tmp_path / "a.npz", ["other"])) == ["other"]  # the rest is not unpacked


def test_archives_with_too_many_or_two_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("a.npy", "a.npy"):
            archive.writestr(name, _npy(_header(), b"12345678"))
    with pytest.raises(InvalidArgument, match="two arrays 'a'"):
        read_npz(tmp_path / "a.npz")
    monkeypatch.setattr(limits, "ARCHIVE_MEMBERS", 1)
    with pytest.raises(InvalidArgument, match="has 2 arrays: at most 1"):
        read_npz(tmp_path / "a.npz")


def test_members_that_numpy_does_not_write(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
            archive.writestr("a.npy", _npy(_header(), b"12345678"))
        with pytest.raises(InvalidArgument, match="packed in a way"):
            read_npz(tmp_path / "a.npz")


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", data=np.array([_Trap()], object))
    with pytest.raises(InvalidArgument, match="no Python objects"):
        read_npz(tmp_path / "a.npz")
    assert not _sprung


_sprung: list[int] = []


class _Trap:
    def __reduce__(self) -> Any:
        return _sprung.append, (1,)


# ---- images

pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")


def _folder(tmp_path: Path, content: bytes, name: str = "a.png") -> Any:
    (tmp_path / "images" / "class").mkdir(parents=True, exist_ok=True)
    (tmp_path / "images" / "class" / name).write_bytes(content)
    return lambda: load_net(
        f'layer {{ name: "d" type: "Data" top: "x" data_param {{ source: "{tmp_path}/images" batch_size: 1 }} }}'
    )


def _png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_images_that_declare_too_much_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width, height in ((50_000, 50_000), (9_000, 9_000), (2**31 - 1, 2**31 - 1)):
        with pytest.raises(InvalidArgument, match=r"a\.png (has .* pixels|cannot be read)"):
            _folder(tmp_path, _png(width, height, b"\0"))()
    assert _folder(tmp_path, _png(3, 2, b"\x00123\x00456"))().blobs["x"].shape == (1, 1, 2, 3)
    monkeypatch.setattr(limits, "IMAGE_PIXELS", 5)
    with pytest.raises(InvalidArgument, match="has 3 x 2 pixels by its header: at most 5"):
        _folder(tmp_path, _png(3, 2, b"\x00123\x00456"))()
    monkeypatch.setattr(limits, "IMAGE_BYTES", 20)
    with pytest.raises(InvalidArgument, match="more than 20 bytes, the most that an image"):
        _folder(tmp_path, _png(3, 2, b"\x00123\x00456"))()


def test_other_formats_are_not_tried_whatever_a_file_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostScript is a program, and pillow has it run by Ghostscript where that is installed."""
    from PIL import EpsImagePlugin

    run: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given: run.append(given))
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(InvalidArgument, match=r"a\.png cannot be read as an image"):
        _folder(tmp_path, program)()
    assert not run
    stream = io.BytesIO()
    pillow.new("L", (3, 3)).save(stream, "GIF")
    with pytest.raises(InvalidArgument, match=r"a\.png cannot be read as an image"):
        _folder(tmp_path, stream.getvalue())()


# ---- how the limits are told


def test_every_limit_is_in_the_table_and_is_a_constant() -> None:
    constants = {name for name, value in vars(limits).items() if name.isupper() and isinstance(value, int)}
    assert {row.name for row in limits.TABLE} == constants
    errors = {name for row in limits.TABLE for name in row.error.split(", ")}
    assert errors <= set(dir(jd.errors))
