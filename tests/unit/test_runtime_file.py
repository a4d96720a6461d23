"""`.tw` files: they come back as they went, and damage, foreign machines and full disks have an error each."""

import dataclasses
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.runtime_programs import N, add_program, arena, artifact, biased_program, const, inp, out, vector
from tilewright.runtime import file as tw
from tilewright.runtime.session import Session
from tilewright.support.artifact import (
    Artifact,
    ExternalCall,
    KernelCall,
    Segment,
    TensorSpec,
)
from tilewright.support.errors import UserError
from tilewright.support.program import Branch, While

A = np.arange(N, dtype=np.float32)


def rich_program() -> Artifact:
    """One of everything a file can hold."""
    segment = Segment(
        (KernelCall("add", 4, (inp(0), const(0), arena(64)), barrier=False, steps=2, beside=True),)
    )
    view = (arena(64), vector("t"))
    steps = (
        segment,
        Branch(inp(1), (segment,), ()),
        While(arena(0), (ExternalCall("plug/ü", (view,), (view,)), segment)),
        Segment((KernelCall("add", 4, (arena(64), const(0), out(0))),)),
    )
    constants = [
        A * 3,
        np.array(7, np.int64),
        np.empty((0, 3), np.float16),
        np.array([[1.5, 2.0]], ml_dtypes.bfloat16),
        np.eye(4)[:, ::2],
        np.array([True, False]),
    ]
    return artifact(
        steps, [vector("x"), TensorSpec("c", "bool", ())], [vector("y")], constants, arena_bytes=128
    )


def check_same(one: Artifact, two: Artifact) -> None:
    for name in ("manifest", "driver", "objects", "arena_bytes", "program"):
        assert getattr(one, name) == getattr(two, name), name
    for a, b in zip(one.constants, two.constants, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("mapped", [False, True])
def test_round_trip(tmp_path: Path, mapped: bool) -> None:
    program = rich_program()
    path = tmp_path / "program.tw"
    tw.save(program, path)
    loaded = tw.load_artifact(path, mapped=mapped)
    check_same(program, loaded)
    assert path.read_bytes() == tw.to_bytes(program) == tw.to_bytes(loaded)
    assert os.listdir(tmp_path) == ["program.tw"]


def test_no_constants(tmp_path: Path) -> None:
    tw.save(add_program(), tmp_path / "add.tw")
    check_same(add_program(), tw.load_artifact(tmp_path / "add.tw", mapped=True))


@pytest.mark.parametrize("in_place", [False, True])
def test_loaded_program_runs(tmp_path: Path, in_place: bool) -> None:
    tw.save(biased_program(), tmp_path / "p.tw")
    loaded = tw.load_artifact(tmp_path / "p.tw", mapped=in_place)
    with Session(loaded, threads=2, weights_in_place=in_place) as session:
        os.unlink(tmp_path / "p.tw")
        np.testing.assert_array_equal(session.run({"a": A, "b": A})["sum"], A * 3)


def test_weights_start_on_a_page(tmp_path: Path) -> None:
    tw.save(biased_program(), tmp_path / "p.tw")
    (bias,) = tw.load_artifact(tmp_path / "p.tw", mapped=True).constants
    assert bias.ctypes.data % 4096 == 0 and not bias.flags.writeable


def test_file_mode_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        tw.save(add_program(), tmp_path / "p.tw")
    finally:
        os.umask(old)
    assert (tmp_path / "p.tw").stat().st_mode & 0o777 == 0o640


def test_save_replaces_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "p.tw"
    tw.save(add_program(), path)
    mapped = tw.load_artifact(path, mapped=True)
    tw.save(biased_program(), path)
    check_same(mapped, add_program())
    check_same(tw.load_artifact(path), biased_program())


FULL_DISK = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from tests.runtime_programs import biased_program
from tilewright.runtime.file import save
from tilewright.support.errors import UserError
program = biased_program()
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    save(program, sys.argv[2])
except UserError as error:
    print(error)
"""


def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on file sizes fails in the middle of writing, as a full disk does."""
    root = Path(__file__).resolve().parents[2]
    path = tmp_path / "p.tw"
    path.write_bytes(b"the old file")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(root), str(path)], capture_output=True, text=True, check=False
    )
    assert "cannot write the compiled program" in done.stdout, done.stderr
    assert os.listdir(tmp_path) == ["p.tw"] and path.read_bytes() == b"the old file"


def test_every_cut_and_flip_is_noticed() -> None:
    data = tw.to_bytes(rich_program())
    for size in [*range(0, 200, 7), len(data) // 2, len(data) - 65, len(data) - 1]:
        with pytest.raises(UserError):
            tw.from_bytes(data[:size])
    program = tw.from_bytes(data)
    payload = [i for i in range(0, len(data), 61) if data[i]]  # gaps between sections hold zeros
    for at in payload:
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        with pytest.raises(UserError):
            tw.from_bytes(bytes(flipped))
    check_same(program, rich_program())


def resealed(change: "object") -> bytes:
    """A file whose JSON was changed by somebody who knows how to compute digests."""
    data = tw.to_bytes(rich_program())
    magic, version, large, size, _ = tw._HEADER.unpack_from(data)  # pyright: ignore
    value = json.loads(data[tw._HEADER.size : tw._HEADER.size + size])  # pyright: ignore
    assert callable(change)
    changed = change(value)
    text = json.dumps(value if changed is None else changed, separators=(",", ":")).encode()
    text += b" " * (size - len(text))
    digest = tw.hashlib.sha256(text).digest()
    header = tw._HEADER.pack(magic, version, large, len(text), digest)  # pyright: ignore
    start, end = (-(-(len(header) + n) // 4096) * 4096 for n in (len(text), size))
    return (header + text).ljust(start, b"\0") + data[end:]


@pytest.mark.parametrize(
    "change",
    [
        lambda v: [],
        lambda v: v.update(extra=1),
        lambda v: v.update(arena_bytes=-1),
        lambda v: v.update(arena_bytes=True),
        lambda v: v.update(arena_bytes=1 << 70),
        lambda v: v.update(program=[["segment"]]),
        lambda v: v.update(program=[[]]),
        lambda v: v.update(program=[["segment", [["add", 1, [["stack", 0]], True]]]]),
        lambda v: v["constants"][0].__setitem__(0, "object"),
        lambda v: v["constants"][0].__setitem__(1, [1 << 40, 1 << 40]),
        lambda v: v["constants"][0].__setitem__(2, 1),
        lambda v: v["sections"].clear(),
        lambda v: v["sections"][0].__setitem__(1, 1 << 50),
        lambda v: v["manifest"]["inputs"][0].__setitem__(1, "__doc__"),
        lambda v: v["manifest"].update(options={"a": 1}),
        lambda v: v["manifest"].update(features="avx2"),
    ],
)
def test_wrong_manifests_are_refused(change: object) -> None:
    with pytest.raises(UserError):
        tw.from_bytes(resealed(change))


def test_deep_nesting_is_refused() -> None:
    step: list[object] = ["segment", []]
    for _ in range(70):
        step = ["while", ["arena", 0], [step]]
    with pytest.raises(UserError, match="nested at most 64 deep"):
        tw.from_bytes(resealed(lambda v: v.update(program=[step])))


def test_another_format_version() -> None:
    data = bytearray(tw.to_bytes(add_program()))
    struct.pack_into("<I", data, 8, 99)
    with pytest.raises(UserError, match="format 99, of a newer version") as caught:
        tw.from_bytes(bytes(data))
    assert "compile the model again" in str(caught.value)


def test_missing_processor_features() -> None:
    program = add_program()
    manifest = dataclasses.replace(program.manifest, features=("avx2", "avx1024", "psychic"))
    data = tw.to_bytes(dataclasses.replace(program, manifest=manifest))
    with pytest.raises(UserError, match=r"lacks: .*avx1024, psychic"):
        tw.from_bytes(data)


def test_another_processor() -> None:
    program = add_program()
    manifest = dataclasses.replace(program.manifest, triple="riscv64-unknown-linux-gnu")
    with pytest.raises(UserError, match="compiled for riscv64"):
        tw.from_bytes(tw.to_bytes(dataclasses.replace(program, manifest=manifest)))


def test_not_a_program(tmp_path: Path) -> None:
    (tmp_path / "model.tw").write_bytes(b"\x08\x07onnx")
    with pytest.raises(UserError, match=r"does not start like a \.tw file") as caught:
        tw.load_artifact(tmp_path / "model.tw", mapped=True)
    assert str(tmp_path / "model.tw") in str(caught.value)
    (tmp_path / "empty.tw").touch()
    with pytest.raises(UserError, match="does not start like"):
        tw.load_artifact(tmp_path / "empty.tw", mapped=True)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        tw.load_artifact(tmp_path / "nowhere.tw")
    with pytest.raises(UserError, match="No such file"):
        tw.save(add_program(), tmp_path / "no" / "folder.tw")
