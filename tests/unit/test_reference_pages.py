"""Reference pages say what the code does: environment variables, exit codes, the matrix of types and targets."""

import re
from pathlib import Path

from tilewright.cli.status import ExitStatus
from tilewright.target.dtype_matrix import dtype_matrix

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_every_environment_variable_is_described_and_none_is_made_up() -> None:
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(TILEWRIGHT_[A-Z_]+(?:<ENGINE>)?)` \|", page, flags=re.M))
    used = {n for p in SOURCES for n in re.findall(r"\bTILEWRIGHT_[A-Z_]+", p.read_text(encoding="utf-8"))}
    # The variables of engines are made of their names.
    read = {"TILEWRIGHT_PYTHON_<ENGINE>" if n.startswith("TILEWRIGHT_PYTHON_") else n for n in used}
    assert described == read


def test_the_matrix_of_types_and_targets_is_current() -> None:
    written = (DOCS / "dtypes.md").read_text(encoding="utf-8")
    assert written == dtype_matrix(), "run: python -m tilewright.target.dtype_matrix > docs/dtypes.md"


def test_exit_codes_are_those_of_the_command_line() -> None:
    for name in ("errors.md", "cli.md"):
        codes = re.findall(r"^\| (\d+) \|", (DOCS / name).read_text(encoding="utf-8"), flags=re.M)
        assert [int(c) for c in codes] == [s.value for s in ExitStatus], name
