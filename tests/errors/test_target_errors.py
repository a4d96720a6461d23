"""Machines and targets that there is no code for."""

import json
import os
import platform

import pytest
from click.testing import CliRunner

import tilewright as tw
from examples.models import mlp
from tilewright.cli.main import main
from tilewright.support.errors import UserError
from tilewright.target.names import resolve_target
from tilewright.target.target import AVX2, BASELINE

OTHERS = [("Linux", "aarch64"), ("Darwin", "arm64"), ("Darwin", "x86_64"), ("Linux", "riscv64")]


@pytest.fixture(params=OTHERS, ids=" ".join)
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Another machine than ours; how its system and processor are called."""
    system, machine = request.param
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((system, "host", "1", "1", machine)))
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    return f"{system} on {machine}"


def test_native_on_another_machine(elsewhere: str) -> None:
    with pytest.raises(UserError, match=f"programs are for Linux on x86-64; this machine is {elsewhere}"):
        tw.load(mlp((8, 4)), cache=False)


def test_other_targets_do_not_ask_what_machine_this_is(elsewhere: str) -> None:
    assert (resolve_target("x86-64"), resolve_target("x86-64-v3"), resolve_target(AVX2)) == (
        BASELINE,
        AVX2,
        AVX2,
    )


def test_an_unknown_target() -> None:
    with pytest.raises(UserError, match="unknown target 'z80'") as e:
        resolve_target("z80")
    assert e.value.hint is not None
    assert e.value.hint.startswith("one of native, x86-64, x86-64-v3, x86-64-v4, x86-64-v3+avxvnni, ")


def test_doctor_tells_of_another_machine(elsewhere: str) -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    assert result.exit_code == 1
    found = {f["name"]: f for f in json.loads(result.stdout)["findings"]}
    assert found["platform"]["ok"] is False and "is not supported" in found["platform"]["detail"]
    assert found["compiler"]["ok"] is False and elsewhere in found["compiler"]["detail"]
