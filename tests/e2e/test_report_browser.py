"""The page of a report in a real browser, offline: light, dark and narrow, by mouse and by keyboard.

Skipped where there is no Chromium, unless TILEWRIGHT_REQUIRE_CHROMIUM says that there must be one.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, sync_playwright

from tests.report_samples import small_cnn
from tilewright.cli.main import main

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IS_REQUIRED = os.environ.get("TILEWRIGHT_REQUIRE_CHROMIUM") == "1"
pytestmark = pytest.mark.skipif(CHROMIUM is None and not IS_REQUIRED, reason="there is no Chromium")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    model, data, page = folder / "m.onnx", folder / "m.json", folder / "m.html"
    model.write_bytes(small_cnn().SerializeToString())
    run = ["report", str(model), "--threads", "1", "--seconds", "0", "--data", str(data)]
    assert CliRunner().invoke(main, run).exit_code == 0
    shown = ["report", str(data), "-o", str(page), "--compare", str(data)]
    assert CliRunner().invoke(main, shown).exit_code == 0
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "TILEWRIGHT_REQUIRE_CHROMIUM is set, and there is no Chromium"
    with sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Opened:
    """The page, and what it complained of or asked for."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def close(self, file: Path) -> None:
        self.context.close()
        assert self.complaints == []
        assert [u for u in self.requests if not u.startswith(("data:", "blob:"))] == [file.as_uri()]


def _colour(page: Page) -> float:
    """How light the background is, from 0 to 255."""
    text = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return sum(float(n) for n in text[text.index("(") + 1 : -1].split(",")[:3]) / 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_screen_and_the_button(browser: Browser, report: Path, scheme: Any) -> None:
    opened = Opened(browser, report, viewport=WIDE, color_scheme=scheme)
    page = opened.page
    assert (_colour(page) > 128) == (scheme == "light")
    page.click("#theme")
    assert (_colour(page) > 128) == (scheme == "dark")
    text = page.inner_text("main")
    for heading in ("Where the time goes", "Graph", "Time by ONNX node", "Memory", "Threads", "Tuning"):
        assert heading in text
    opened.close(report)


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_nothing_is_wider_than_the_screen(browser: Browser, report: Path, viewport: Any) -> None:
    opened = Opened(browser, report, viewport=viewport)
    page = opened.page
    page.locator(".box").first.click()
    width, screen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= screen
    opened.close(report)


def test_a_click_shows_program_and_assembly(browser: Browser, report: Path) -> None:
    opened = Opened(browser, report, viewport=WIDE)
    page = opened.page
    assert page.locator("#details pre").count() == 0
    page.locator(".box").first.click()
    _has_program(page)
    page.click("#details .close")
    assert page.locator("#details pre").count() == 0
    page.locator("circle.point").last.click()
    _has_program(page)
    opened.close(report)


def test_the_keyboard_does_what_the_mouse_does(browser: Browser, report: Path) -> None:
    opened = Opened(browser, report, viewport=WIDE)
    page = opened.page
    page.focus("#zoom-fit")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.box") == "0"
    page.keyboard.press("ArrowDown")
    at = page.evaluate("document.activeElement.dataset.box")
    assert at not in (None, "0")
    page.keyboard.press("Enter")
    _has_program(page)
    assert page.evaluate("document.activeElement.id") == "details"
    page.keyboard.press("Escape")
    assert page.locator("#details pre").count() == 0
    assert page.evaluate("document.activeElement.dataset.box") == at
    opened.close(report)


def test_tables_are_sorted_and_searched(browser: Browser, report: Path) -> None:
    opened = Opened(browser, report, viewport=WIDE)
    page = opened.page
    rows = page.locator("#nodes-t tbody tr")
    total = rows.count()
    assert page.locator("#nodes-t th[aria-sort=descending]").inner_text().startswith("Time")
    page.locator("#nodes-t th button", has_text="Node").click()
    names = page.locator("#nodes-t tbody tr td:first-child").all_inner_texts()
    assert names == sorted(names)
    page.fill("[data-find=nodes-t]", "conv")
    assert 0 < rows.count() < total
    page.select_option("#colour", "placement")
    assert page.get_attribute("#graph", "data-colour") == "placement"
    before = page.evaluate("document.getElementById('graph').getBoundingClientRect().width")
    page.click("#zoom-in")
    assert page.evaluate("document.getElementById('graph').getBoundingClientRect().width") > before
    opened.close(report)


def _has_program(page: Page) -> None:
    details = page.locator("#details")
    assert "def " in details.locator("[data-text=tir] pre").first.inner_text()
    assert "%" in details.locator("[data-text=assembly] pre").first.inner_text()
    assert details.locator("[data-text=assembly] pre").first.is_visible()
