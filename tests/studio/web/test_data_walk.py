"""Own images in a real browser: dropped, looked at, made, found in the gallery, labels mended, a version made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from studio_browser import Browser, chromium, findings, running
from studio_pictures import classes, png, write_zip

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium on this system")
expect = sync_api.expect


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(tmp_path_factory.mktemp("home")) as server, sync_api.sync_playwright() as play:
        made = Browser(play, server)
        yield made
        made.browser.close()


def checked(page: Any) -> None:
    """Axe finds nothing in light and dark, and nothing sticks out."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert findings(page) == []
    page.emulate_media(color_scheme="light")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def dataset(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of a data set of two classes with a copy."""
    files = classes({"daisy": 30, "tulip": 30}) | {"daisy/copy.png": png(0)}
    source = write_zip(tmp_path_factory.mktemp("images") / "pictures.zip", files)
    page = browser.page()
    page.goto(f"{browser.server.base}/data/new")
    page.set_input_files("input[type=file]", source)
    page.get_by_role("button", name="Make the data set").click(timeout=60_000)
    expect(page.locator("#sheets img").first).to_be_visible(timeout=60_000)
    number = int(page.url.rsplit("/", 1)[1])
    page.context.close()
    return number


def test_own_images_from_a_file_to_a_version(browser: Browser, tmp_path: Path) -> None:
    files = classes({"daisy": 30, "tulip <b>": 30}) | {"daisy/broken.png": b"!", "daisy/copy.png": png(0)}
    source = write_zip(tmp_path / "flowers & more.zip", files)
    page = browser.page()
    page.goto(f"{browser.server.base}/data/new")
    page.set_input_files("input[type=file]", source)
    expect(page.locator("#scan h2").first).to_contain_text("2 classes, 62 images", timeout=60_000)
    expect(page.locator("#scan")).to_contain_text("1 of the 62 looked at cannot be read")
    checked(page)
    token = page.locator("#scan [name=upload]").input_value()
    assert (
        page.locator("input[type=file]").evaluate("field => field.files.length") == 0
    )  # it is not sent again
    with page.expect_response("**/data/scan") as answered:
        page.get_by_role("radiogroup", name="Fitting").get_by_text("Crop", exact=True).click()
    assert answered.value.status == 200
    expect(page.locator("#scan [name=upload]")).to_have_value(token)
    page.get_by_role("textbox", name="Name", exact=True).fill("Flowers")
    page.get_by_role("button", name="Make the data set").click()
    expect(page.locator("#sheets img").first).to_be_visible(timeout=60_000)
    number = int(page.url.rsplit("/", 1)[1])
    checked(page)

    # an image that is clicked on a sheet is the one that is shown
    sheet = page.locator("#sheets img").first
    sheet.evaluate("image => image.decode()")
    box = sheet.bounding_box()
    assert box is not None
    seventh = {"x": box["width"] * 6.5 / 25, "y": box["height"] * 0.5 / 2}
    with page.expect_navigation():
        sheet.click(position=seventh)
    assert page.url.endswith(f"/data/{number}/images/train/6")
    expect(page.locator(".large-picture")).to_be_visible()
    checked(page)
    was = page.locator("#labels [aria-pressed=true]").inner_text()
    with page.expect_navigation():
        page.keyboard.press("2" if "daisy" in was else "1")
    expect(page.locator("#labels [aria-pressed=true]")).not_to_have_text(was)
    with page.expect_navigation():
        page.keyboard.press("ArrowRight")
    assert page.url.endswith("/images/train/7")

    for path in ("/about", "/duplicates", "/changes", "?view=list"):
        page.goto(f"{browser.server.base}/data/{number}{path}")
        checked(page)
    page.goto(f"{browser.server.base}/data/{number}/duplicates")
    page.get_by_role("button", name="Leave the copies out").click()
    expect(page.locator("main h2")).to_contain_text("2 images changed")
    page.get_by_role("button", name="Undo").first.click()
    expect(page.locator("main h2")).to_contain_text("1 image changed")
    page.get_by_role("button", name="Make a new version").click()
    expect(page.locator("h1")).to_have_text("Flowers, mended")
    with page.expect_navigation():
        page.get_by_text(re.compile("tulip")).first.click()
    assert "label=1" in page.url
    page.fill("#filter", "tulip <b>/12.png")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("q="))
    assert browser.complaints() == []
    page.context.close()


def test_a_thousand_classes(browser: Browser, tmp_path: Path) -> None:
    names = [f"class {at:04} ü" for at in range(1000)]
    source = write_zip(tmp_path / "many.zip", classes(dict.fromkeys(names, 3)))
    page = browser.page()
    page.goto(f"{browser.server.base}/data/new")
    page.set_input_files("input[type=file]", source)
    expect(page.locator("#scan h2").first).to_contain_text("1\u2009000 classes", timeout=120_000)
    page.get_by_role("button", name="Make the data set").click()
    expect(page.locator("#sheets img").first).to_be_visible(timeout=120_000)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    number = int(page.url.rsplit("/", 1)[1])
    page.goto(f"{browser.server.base}/data/{number}?label=999")
    expect(page.locator("#sheets")).to_be_visible()
    page.goto(f"{browser.server.base}/data/{number}/about")
    expect(page.get_by_text("class 0999 ü").first).to_be_attached()
    checked(page)
    page.goto(f"{browser.server.base}/train?dataset={number}&net=vgg_small")
    expect(page.locator("#verdict.good")).to_be_visible(timeout=60_000)
    assert browser.complaints() == []
    page.context.close()


def test_data_sets_on_a_phone(browser: Browser, dataset: int) -> None:
    page = browser.phone()
    for path in (
        "/data",
        "/data/new",
        f"/data/{dataset}",
        f"/data/{dataset}/about",
        f"/data/{dataset}/images/train/0",
        f"/data/{dataset}/duplicates",
    ):
        page.goto(browser.server.base + path)
        checked(page)
    assert browser.complaints() == []
    page.context.close()


def test_a_sheet_is_what_it_says(browser: Browser, dataset: int, tmp_path: Path) -> None:
    page = browser.page()
    answer = page.request.get(f"{browser.server.base}/data/{dataset}/sheet.png?count=50&columns=25")
    (tmp_path / "sheet.png").write_bytes(answer.body())
    assert np.asarray(Image.open(tmp_path / "sheet.png")).shape[:2] == (2 * 29 - 1, 25 * 29 - 1)
    page.context.close()
