"""Targets by name, and what programs for this machine are compiled for."""

import pytest

from tilewright.support.errors import UserError
from tilewright.target.names import TARGETS, resolve_target
from tilewright.target.target import AVX2, AVX_VNNI, AVX_VNNI_INT8, X86_V3, Target, native


def test_names_of_targets_with_instructions_for_bytes() -> None:
    assert resolve_target("x86-64-v3+avxvnni").features == X86_V3 | {"avxvnni"}
    assert {"avx512vnni"} < resolve_target("x86-64-v4+avx512vnni").features
    assert resolve_target("x86-64-v4+amx").features > resolve_target("x86-64-v4+avx512vnni").features
    with pytest.raises(UserError, match="unknown target 'x86-64-v3\\+amx'"):
        resolve_target("x86-64-v3+amx")


def test_a_name_has_the_features_of_what_it_begins_with() -> None:
    for name in TARGETS:
        level, _, more = name.partition("+")
        if more:
            assert resolve_target(name).features > resolve_target(level).features


@pytest.mark.parametrize(
    ("more", "target"),
    [((), AVX2), (("avxvnni",), AVX_VNNI), (("avxvnni", "avxvnniint8"), AVX_VNNI_INT8)],
)
def test_native_without_avx512(
    more: tuple[str, ...], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = X86_V3 | set(more) | {"sse4a"}
    monkeypatch.setattr("tilewright.target.target.cpu_features", lambda: has)
    assert native().features == target.features
