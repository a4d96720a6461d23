"""The tutorial does what it says: its code runs in order, and prints what the page says it prints.

Each version checks its result itself. Speeds are of the machine, so outputs with GFLOP/s in them are not compared; `-s`
shows them. `--bless` writes the others anew.
"""

from pathlib import Path

import pytest

from tests.native import HAS_AVX2
from tests.pages import DOCS, check_page, run_page

PAGE = DOCS / "tutorial.md"


@pytest.mark.skipif(not HAS_AVX2, reason="the tiles of the tutorial are for vectors of eight floats")
@pytest.mark.parametrize("trials", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_tutorial(
    trials: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "db"))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    ran = run_page(PAGE, tmp_path, varies="GFLOP/s", instead=("trials=12", f"trials={trials}"))
    print("".join(out for out in ran.outputs if "GFLOP/s" in out))
    check_page(PAGE, ran, request.config.getoption("--bless"))
    speeds = ran.names["speeds"]
    assert speeds["packed"] > 5 * speeds["as written"]
    assert speeds["tensorized"] > 5 * speeds["as written"]
    assert speeds["tuned"] > 5 * speeds["as written"]
