"""Pictures of all kinds, and what strangers pack: bombs, links, names that lead out."""

from __future__ import annotations

import io
import itertools
import os
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data import Options, containers
from jitdnn.studio.data.containers import Folder, Zip, open_container
from jitdnn.studio.data.drawing import drawn
from jitdnn.studio.data.entries import Entry, Listing
from jitdnn.studio.data.pictures import fit_of, open_picture, picture
from jitdnn.studio.data.readers import Rows
from jitdnn.studio.data.scan import scan
from jitdnn.studio.data.sheets import sheet, tile
from jitdnn.studio.data.sources import list_source
from studio_pictures import classes, png, write_files, write_zip


def stored(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)  # type: ignore[arg-type]
    return file.getvalue()


# ---- fitting


@pytest.mark.parametrize(
    ("mode", "scale", "offset"),
    [
        ("squash", (0.2, 0.4), (0, 0)),
        ("crop", (0.4, 0.4), (-10, 0)),
        ("fill", (0.2, 0.2), (0, 5)),
        ("half", (4 / 15, 4 / 15), (-10 / 3, 10 / 3)),
    ],
)
def test_the_four_ways_to_fit(mode: str, scale: tuple[float, float], offset: tuple[float, float]) -> None:
    fit = fit_of((100, 50), Options(20, 20, mode=mode))
    np.testing.assert_allclose(fit.scale, scale)
    np.testing.assert_allclose(fit.offset, offset, atol=1e-12)
    # left half black, right half white: the edge stays in the middle, and bars are of the picture's mean
    image = np.zeros((50, 100), np.uint8)
    image[:, 50:] = 254
    found = picture(stored(Image.fromarray(image)), Options(20, 20, mode=mode, grey=True))[0].astype(int)
    assert found.shape == (20, 20)
    assert (found[10, :9] < 20).all()
    assert (found[10, 11:] > 230).all()
    bar = {"squash": 0, "crop": 0, "fill": 5, "half": 3}[mode]
    assert (abs(found[:bar] - 127) <= 1).all()
    assert (abs(found[20 - bar :] - 127) <= 1).all()
    assert (found[bar, :8] < 127).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 1), (3, 7)])
@pytest.mark.parametrize("mode", ["squash", "crop", "fill", "half"])
def test_odd_sizes(size: tuple[int, int], mode: str) -> None:
    for height, width in ((1, 1), (5, 2), (9, 30)):
        assert picture(png(1, size), Options(height, width, mode=mode)).shape == (3, height, width)


def test_boxes_of_a_fit_are_cut_off_at_its_edges() -> None:
    fit = fit_of((100, 50), Options(20, 20, mode="crop"))
    np.testing.assert_allclose(
        fit.boxes(np.array([[0, 0, 50, 25], [25, 0, 75, 50]])), [[0, 0, 0.5, 0.5], [0, 0, 1, 1]]
    )


# ---- kinds of pictures


def test_channels_are_blue_green_red() -> None:
    image = Image.new("RGB", (4, 4), (10, 20, 30))
    assert picture(stored(image), Options(4, 4))[:, 0, 0].tolist() == [30, 20, 10]
    assert picture(stored(image), Options(4, 4, grey=True)).shape == (1, 4, 4)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "PPM", "WEBP", "GIF", "TIFF"])
def test_formats(form: str) -> None:
    image = Image.new("RGB", (8, 8), (200, 100, 50))
    assert abs(picture(stored(image, form), Options(4, 4))[:, 2, 2].astype(int) - [50, 100, 200]).max() <= 6


def test_what_a_camera_says_of_up_and_down() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:2, :3] = 250  # the upper left corner
    exif = Image.Exif()
    for orientation, corner in [(1, (0, 0)), (3, (3, 5)), (6, (0, 3)), (8, (5, 0))]:
        exif[0x0112] = orientation
        image = open_picture(stored(Image.fromarray(pixels), "PNG", exif=exif.tobytes()))
        found = np.asarray(image.convert("L"))
        assert found.shape == ((4, 6) if orientation in (1, 3) else (6, 4))
        assert found[corner] == 250


def test_sixteen_bits_palettes_and_what_shows_through() -> None:
    deep = Image.fromarray((np.arange(16, dtype=np.uint16) * 4096).reshape(4, 4))
    assert picture(stored(deep), Options(4, 4, grey=True)).ravel().tolist() == [16 * k for k in range(16)]
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert (picture(stored(clear), Options(4, 4)) == 255).all()  # white paper
    palette = Image.new("RGB", (4, 4), (0, 0, 255)).quantize(4)
    assert picture(stored(palette), Options(4, 4))[:, 0, 0].tolist() == [255, 0, 0]
    bits = Image.new("1", (4, 4), 1)
    assert (picture(stored(bits), Options(4, 4)) == 255).all()


@pytest.mark.parametrize(
    "content", [b"", b"PNG", png(1)[:60], b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe"]
)
def test_what_is_no_picture(content: bytes) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read as a picture"):
        picture(content, Options())


def test_a_small_file_cannot_ask_for_much_memory() -> None:
    bomb = stored(Image.new("1", (9000, 9000)))
    assert len(bomb) < 20_000
    with pytest.raises(InvalidArgument, match="9000 x 9000 pixels by its header"):
        picture(bomb, Options())


# ---- containers


def test_names_in_zip_files_do_not_lead_out(tmp_path: Path) -> None:
    files = {"a/1.png": png(1), "../evil.png": png(2), "/abs.png": png(3), "a/../../x.png": png(4)}
    files["a\\..\\b.png"] = png(5)
    files |= {"__MACOSX/a/1.png": b"x", "a/.hidden.png": b"x"}
    path = write_zip(tmp_path / "p.zip", files)
    link = zipfile.ZipInfo("a/link.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    packed = Zip(path)
    assert packed.names() == ["a/1.png"]
    assert packed.read("a/1.png") == png(1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["p.zip"]


def test_links_in_folders_are_not_followed(tmp_path: Path) -> None:
    write_files(tmp_path, {"out/secret.png": png(1), "in/a/1.png": png(2)})
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "a" / "link.png").symlink_to(tmp_path / "out" / "secret.png")
    os.mkfifo(tmp_path / "in" / "a" / "pipe.png")
    folder = Folder(tmp_path / "in")
    assert "folder/secret.png" not in folder.names()
    with pytest.raises(InvalidArgument, match="cannot be read"):
        folder.read("a/link.png")
    with pytest.raises(InvalidArgument, match="no regular file"):
        folder.read("a/pipe.png")
    assert folder.read("a/1.png") == png(2)


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = write_zip(tmp_path / "p.zip", {"a/1.png": bytes(40 << 20)}, compression=zipfile.ZIP_DEFLATED)
    assert zeros.stat().st_size < 100_000
    with pytest.raises(InvalidArgument, match="unpacks to more than it may"):
        Zip(zeros).read("a/1.png")
    several = write_zip(tmp_path / "q.zip", {f"a/{k}.png": bytes(1000) for k in range(10)})
    monkeypatch.setattr(containers, "ALL_BYTES", 5000)
    with pytest.raises(InvalidArgument, match="unpacks to 10,000 bytes"):
        Zip(several)
    monkeypatch.setattr(containers, "ALL_BYTES", 4 << 30)
    packed = Zip(several)
    monkeypatch.setattr(containers, "ALL_BYTES", 5000)  # whatever the directory of the file said
    with pytest.raises(InvalidArgument, match="zip bomb"):
        list(map(packed.read, packed.names()))
    monkeypatch.setattr(containers, "MOST_FILES", 9)
    with pytest.raises(InvalidArgument, match="10 files are more than 9"):
        Zip(several)


@pytest.mark.parametrize("cut", [10, 200, 500])
def test_damaged_zip_files(tmp_path: Path, cut: int) -> None:
    content = write_zip(tmp_path / "p.zip", classes({"a": 3, "b": 3})).read_bytes()
    (tmp_path / "p.zip").write_bytes(content[:-cut])
    with pytest.raises(InvalidArgument, match="no zip file that can be read"):
        open_container(tmp_path / "p.zip")
    flipped = bytearray(content)
    flipped[60:90] = bytes(30)
    (tmp_path / "p.zip").write_bytes(flipped)
    listing = list_source(str(tmp_path / "p.zip"), Options())
    with pytest.raises(InvalidArgument, match=r"0\.png"):
        listing.reader.read(listing.entries[0])


def test_what_is_nowhere(tmp_path: Path) -> None:
    for path in (tmp_path / "none", "x" * 5000):
        with pytest.raises(InvalidArgument):
            list_source(str(path), Options())


# ---- the look before anything is made


def test_a_scan_tells_what_is_wrong(tmp_path: Path) -> None:
    files = classes({"many": 70, "few": 3}) | {"many/broken.png": b"!", "loose.png": png(999)}
    grey = {name: png(k, mode="L") for k, name in enumerate(classes({"x": 60, "y": 60}))}
    found = scan(str(write_files(tmp_path / "p", files)), Options(8, 8), seconds=20)
    assert found["counts"] == {"few": 3, "many": 71, "(no label yet)": 1}
    assert found["broken"][0][0] == "many/broken.png"
    notes = " | ".join(found["notes"])
    wanted = (
        "1 of the 75 looked at",
        "75 is few",
        "fewer than 10 of “few”",
        "24 times as many",
        "have no label yet",
    )
    for said in wanted:
        assert said in notes, notes
    assert found["obstacle"] == ""
    assert set(found["examples"]) == {"squash", "crop", "fill", "half"}
    assert Image.open(io.BytesIO(found["strip"])).size == (24 * 9 - 1, 4 * 9 - 1)
    assert sum(found["parts"].values()) == 75
    found = scan(str(write_files(tmp_path / "g", grey)), Options(8, 8))
    assert any("greyscale takes a third" in note for note in found["notes"])
    found = scan(str(write_files(tmp_path / "one", classes({"alone": 5}))), Options(8, 8))
    assert "only one class" in found["obstacle"]
    found = scan(str(write_files(tmp_path / "tiny", classes({"a": 3, "b": 3}))), Options(8, 8))
    assert found["parts"]["val"] == 0
    assert sum("too small for any image to go to" in note for note in found["notes"]) == 2


def test_a_scan_tells_of_sizes_that_do_not_fit(tmp_path: Path) -> None:
    files = {f"{label}/{k}.png": png(k, (300, 200)) for label in "ab" for k in range(3)}
    source = str(write_files(tmp_path, files))
    for side, said in [
        (16, "about 300 × 200: little is left"),
        (100, ""),
        (500, "making them larger adds nothing"),
    ]:
        notes = " ".join(scan(source, Options(side, side))["notes"])
        assert said in notes
        assert ("300 × 200" in notes) == bool(said)


def test_sources_of_plug_ins_are_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def reads(path: Path, options: Options) -> Listing | None:
        asked.append(path)
        if path.suffix != ".mine":
            return None
        data = np.zeros((4, 1, 2, 2), np.uint8)
        entries = [Entry(str(k), k, k % 2) for k in range(4)]
        return Listing("classification", entries, ["a", "b"], Rows(data, np.arange(4) % 2))

    monkeypatch.setattr(
        "jitdnn.studio.plugins.load", lambda group: {"mine": reads} if group == "data" else {}
    )
    found = list_source(str(tmp_path / "x.mine"), Options())
    assert (found.kind, len(found.entries)) == ("mine", 4)
    source = write_files(tmp_path / "p", classes({"a": 2, "b": 2}))
    assert list_source(str(source), Options()).kind == "a folder"
    assert asked == [tmp_path / "x.mine", source]


# ---- sheets


def test_sheets_show_what_there_is() -> None:
    bright = np.full((3, 4, 6), 200, np.uint8)
    bright[0] = 10  # blue
    page = np.asarray(Image.open(io.BytesIO(sheet([bright, bright[:1]], 2))))
    assert page.shape == (4, 13, 4)
    assert page[0, 0].tolist() == [200, 200, 10, 255]
    assert page[0, 6, 3] == 0
    large = tile(np.zeros((1, 300, 100), np.uint8), 60)
    assert large.shape == (60, 20, 1)
    signal = tile(np.linspace(-3, 5, 500, dtype=np.float32)[np.newaxis, np.newaxis])
    assert signal.shape == (32, 64, 1)
    rows = [np.flatnonzero(signal[:, column, 0]).mean() for column in range(64)]
    assert all(a >= b for a, b in itertools.pairwise(rows))  # it rises
    assert rows[0] >= 30
    assert rows[-1] <= 1
    flat = tile(np.zeros((2, 1, 3), np.float32))
    assert (flat > 0).any(axis=0).all()


def test_masks_and_boxes_are_drawn() -> None:
    image = np.full((1, 10, 10), 100, np.uint8)
    mask = np.zeros((10, 10), np.uint8)
    mask[2:4], mask[7] = 1, 255
    found = drawn(image, mask, "segmentation")
    assert found.shape == (3, 10, 10)
    assert (found[:, mask != 1] == 100).all()
    assert (found[:, mask == 1] != 100).any()
    boxes = np.full((3, 5), -1, np.float32)
    boxes[1] = [0, 0.2, 0.3, 0.8, 0.9]
    changed = (drawn(image, boxes, "detection") != 100).any(0)
    wanted = np.zeros((10, 10), bool)
    wanted[3:9, 2:8] = True
    wanted[4:8, 3:7] = False
    np.testing.assert_array_equal(changed, wanted)
