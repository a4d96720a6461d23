"""Figures of a machine: what the kernel says, what was measured and kept, and what is made of files that are broken."""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tilewright.codegen import objects
from tilewright.codegen.objects import compile_assembly
from tilewright.driver.keys import program_key, target_digest
from tilewright.driver.worker import target_from_json, target_to_json
from tilewright.ir.dtype import DType
from tilewright.ops.accuracy import DEFAULT
from tilewright.search.default import spaces
from tilewright.support.errors import UserError
from tilewright.support.processor import cache_kib, cpu_model
from tilewright.target.figures import Figures, calibrated, figures_path, save_figures
from tilewright.target.machine import SHIPPED, Machine, shipped_machine
from tilewright.target.target import AVX2, AVX512, BASELINE, HOST, Target, native, unused_features
from tilewright.tir.build import FuncBuilder

MODEL = "GenuineIntel 6 143 Some CPU 8"
MEASURED = Figures(
    hertz=2.5e9,
    fma_per_cycle=1.0,
    loads_per_cycle=1.5,
    fma_latency=5.0,
    l2_rate=50e9,
    l3_rates=(30e9, 50e9, 60e9),
    memory_rates=(10e9, 15e9, 15e9),
    meeting_seconds=1e-6,
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "figures.json"
    monkeypatch.setenv("TILEWRIGHT_FIGURES", str(path))
    return path


# ------------------------------------------------------------------------------------------------------------ machines


def test_cores_share_what_is_shared() -> None:
    m = replace(SHIPPED, l3_rates=(40e9, 60e9), memory_rates=(20e9, 30e9))
    assert (m.l3_rate, m.memory_rate) == (40e9, 20e9)
    two, eight = m.for_threads(2), m.for_threads(8)
    assert (two.l3_rate, two.memory_rate) == (30e9, 15e9)
    assert (eight.l3_rate, eight.memory_rate) == (7.5e9, 3.75e9)  # more cores get as much together
    assert eight.l2_rate == m.l2_rate  # every core has its own
    assert eight.for_threads(1) == m
    assert "any number of threads" in str(m) and "for 8 threads" in str(eight)


def test_the_figures_of_a_target_by_name_do_not_depend_on_the_host() -> None:
    assert AVX2.machine == SHIPPED


def test_a_target_survives_the_way_to_a_worker() -> None:
    target = replace(AVX2, machine=MEASURED.of(AVX2.machine, "measured")).for_threads(3)
    assert target_from_json(target_to_json(target)) == target


def test_figures_decide_programs_but_not_what_measurements_are_of() -> None:
    other = replace(AVX2, machine=replace(AVX2.machine, hertz=1e9))
    targets = [AVX2, other, AVX2.for_threads(2)]
    assert len({program_key("aa", (), None, t, DEFAULT) for t in targets}) == 3
    assert len({target_digest(t) for t in targets}) == 1
    assert target_digest(replace(AVX2, cpu="generic")) != target_digest(AVX2)


# ----------------------------------------------------------------------------------------------------- what there is


def test_the_kernel_tells_of_caches_and_models(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    core = "vendor_id\t: A\ncpu family\t: 6\nmodel\t\t: 1\nmodel name\t: B C\nstepping\t: 2\n"
    (tmp_path / "proc/cpuinfo").write_text(f"{core}\n{core.replace('B C', 'another')}")
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "?")]
    ):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    cpu_model.cache_clear()
    assert cpu_model(tmp_path) == "A 6 1 B C 2"
    assert cache_kib(tmp_path) == {1: 48, 2: 2048}
    assert cpu_model(tmp_path / "nowhere") == "unknown"
    assert cache_kib(tmp_path / "nowhere") == {}
    cpu_model.cache_clear()


def test_a_host_of_which_nothing_is_known_has_sane_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.target.target.cache_kib", dict[int, int])
    monkeypatch.setattr("tilewright.target.target.cpu_model", lambda: "unknown")
    m = native().machine
    assert 0 < m.l1_bytes < m.l2_bytes < m.l3_bytes
    assert m == replace(SHIPPED, name=m.name)


def test_a_last_cache_that_is_not_told_is_not_smaller_than_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tilewright.target.target.cache_kib", lambda: {1: 64, 2: 65536})
    m = native().machine
    assert (m.l1_bytes, m.l2_bytes, m.l3_bytes) == (64 << 10, 64 << 20, 64 << 20)


@pytest.mark.parametrize("has", [True, False])
def test_what_is_not_used_yet_is_told(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    features = AVX2.features | ({"avx512fp16"} if has else set[str]())
    monkeypatch.setattr("tilewright.target.target.cpu_features", lambda: features)
    assert ["FP16" in text for text in unused_features()] == [True] * has


@pytest.mark.parametrize("target", [AVX512, AVX2, BASELINE], ids=lambda t: f"{t.vector_bytes} bytes")
def test_the_widest_vectors_that_the_host_has_are_used(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.target.target.cpu_features", lambda: target.features)
    here = native()
    assert here.features == target.features
    assert (here.vector_bytes, here.vector_registers) == (target.vector_bytes, target.vector_registers)


WIDE = """define <16 x float> @wide(<16 x float> %x, <16 x float> %y) {
  %sum = fadd <16 x float> %x, %y
  ret <16 x float> %sum
}
"""


def test_vectors_of_avx512_are_not_halved() -> None:
    """LLVM would, for processors that clock down where vectors are wide."""
    assert "%zmm0" in compile_assembly(WIDE, AVX512)
    assert "%ymm1" in compile_assembly(WIDE, AVX2)


MASKED = """define <8 x float> @masked(<8 x float> %x, <8 x float> %y, ptr %p) {
  %less = fcmp olt <8 x float> %x, %y
  %old = load <8 x float>, ptr %p
  %r = select <8 x i1> %less, <8 x float> %x, <8 x float> %old
  ret <8 x float> %r
}
"""


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids", "haswell", "generic", "x86-64"])
def test_the_host_schedules_but_brings_no_instructions_along(
    cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of LLVM's means all that the processor has; a program must run on every x86-64-v3."""
    monkeypatch.setattr(objects, "host_cpu", lambda: cpu)
    target = replace(AVX2, cpu=f"{HOST} {cpu}")
    text = compile_assembly(MASKED, target)
    assert "vblendvps" in text and "%k" not in text and "zmm" not in text


def test_the_host_is_named_by_its_processor() -> None:
    """It keeps objects of several hosts apart in a cache that they share."""
    target = native()
    assert target.cpu == f"{HOST} {cpu_model()}" if target.features else target.cpu == "generic"


# ------------------------------------------------------------------------------------------------------ what is kept


def test_what_was_measured_is_used(place: Path) -> None:
    assert calibrated(SHIPPED, MODEL) == SHIPPED  # nothing yet
    assert save_figures(MEASURED, MODEL, "2026-01-02") == place
    found = calibrated(SHIPPED, MODEL)
    assert found == replace(MEASURED.of(SHIPPED, found.name), part_seconds=SHIPPED.part_seconds)
    assert found.name == f"{MODEL}, calibrated 2026-01-02"
    assert (found.l2_bytes, found.uops_per_cycle) == (SHIPPED.l2_bytes, SHIPPED.uops_per_cycle)
    assert os.listdir(place.parent) == [place.name]


def test_native_uses_it_and_can_be_told_not_to(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_figures(MEASURED, cpu_model(), "2026-01-02")
    assert native().machine.hertz == MEASURED.hertz
    monkeypatch.setenv("TILEWRIGHT_FIGURES", "off")
    assert native().machine.hertz != MEASURED.hertz
    with pytest.raises(UserError, match="there is no place"):
        save_figures(MEASURED, MODEL, "2026-01-02")


def test_they_are_kept_for_each_kind_of_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_FIGURES")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert figures_path("a") != figures_path("b")
    save_figures(MEASURED, "a", "2026-01-02")
    assert calibrated(SHIPPED, "b") == SHIPPED != calibrated(SHIPPED, "a")


def _stored(**changed: object) -> str:
    values = {f.name: getattr(MEASURED, f.name) for f in fields(Figures)}
    return json.dumps({"version": 1, "cpu": MODEL, "when": "today", "figures": {**values, **changed}})


BROKEN: dict[str, str] = {
    "empty": "",
    "cut off": _stored()[:-9],
    "no object": "[1, 2]",
    "another version": _stored().replace('"version": 1', '"version": 2'),
    "another CPU": _stored().replace(MODEL, "another"),
    "no figures": json.dumps({"version": 1, "cpu": MODEL, "when": "", "figures": None}),
    "a figure is missing": _stored().replace('"hertz"', '"hertzz"'),
    "not a number": _stored(hertz="fast"),
    "NaN": _stored(l2_rate=float("nan")),
    "infinite": _stored(hertz=float("inf")),
    "nothing a second": _stored(memory_rates=[0.0]),
    "no rates": _stored(l3_rates=[]),
    "true": _stored(fma_per_cycle=True),
    "nested": "[" * 20000,
    "too long": _stored() + " " * (1 << 17),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_ignored_with_a_warning(
    kind: str, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.write_text(BROKEN[kind])
    with caplog.at_level(logging.WARNING, "tilewright"):
        assert calibrated(SHIPPED, MODEL) == SHIPPED
    (record,) = caplog.records
    assert str(place) in record.getMessage()


def test_a_file_that_cannot_be_read_is_ignored(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    place.mkdir()
    assert calibrated(SHIPPED, MODEL) == SHIPPED
    assert "ignored" in caplog.text


def test_nonsense_is_not_kept(place: Path) -> None:
    with pytest.raises(ValueError, match="hertz"):
        save_figures(replace(MEASURED, hertz=0.0), MODEL, "2026-01-02")
    assert not place.exists()


def test_a_file_is_written_whole_or_not_at_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_figures(MEASURED, MODEL, "before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        save_figures(replace(MEASURED, hertz=1e9), MODEL, "after")
    assert calibrated(SHIPPED, MODEL).hertz == MEASURED.hertz
    assert os.listdir(place.parent) == [place.name]


# ----------------------------------------------------------------------------------------------------------- choices


def test_every_figure_that_is_measured_is_one_of_the_machine() -> None:
    assert {f.name for f in fields(Figures)} <= {f.name for f in fields(Machine)}


def test_slower_memory_makes_what_streams_slower(products: Callable[[Target], float]) -> None:
    slow = replace(AVX2, machine=replace(AVX2.machine, memory_rates=(5e9,)))
    assert products(slow) > 2 * products(AVX2)


@pytest.fixture
def products() -> Callable[[Target], float]:
    """The predicted time of a GEMM whose weights come from memory."""
    b = FuncBuilder("product")
    x, w = b.param("X", (1, 4096), DType.F32), b.param("W", (4096, 4096), DType.F32)
    func = b.finish(b.reduce("Y", (1, 4096), (4096,), lambda i, j, n: (x[i, n], w[n, j])))
    return lambda target: min(float(s.ranked()[1][0]) for s in spaces(func, target, frozenset({"W"})))


def test_a_core_that_halves_wide_vectors_multiplies_half_as_many() -> None:
    """A Zen 4 has the registers of AVX-512, and the units of a Zen 3."""
    wide, narrow = (
        shipped_machine("AuthenticAMD 25 17 AMD EPYC 1", f, 32, 1024, 32768)
        for f in (AVX512.features, AVX2.features)
    )
    other = shipped_machine("GenuineIntel 6 143 Some CPU 8", AVX512.features, 32, 1024, 32768)
    assert (wide.fma_per_cycle, narrow.fma_per_cycle, other.fma_per_cycle) == (1.0, 2.0, 2.0)
