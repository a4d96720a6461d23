"""The examples of docs/layouts.md run, and print what the page says they print. `--bless` writes it anew."""

from pathlib import Path

import pytest

from tests.pages import DOCS, check_page, run_page

PAGE = DOCS / "layouts.md"


def test_examples_print_what_the_page_says(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    ran = run_page(PAGE, tmp_path)
    assert len(ran.outputs) >= 5
    check_page(PAGE, ran, request.config.getoption("--bless"))
