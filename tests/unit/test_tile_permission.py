"""Registers for matrices are used only where the kernel lets the process use them."""

import platform
from dataclasses import replace

import pytest
from test_tile_intrinsics import needs_amx

from tests.runtime_programs import add_program
from tilewright.runtime.machine import check_machine, runs_here
from tilewright.support import tile_permission
from tilewright.support.errors import UserError
from tilewright.support.processor import cpu_features
from tilewright.support.tile_permission import TILE_FEATURES, tiles_are_permitted, without_refused
from tilewright.target.target import AMX, AVX512_VNNI, native


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_permission, "tiles_are_permitted", lambda: False)


def test_features_that_are_not_refused(refused: None) -> None:
    assert without_refused(AMX.features) == AVX512_VNNI.features
    assert without_refused({"avx2"}) == {"avx2"}


def test_nobody_asks_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_permission, "tiles_are_permitted", lambda: pytest.fail("it asked"))
    assert without_refused(AVX512_VNNI.features) == AVX512_VNNI.features


@pytest.mark.parametrize(("system", "machine"), [("Linux", "aarch64"), ("Darwin", "x86_64")])
def test_other_machines_are_not_asked(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert not tiles_are_permitted.__wrapped__()


@pytest.mark.parametrize("has", [True, False])
def test_native_has_what_is_permitted(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.target.target.cpu_features", lambda: AMX.features)
    monkeypatch.setattr(tile_permission, "tiles_are_permitted", lambda: has)
    assert native().features == (AMX.features if has else AVX512_VNNI.features)


def test_a_processor_with_some_of_them_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.target.target.cpu_features", lambda: AMX.features - {"amx-int8"})
    monkeypatch.setattr(tile_permission, "tiles_are_permitted", lambda: True)
    assert native().features == AVX512_VNNI.features


def test_a_program_for_them_is_refused(refused: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.machine.cpu_features", lambda: AMX.features)
    manifest = replace(add_program().manifest, features=tuple(sorted(AMX.features)))
    assert not runs_here(manifest.triple, AMX.features)
    with pytest.raises(
        UserError, match=r"needs amx-bf16, amx-int8, amx-tile, and the kernel does not let"
    ) as e:
        check_machine(manifest)
    assert "makes a program without them" in str(e.value.hint)


def test_a_program_for_them_is_refused_on_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.machine.cpu_features", lambda: AVX512_VNNI.features)
    manifest = replace(add_program().manifest, features=tuple(sorted(AMX.features)))
    with pytest.raises(UserError, match=r"lacks: amx-bf16, amx-int8, amx-tile"):
        check_machine(manifest)


@needs_amx
def test_this_machine_permits_them() -> None:
    assert cpu_features() >= TILE_FEATURES
    assert native().features >= TILE_FEATURES
