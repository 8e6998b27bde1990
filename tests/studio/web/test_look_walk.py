"""Pages about a trained net in a real browser: evaluation, a drawn digit, why, what units look for, export."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import studio_trained
from jitdnn.studio.data import open_dataset
from jitdnn.studio.look.pictures import image_png
from studio_browser import Browser, Server, chromium, findings, running

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium: apt-get install chromium")
expect = playwright.expect


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(studio_trained.digits().home) as started:
        yield started


@pytest.fixture(scope="module")
def browser(server: Server) -> Iterator[Browser]:
    with playwright.sync_playwright() as play:
        made = Browser(play, server)
        yield made
        made.browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Any:
    return browser.page()


@pytest.fixture(autouse=True)
def quiet(browser: Browser) -> Iterator[None]:
    """No page logs an error or a warning, or breaks the policy on content."""
    browser.complaints()
    yield
    assert browser.complaints() == []


def clean(page: Any) -> None:
    """Axe finds nothing in light and dark, and nothing is wider than the page."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_evaluation(server: Server, page: Any) -> None:
    page.goto(f"{server.base}/runs/1/evaluation")
    expect(page.get_by_role("heading", name="What was taken for what")).to_be_visible(timeout=60_000)
    page.wait_for_load_state("networkidle")
    clean(page)
    page.locator(".matrix td.miss a").first.click()
    expect(page.locator("h1")).to_contain_text("taken for")
    clean(page)
    page.get_by_role("link", name="Fix the label").first.click()
    expect(page.locator("#labels")).to_be_visible()


def test_a_drawn_digit(server: Server, page: Any) -> None:
    page.goto(f"{server.base}/runs/1/classify")
    expect(page.locator("#answer .best li")).to_have_count(5, timeout=60_000)
    clean(page)
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.8, steps=8)
    with page.expect_response(lambda answer: answer.url.endswith("/classify")):
        page.mouse.up()
    expect(page.locator("#answer .best .first b")).to_have_text("1")
    expect(page.locator("#answer")).not_to_contain_text("Truly")
    page.get_by_role("button", name="Another one").click()
    expect(page.locator("#answer")).to_contain_text("Truly")


def test_what_the_camera_sees_is_classified_until_it_is_stopped(server: Server, page: Any) -> None:
    page.context.grant_permissions(["camera"])
    page.goto(f"{server.base}/runs/1/classify")
    expect(page.locator("#answer")).to_contain_text("Truly", timeout=60_000)
    with page.expect_response(lambda answer: answer.url.endswith("/classify"), timeout=30_000):
        page.locator("#photograph").click()
    expect(page.locator("#camera")).to_be_visible()
    expect(page.locator("#answer")).not_to_contain_text("Truly")
    expect(page.locator("#answer .best li")).to_have_count(5)
    with page.expect_response(lambda answer: answer.url.endswith("/classify")):  # and again, by itself
        pass
    clean(page)
    page.locator("#photograph").click()
    expect(page.locator("#camera")).to_be_hidden()
    assert page.evaluate("document.querySelector('#camera').srcObject") is None


def test_many_images(server: Server, page: Any) -> None:
    images = open_dataset(server.home, studio_trained.digits().dataset).images("test")
    files = [
        {"name": f"{at}.png", "mimeType": "image/png", "buffer": image_png(images[at])} for at in range(12)
    ]
    page.goto(f"{server.base}/runs/1/classify")
    page.locator("input[name=files]").set_input_files(files)
    page.get_by_role("button", name="Ask about all of them").click()
    expect(page.locator("#many tbody tr")).to_have_count(12, timeout=60_000)
    clean(page)
    with page.expect_download() as started:
        page.get_by_role("link", name="Answers as CSV").click()
    assert len(Path(started.value.path()).read_text().splitlines()) == 13


def test_looking_inside(server: Server, page: Any) -> None:
    page.goto(f"{server.base}/runs/1/inside?at=5")
    clean(page)
    page.get_by_role("link", name="Occlusion").click()
    expect(page.locator("#why img")).to_have_count(2, timeout=60_000)
    assert page.url.endswith("/inside?at=5")
    clean(page)
    page.get_by_role("link", name="conv1 + relu1").click()
    page.get_by_role("button", name="Enlarge: 8 activations").click()
    expect(page.locator(".zoomed output")).to_have_text(re.compile(r"\d+ ×"))
    before = page.locator(".zoomed img").bounding_box()["width"]
    page.keyboard.press("+")
    assert page.locator(".zoomed img").bounding_box()["width"] == 2 * before
    clean(page)
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Look for them").click()
    expect(page.locator("#strongest img")).to_have_count(64, timeout=60_000)
    page.get_by_label("Steps").fill("4")
    page.get_by_role("button", name="Make them").click()
    expect(page.locator("#units img")).to_have_count(8, timeout=60_000)
    clean(page)


def test_export(server: Server, page: Any, tmp_path: Path) -> None:
    page.goto(f"{server.base}/runs/1/export")
    clean(page)
    page.locator("#export-bundle button").click()
    link = page.locator("#export-bundle a.button")
    expect(link).to_be_visible(timeout=60_000)
    clean(page)
    with page.expect_download() as started:
        link.click()
    assert started.value.suggested_filename == "small.bundle.zip"
    content = Path(started.value.path()).read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        assert "check.py" in packed.namelist()


def test_a_phone(server: Server, browser: Browser) -> None:
    page = browser.phone()
    for path in ("evaluation", "classify", "inside", "export"):
        page.goto(f"{server.base}/runs/1/{path}")
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    page.context.close()
