"""A walk through the studio in a real browser, as a newcomer takes it. One server, one browser and one trained net for
each process that runs some of these tests, in whatever order.

Pictures of pages are compared with those that `pictures/` beside this file keeps; `tests/helpers/studio_looks.py` says
how, and how to keep others.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import THOROUGH
from jitdnn.studio.client import Client
from jitdnn.studio.store import Store
from studio_browser import Browser, Server, chromium, findings, running, tab_to

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("PIL.Image")

from studio_looks import picture, shown, tell, transfer  # noqa: E402

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium: apt-get install chromium")
expect = playwright.expect
KEPT = Path(__file__).parent / "pictures"
#: bytes of a page, with its style, script and fonts
MOST = 300_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("studio")) as started:
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


@pytest.fixture(scope="module")
def trained(server: Server) -> int:
    """Run 1, a net trained on data set 1 by the button of the first page; by whichever test comes first."""
    if not server.ask("GET", "/api/runs"):
        request = urllib.request.Request(f"{server.base}/first", b"", server.headers, method="POST")
        with urllib.request.urlopen(request, timeout=60):
            pass
    deadline = time.monotonic() + 180
    while (run := server.ask("GET", "/api/runs/1"))["state"] in ("preparing", "queued", "running"):
        assert time.monotonic() < deadline, run
        if run["state"] == "running" and (run["best"] or 0) >= 0.95:
            server.ask("POST", "/api/runs/1/stop")
        time.sleep(0.1)
    assert run["best"] >= 0.95
    return 1


@pytest.fixture
def alone(server: Server, page: Any, trained: int) -> None:
    """There are no runs and data sets but the first, as on the pictures that are kept; and nobody looks at others."""
    page.goto("about:blank")
    for run in server.ask("GET", "/api/runs?count=1000"):
        if run["id"] != trained:
            if run["state"] in ("queued", "running", "paused"):
                server.ask("POST", f"/api/runs/{run['id']}/stop")
            Client(server.base, server.token).wait(run["id"], 60)
            server.ask("DELETE", f"/api/runs/{run['id']}")
    for dataset in server.ask("GET", "/api/datasets"):
        if dataset["id"] != 1:
            server.ask("DELETE", f"/api/datasets/{dataset['id']}")


@pytest.fixture
def going(server: Server, trained: int) -> Iterator[int]:
    """A run that trains while the test runs."""
    net = server.ask("GET", "/api/nets?task=classification")[0]["text"]
    body = {"dataset": 1, "net": net, "options": {"epochs": 1000}}
    number = server.ask("POST", "/api/runs", body)["id"]
    yield number
    if server.ask("GET", f"/api/runs/{number}")["state"] == "running":
        server.ask("POST", f"/api/runs/{number}/stop")


@pytest.fixture
def newcomer(
    server: Server, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Browser]]:
    """A studio in which nothing was done yet."""
    if not server.ask("GET", "/api/runs"):
        yield server, browser
        return
    with running(tmp_path_factory.mktemp("newcomer")) as other:
        made = Browser(browser.play, other)
        yield other, made
        said = made.complaints()
        made.browser.close()
        assert said == []


def test_first_page_is_small_and_by_one_click_a_net_is_trained(
    newcomer: tuple[Server, Browser],
) -> None:
    server, browser = newcomer
    page = browser.page()
    assert "token" not in page.url
    with transfer(page) as sent:
        page.reload(wait_until="networkidle")
    assert 50_000 < sent["bytes"] < MOST
    shown(page, KEPT, "first")
    phone = browser.phone()
    picture(phone, "first-phone", KEPT)
    phone.context.close()

    page.get_by_role("button", name="Train my first net").click()
    page.wait_for_url("**/runs/1", timeout=60_000)
    told = browser.page()
    told.goto(f"{server.base}/runs/1")
    told.evaluate("""() => {
      window.told = [];
      const source = new EventSource("/api/runs/1/events?after=0");
      source.addEventListener("points", (event) => {
        for (const [name, [xs]] of Object.entries(JSON.parse(event.data)))
          for (const x of xs) window.told.push(name + " " + x);
      });
    }""")
    expect(page.locator("#status .pill")).to_have_text(re.compile("running"), timeout=60_000)
    # the server dies; the worker does not notice, the next server takes it up, and pages connect again
    expect(page.locator("#status .stats dd").first).not_to_have_text(re.compile("^0 "), timeout=60_000)
    server.kill()
    server.start()
    expect(page.locator("#status .key dd")).to_have_text(re.compile(r"(9[5-9]|100)\.\d %"), timeout=120_000)
    page.get_by_role("button", name="Stop early").click()
    expect(page.locator("#status .pill")).to_have_text(re.compile("stopped early|finished"), timeout=30_000)
    expect(page.locator("#spoken")).to_have_text(re.compile("stopped early|finished"))
    assert server.ask("GET", "/api/runs/1")["best"] >= 0.95

    # what a page was told from the beginning on, over both servers, is what was measured: all, and once
    run = server.ask("GET", "/api/runs/1")
    names = ("loss", "lr", "val loss", "val accuracy")
    query = "&".join(f"name={name.replace(' ', '%20')}" for name in names)
    series = server.ask("GET", f"/api/runs/1/series?most=99999&{query}")
    assert series["loss"][0] == list(range(1, run["iteration"] + 1))
    expect(told.locator("#status .pill")).to_have_text(re.compile("stopped early|finished"), timeout=10_000)
    found = [each for each in told.evaluate("window.told") if each.rsplit(" ", 1)[0] in names]
    assert sorted(found) == sorted(f"{name} {x}" for name in names for x in series[name][0])
    told.context.close()
    browser.said = [each for each in browser.said if "ERR_" not in each]  # while there was no server
    shown(page, KEPT, "run")
    page.context.close()


#: pages whose pictures are taken, beside the first one and that of a run
PICTURED = {
    "new-data-set": "/data/new",
    "data-set": "/data/1",
    "new-training": "/train",
    "evaluation": "/runs/1/evaluation",
    "runs": "/",
}


@pytest.mark.usefixtures("alone")
def test_every_page_is_small_and_accessible_in_light_and_dark(
    server: Server, browser: Browser, page: Any
) -> None:
    page.goto(f"{server.base}/runs/1")
    tabs = page.eval_on_selector_all(".tabs a", "links => links.map((link) => link.getAttribute('href'))")
    others = [
        "/sweeps",
        "/sweeps/new",
        "/queue",
        "/settings",
        "/api",
        "/runs/1/delete",
        "/compare?run=1&run=1",
        "/nowhere",
        *tabs[1:],
    ]
    for name, path in [*PICTURED.items(), *(("", path) for path in others if path not in PICTURED.values())]:
        before = len(browser.said)
        with transfer(page) as sent:
            page.goto(server.base + path, wait_until="load")
            if path == "/train":
                expect(page.locator("#verdict.good")).to_be_visible(timeout=60_000)
                expect(page.locator(".plan .algorithm")).to_have_count(5, timeout=60_000)
                expect(page.locator(".graph a")).to_have_count(9, timeout=60_000)
            if path != "/train":  # which goes on looking for ways in less workspace
                page.wait_for_load_state("networkidle")
        shown(page, KEPT, name)
        told = f"{path}: {sent['bytes'] / 1e3:.0f} kB, of them {sent['images'] / 1e3:.0f} of images"
        tell(f"{told}; axe 0 findings, policy on content 0, console {len(browser.said) - before}")
        assert 50_000 < sent["bytes"] - sent["images"] < MOST, told  # images are the user's


@pytest.fixture(autouse=True)
def forgiven(browser: Browser, quiet: None) -> Iterator[None]:
    """Pages that are not there are asked for on purpose."""
    yield
    browser.said = [each for each in browser.said if "/nowhere" not in each]


@pytest.mark.usefixtures("trained")
def test_check_shows_the_line_that_is_wrong(server: Server, page: Any) -> None:
    page.goto(f"{server.base}/train")
    expect(page.locator("#verdict.good")).to_be_visible(timeout=60_000)
    text = page.input_value("#net")
    line = next(at for at, each in enumerate(text.splitlines(), 1) if "kernel_size: 5" in each)
    page.fill("#net", text.replace("kernel_size: 5", "kernel_sized: 5", 1))
    expect(page.locator("#goto")).to_have_text(f"Line {line}", timeout=20_000)
    expect(page.locator(".gutter b")).to_have_text(str(line))
    expect(page.locator("#start")).to_be_disabled()
    assert findings(page) == []
    page.locator("#goto").click()
    selected = "n => n.value.slice(n.selectionStart, n.selectionEnd)"
    assert "kernel_sized" in page.eval_on_selector("#net", selected)
    page.fill("#net", text)
    expect(page.locator("#verdict.good")).to_be_visible(timeout=20_000)
    expect(page.locator("#start")).to_be_enabled()


@pytest.mark.usefixtures("trained")
def test_a_net_of_the_gallery_takes_the_place_of_the_text(server: Server, page: Any) -> None:
    page.goto(f"{server.base}/train")
    page.locator(".gallery label", has_text="Perceptron").click()
    expect(page.locator("#verdict.good")).to_contain_text("Perceptron", timeout=60_000)
    assert 'name: "Perceptron"' in page.input_value("#net")


@pytest.mark.usefixtures("trained")
def test_curves_zoom_together_and_the_address_remembers(server: Server, page: Any) -> None:
    page.goto(f"{server.base}/runs/1")
    expect(page.locator("[data-chart=loss] canvas")).to_be_visible(timeout=20_000)
    box = page.locator("[data-chart=loss] .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=5)
    page.mouse.up()
    page.wait_for_url("**/runs/1#low=*")
    page.keyboard.press("l")
    page.wait_for_url("**log=1*")
    page.reload()
    expect(page.locator("#log")).to_be_checked()
    told = re.compile(r"^loss: train [\d.e-]+, test ([\d.e-]+|–)$")  # a stretch may have no test
    expect(page.locator("[data-chart=loss]")).to_have_attribute("aria-label", told, timeout=10_000)


@pytest.mark.usefixtures("trained")
def test_keys_and_theme_work_without_a_pointer(server: Server, page: Any) -> None:
    page.goto(server.base)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Shift+?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("t")
    page.keyboard.press("/")
    page.keyboard.type("nothing like it")
    expect(page.get_by_text("No run fits")).to_be_visible(timeout=10_000)
    page.locator("#filter").blur()
    page.keyboard.press("n")
    page.wait_for_url("**/train")


@pytest.mark.usefixtures("trained")
def test_a_training_is_begun_and_paused_by_keys_alone(server: Server, page: Any) -> None:
    page.goto(server.base)
    page.keyboard.press("n")
    page.wait_for_url("**/train")
    expect(page.locator("#verdict.good")).to_be_visible(timeout=60_000)
    tab_to(page, "[name=epochs]")
    page.keyboard.press("Control+a")
    page.keyboard.type("1000")
    tab_to(page, "#start")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    number = int(page.url.rsplit("/", 1)[1])
    expect(page.locator("#status .pill")).to_have_text("running", timeout=60_000)
    tab_to(page, "#pause")
    page.keyboard.press("Enter")
    expect(page.locator("#status .pill")).to_have_text("paused", timeout=60_000)
    tab_to(page, "#resume")
    page.keyboard.press("Enter")
    expect(page.locator("#status .pill")).to_have_text("running", timeout=60_000)
    server.ask("POST", f"/api/runs/{number}/stop")


_HIDE = """isHidden => {
  Object.defineProperty(document, "hidden", { get: () => isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


#: note the iterations that a stream of a run tells
_LISTEN = """(run) => {
  window.told = [];
  const source = new EventSource(`/api/runs/${run}/events?after=0`);
  source.addEventListener("points", (event) => window.told.push(...JSON.parse(event.data).loss?.[0] ?? []));
  source.addEventListener("reload", () => window.told.push("too much"));
}"""


def test_ten_tabs_watch_a_run_and_one_sleeps(server: Server, browser: Browser, page: Any, going: int) -> None:
    """A browser has six connections for a host: tabs behind others give theirs back, and go on when they are seen."""
    tabs: list[Any] = []
    for _ in range(10):
        for tab in tabs[-1:]:
            tab.evaluate(_HIDE, True)
        tab = page.context.new_page()
        browser.watch(tab)
        tab.goto(f"{server.base}/runs/{going}", wait_until="load")
        _number_moves(tab)
        tabs.append(tab)
    first = tabs[0]
    told = first.locator("#status .stats dd").first.inner_text()
    tabs[-1].evaluate(_HIDE, True)
    first.evaluate(_HIDE, False)
    expect(first.locator("#status .stats dd").first).not_to_have_text(told, timeout=20_000)
    _number_moves(first)
    # the machine sleeps: a stream that was cut goes on after the last event that came
    first.evaluate(_LISTEN, going)
    first.context.set_offline(True)
    first.wait_for_timeout(30_000 if THOROUGH else 3_000)
    first.context.set_offline(False)
    _number_moves(first)
    server.ask("POST", f"/api/runs/{going}/stop")
    expect(first.locator("#status .pill")).to_have_text("stopped early", timeout=30_000)
    last = server.ask("GET", f"/api/runs/{going}")["iteration"]
    for _ in range(100):
        found = first.evaluate("window.told")
        if found[-1:] == [last]:
            break
        first.wait_for_timeout(200)
    assert found == list(range(1, last + 1)) or found[0] == "too much"
    for tab in tabs:
        tab.close()
    browser.said = [each for each in browser.said if "ERR_" not in each]  # while there was no network


def test_a_page_goes_on_when_its_server_was_killed_and_started_again(
    server: Server, browser: Browser, page: Any, going: int
) -> None:
    """The worker trains on meanwhile; the page is not loaded anew, and misses no point and tells none twice."""
    page.goto(f"{server.base}/runs/{going}", wait_until="load")
    _number_moves(page)
    page.evaluate(_LISTEN, going)
    server.kill()
    before = page.locator("#status .stats dd").first.inner_text()
    page.wait_for_timeout(2_000)
    server.start()
    expect(page.locator("#status .stats dd").first).not_to_have_text(before, timeout=30_000)
    _number_moves(page)
    server.ask("POST", f"/api/runs/{going}/stop")
    expect(page.locator("#status .pill")).to_have_text("stopped early", timeout=30_000)
    last = server.ask("GET", f"/api/runs/{going}")["iteration"]
    for _ in range(100):
        found = page.evaluate("window.told")
        if found[-1:] == [last]:
            break
        page.wait_for_timeout(200)
    assert found == list(range(1, last + 1)) or found[0] == "too much"
    page.reload()
    expect(page.locator("#status .pill")).to_have_text("stopped early")
    browser.said = [each for each in browser.said if "ERR_" not in each]  # while there was no server


@pytest.mark.usefixtures("trained")
def test_what_is_written_is_on_the_page_within_a_second(server: Server, page: Any) -> None:
    """The least lag of some: a busy machine may keep a browser waiting, and a page that asks now and then could not."""
    page.goto(f"{server.base}/runs/1")
    page.evaluate("""() => {
      window.told = {};
      new MutationObserver(() => {
        const shown = document.querySelector("#status .stats dd").firstChild.textContent.replace(/\\D/g, "");
        window.told[shown] ??= Date.now();
      }).observe(document.querySelector("#status"), { subtree: true, childList: true, characterData: true });
    }""")
    written, before = {}, server.ask("GET", "/api/runs/1")["iteration"]
    with Store(server.home) as store:
        for at in range(900_000, 900_006):
            written[str(at)] = time.time()
            store.update("run", 1, iteration=at)
            page.wait_for_timeout(700)
        expect(page.locator("#status .stats dd").first).to_contain_text("900\u2009005", timeout=10_000)
        store.update("run", 1, iteration=before)
    told = page.evaluate("window.told")
    lags = [told[at] / 1e3 - moment for at, moment in written.items() if at in told]
    tell(
        f"/runs/1: a number is on the page {1e3 * min(lags):.0f} to {1e3 * max(lags):.0f} ms after its commit"
    )
    assert min(lags) < 1


def test_alexnet_by_4096_is_told_and_leaves_the_server_alive(
    server: Server, page: Any, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 3, 227, 227), np.uint8)
    np.savez(tmp_path / "large.npz", data=images, label=np.arange(12) % 3)
    made = Client(server.base, server.token).create_dataset(tmp_path / "large.npz", "Large", val=3, test=0)
    page.goto(f"{server.base}/train?dataset={made['id']}&net=alexnet")
    expect(page.locator("#verdict.good")).to_be_visible(timeout=60_000)
    page.fill("[name=batch]", "4096")
    page.locator("[name=batch]").blur()
    expect(page.locator(".stats.small")).to_contain_text(re.compile(r"[\d.]+ GiB"), timeout=60_000)
    expect(page.get_by_text("choose a smaller batch")).to_be_visible()
    assert server.process is not None
    assert server.process.poll() is None
    assert server.ask("GET", "/api/queue")["waiting"] == []


def _number_moves(tab: Any) -> None:
    """The numbers of a run that trains change while one looks."""
    number = tab.locator("#status .stats dd").first
    expect(number).not_to_have_text(number.inner_text(), timeout=20_000)


@pytest.mark.usefixtures("trained")
def test_at_200_percent_nothing_scrolls_sideways(server: Server, browser: Browser) -> None:
    """A window of 1,280 pixels has 640 of them then."""
    large = browser.page(viewport={"width": 640, "height": 450}, device_scale_factor=2)
    for path in (
        *PICTURED.values(),
        "/runs/1",
        "/sweeps/new",
        "/queue",
        "/settings",
        "/runs/1/classify",
        "/runs/1/inside",
    ):
        large.goto(server.base + path, wait_until="load")
        assert large.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    assert findings(large) == []
    large.context.close()


@pytest.mark.usefixtures("alone")
def test_phone_scrolls_down_only_and_has_its_bar(server: Server, browser: Browser) -> None:
    phone = browser.phone()
    pages = (
        PICTURED
        | {"run": "/runs/1"}
        | dict.fromkeys(["/sweeps/new", "/queue", "/settings", "/api", "/runs/1/delete"], "")
    )
    for name, path in pages.items():
        phone.goto(server.base + (path or name), wait_until="load")
        phone.wait_for_timeout(300)
        assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth"), path or name
        if path:
            picture(phone, f"{name}-phone", KEPT)
    assert findings(phone) == []
    expect(phone.get_by_role("button", name="Theme")).to_be_visible()
    phone.get_by_role("button", name="Theme").click()
    assert phone.evaluate("document.documentElement.dataset.theme") == "dark"
    phone.context.close()


@pytest.mark.usefixtures("trained")
def test_without_script_pages_are_still_of_use(server: Server, browser: Browser) -> None:
    plain = browser.page(java_script_enabled=False)
    expect(plain.get_by_role("link", name="My first net")).to_be_visible()
    plain.goto(f"{server.base}/?q=nowhere")
    expect(plain.get_by_text("No run fits")).to_be_visible()
    plain.goto(f"{server.base}/runs/1")
    expect(plain.locator("svg.drawn")).to_have_count(4, timeout=5_000)
    plain.get_by_role("button", name="Theme").click()
    assert plain.url == f"{server.base}/runs/1"
    plain.goto(f"{server.base}/train")
    plain.get_by_role("button", name="Check").click()
    expect(plain.get_by_text("can be trained on")).to_be_visible(timeout=30_000)
    plain.context.close()
