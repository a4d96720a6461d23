"""Files that are almost right are imported or refused, never anything else.

`found/` has the files that once ended in another way; they are named after the mistake.
"""

from pathlib import Path

import pytest

from tests.fuzz.import_campaign import campaign, outcome

FOUND = sorted((Path(__file__).parent / "found").glob("*.onnx"))


@pytest.mark.parametrize("path", FOUND, ids=[p.stem for p in FOUND])
def test_what_was_found_before(path: Path) -> None:
    assert outcome(path.read_bytes()) in ("imported", "refused")


@pytest.mark.slow
def test_a_campaign(tmp_path: Path) -> None:
    counts, failures = campaign(1_000_000, 4_000, tmp_path)
    assert not failures
    assert counts["imported"] > 200 and counts["refused"] > 2_000  # both happen, so the files are neither
