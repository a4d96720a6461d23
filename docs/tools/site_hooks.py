"""What the site has besides the files of docs/: pages of the repository that stand elsewhere, and lists of pages.

- CONTRIBUTING.md, CHANGELOG.md and the README of the example NPU become pages; links to them lead there.
- Links to sources become plain text: the site is read without a checkout.
- Decisions and results are listed in the order of their index pages, so that a new page is added in one place.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Files outside of docs/, and the pages that they become.
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "licence.md",
    "examples/npu/README.md": "npu.md",
}
LISTED = ("decisions", "results")  # folders whose README.md lists their pages

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def relink(text: str, source: str, page: str) -> str:
    """The text of `source`, a file of the repository, with links as the site has them at `page`."""

    def link(m: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), m["path"]))
        if target.startswith("docs/"):
            place = target.removeprefix("docs/")
        elif target == "README.md":
            place = "index.md"
        elif target in PAGES:
            place = PAGES[target]
        else:
            return m["text"]
        if (ROOT / "docs" / place).is_dir():
            place = posixpath.join(place, "README.md")
            if not (ROOT / "docs" / place).exists():
                return m["text"]
        path = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"{m['image']}[{m['text']}]({path}{m['anchor'] or ''})"

    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])


def listed(folder: str) -> list[str]:
    """The pages of a folder of docs/, in the order in which its README.md names them."""
    text = (ROOT / "docs" / folder / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"\]\(([\w-]+\.md)\)", text)
    return [f"{folder}/{name}" for name in dict.fromkeys(found)]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    def extend(entries: list[Any]) -> None:
        for entry in list(entries):
            if isinstance(entry, dict):
                for value in entry.values():
                    if isinstance(value, list):
                        extend(value)
            elif entry in [f"{folder}/README.md" for folder in LISTED]:
                entries.extend(listed(posixpath.dirname(entry)))

    extend(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source == "LICENSE":
            text = f"# Licence\n\n```text\n{text}```\n"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = {p: s for s, p in PAGES.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return relink(markdown, source, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Pages that docstrings name become links; `bool` is not the word of tensor programs of that name."""
    if page.file.src_uri != "api.md":
        return html
    html = re.sub(r"<code>docs/([\w/-]+)\.md</code>", r'<a href="\1.html">\1</a>', html)
    return re.sub(r"\bbool_\b", "bool", html)
