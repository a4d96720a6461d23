"""The page of a report: complete, safe, small, and drawn without boxes on top of each other."""

import base64
import json
import random
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.report_samples import made_up
from tilewright.cli.hot_loop import hot_loop
from tilewright.report.data import ReportData
from tilewright.report.layered import HEIGHT, WIDTH, lay_out_graph
from tilewright.report.page import MOST_BYTES, render_page
from tilewright.report.units import count_text, digits, seconds_text, share_text, size_text

HOSTILE = '</script><img src=x onerror="alert(1)">{{ 7 * 7 }}'


class _Tags(HTMLParser):
    """The tags of a page, and what its attributes lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]


def _parsed(page: str) -> _Tags:
    found = _Tags()
    found.feed(page)
    return found


def _data(page: str) -> dict[str, Any]:
    packed = re.search(r'id="data">([^<]*)<', page)
    assert packed is not None
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


def test_a_page_has_its_data_and_leads_nowhere() -> None:
    report = made_up()
    page = render_page(report)
    assert [k["name"] for k in _data(page)["kernels"]] == ["kernel_0", "kernel_1"]
    assert _data(page)["texts"] == [*report.texts]
    assert all(link.startswith(("#", "data:")) for link in _parsed(page).links)
    assert page.count("http") == 1  # that of the policy, which forbids all loading
    assert 'data-kernel="1"' in page and 'data-box="1"' in page


def test_names_of_a_model_are_text() -> None:
    report = made_up()
    nodes = tuple(replace(n, name=HOSTILE) for n in report.nodes)
    boxes = tuple(replace(b, name=HOSTILE, title=HOSTILE, layout=HOSTILE) for b in report.boxes)
    kernels = tuple(replace(k, name=HOSTILE) for k in report.kernels)
    model = replace(report.model, name=HOSTILE)
    page = render_page(replace(report, nodes=nodes, boxes=boxes, kernels=kernels, model=model))
    found = _parsed(page)
    assert "img" not in found.tags
    assert found.tags.count("script") == 2
    assert "49" not in re.sub(r"[\d.]*49[\d.]+", "", page.split("<main>")[0].split("<body>")[1])


def test_a_large_model_stays_small() -> None:
    rng = random.Random(0)
    report = made_up(400)
    texts = tuple(rng.randbytes(6000).hex() for _ in report.kernels)
    report = replace(report, texts=texts)
    page = render_page(report)
    assert len(page.encode()) <= MOST_BYTES
    shown = _data(page)
    assert len(shown["kernels"]) == 400
    kept = [k for k in shown["kernels"] if k["lowered"] is not None]
    assert 0 < len(kept) < 400
    assert min(k["seconds"] for k in kept) > max(k["seconds"] for k in shown["kernels"] if k not in kept)
    assert "programs are shown of the" in page
    assert shown["texts"][kept[0]["lowered"]] in texts


def test_a_program_without_its_model_has_a_page_too() -> None:
    report = made_up()
    bare = tuple(
        replace(k, flops=None, nbytes=None, scheduled=None, lowered=None, steps=None, assembly=None)
        for k in report.kernels
    )
    calls = tuple(replace(c, box=None) for c in report.calls)
    made = ReportData(
        report.model, report.machine, report.run, bare, calls=calls, missing=("There is no graph.",)
    )
    page = render_page(made)
    assert "There is no graph." in page
    assert 'id="graph"' not in page


@pytest.mark.parametrize("seed", range(4))
def test_boxes_do_not_overlap(seed: int) -> None:
    rng = random.Random(seed)
    reads = [sorted({rng.randrange(n) for _ in range(rng.randrange(4))} if n else set()) for n in range(60)]
    drawn = lay_out_graph(reads)
    for i, (x, y) in enumerate(drawn.boxes):
        assert x >= 0 and x + WIDTH <= drawn.width and y + HEIGHT <= drawn.height
        assert all(y > drawn.boxes[r][1] for r in reads[i])
        for ox, oy in drawn.boxes[:i]:
            assert oy != y or abs(ox - x) >= WIDTH
    assert drawn.lines.keys() == {(n, r) for n, sources in enumerate(reads) for r in sources}


def test_a_line_that_passes_rows_goes_beside_boxes() -> None:
    drawn = lay_out_graph([[], [0], [1], [0, 2]])
    middle = drawn.lines[3, 0][1:-1]
    assert len(middle) == 4
    for n in (1, 2):
        x, y = drawn.boxes[n]
        assert all(not (x < px < x + WIDTH) for px, py in middle if y <= py <= y + HEIGHT)


LOOPS = """\
kernel:
	.cfi_startproc
	xorl	%eax, %eax
.LBB0_1:
	movq	%rsi, %rdx
.LBB0_2:                                # the hot one
	vfmadd231ps	(%rdi), %ymm0, %ymm1
	vfmadd231ps	32(%rdi), %ymm0, %ymm2
	decq	%rdx
	jne	.LBB0_2
.LBB0_3:
	vmovups	%ymm1, (%rdi)
	decq	%rcx
	jne	.LBB0_3
	jmp	.LBB0_1
"""


def test_the_hot_loop_is_the_inner_one_with_most_arithmetic() -> None:
    text, note = hot_loop(LOOPS)
    assert text.splitlines()[0] == ".LBB0_2:"
    assert text.splitlines()[-1].split() == ["jne", ".LBB0_2"]
    assert note.startswith("4 instructions, 2 of them vector arithmetic of 2 innermost loops")
    text, note = hot_loop("kernel:\n\tvaddps\t%ymm0, %ymm1, %ymm2\n\tretq\n")
    assert "retq" in text and note == "no loops: all 2 instructions"


def test_numbers_have_three_digits_and_a_unit() -> None:
    assert [digits(v) for v in (0, 0.09997, 1.2345, 99.96, 1234.5)] == ["0", "0.100", "1.23", "100", "1,230"]
    assert [seconds_text(v) for v in (0, 2.5e-9, 1.5e-5, 0.0123, 3)] == [
        "0 s",
        "2.50 ns",
        "15.0 µs",
        "12.3 ms",
        "3.00 s",
    ]
    assert (count_text(3.06e11, "FLOP/s"), size_text(1536)) == ("306 GFLOP/s", "1.50 KiB")
    assert [share_text(v) for v in (0, 0.0004, 0.123, 1)] == ["0 %", "< 0.1 %", "12.3 %", "100 %"]
