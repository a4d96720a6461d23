"""Commands that pages show are commands that there are: names, options, and values that options take."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs.tools.record_terminal import DRAWING, MAX_BYTES, SESSION
from tilewright.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_CODE = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```|^((?: {4,}\S[^\n]*\n)+)", flags=re.M | re.S)
_FENCED = re.compile(r"^```.*?^```", flags=re.M | re.S)
_SPAN = re.compile(r"`(tilewright [a-z-][^`\n]*)`")
_VARIABLES = re.compile(r"^(?:\w+=\S+ )*")
# What stands for something that the reader has.
_OPEN = re.compile(r"[A-Z]{3,}|…|\.\.\.|<|\[")


def commands(text: str) -> Iterator[str]:
    """Lines of shell that call us, without comments, variables and redirections; not those of extensions."""
    for m in _CODE.finditer(text):
        for line in (m[1] or m[2]).replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if "TILEWRIGHT_EXTENSIONS" not in line:
                line = line[_VARIABLES.match(line).end() :]  # type: ignore[union-attr]
                if line.startswith("tilewright ") and not line.startswith("tilewright COMMAND"):
                    yield re.split(" #| > ", line, maxsplit=1)[0].rstrip()


def check(line: str, *, is_whole: bool) -> None:
    """UsageError if the command line does not take it; values are looked at only if it `is_whole`."""
    words = shlex.split(line)[1:]
    command: click.Command = main
    context = click.Context(main, info_name="tilewright")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            raise click.UsageError(f"no command {words[0]!r}")
        command, words = found, words[1:]
    options = {o for p in command.get_params(context) for o in (*p.opts, *p.secondary_opts)}
    for word in words:
        if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options:
            raise click.NoSuchOption(word)
    if is_whole and words and not isinstance(command, click.Group):
        try:
            command.make_context(command.name, words)
        except click.BadParameter as e:
            if "does not exist" not in e.message:  # files of the reader
                raise


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_a_page_are_taken(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in commands(text):
        try:
            check(line, is_whole=not _OPEN.search(line))
        except click.UsageError as e:
            raise AssertionError(f"{line}: {e.format_message()}") from e
    for line in _SPAN.findall(_FENCED.sub("", text)):
        try:
            check(line, is_whole=False)
        except click.UsageError as e:
            raise AssertionError(f"{line}: {e.format_message()}") from e


def test_many_commands_are_found() -> None:
    found = {line.split()[1] for page in PAGES for line in commands(page.read_text(encoding="utf-8"))}
    assert found >= {"run", "compile", "inspect", "bench", "compare", "tune", "db", "doctor"}


@pytest.mark.parametrize(
    "line",
    ["tilewright nonesuch", "tilewright run m.onnx --nonesuch", "tilewright run m.onnx --threads many"],
)
def test_what_the_command_line_does_not_take_is_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        check(line, is_whole=True)


def test_the_recorded_session_is_that_of_its_script() -> None:
    drawing = DRAWING.read_text(encoding="utf-8")
    drawn = re.sub(r"<[^>]*>", "", drawing).replace("&#160;", " ")
    for shown in SESSION:
        check(shown.text, is_whole=True)
        assert shown.text in drawn
    assert len(drawing.encode()) <= MAX_BYTES
    assert "http" not in re.sub(r"http://www\.w3\.org/[\w/]+|https://www\.textualize\.io", "", drawing)
