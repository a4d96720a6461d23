"""Compiling and loading: the same program every time, and never one that was made from something else."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from examples.models import mlp
from tilewright import api
from tilewright.compiler import CompiledModel, compile, compile_for
from tilewright.driver import keys
from tilewright.driver.keys import compiler_digest, file_digest, model_digest, own_digest, program_key
from tilewright.driver.passes import PASSES
from tilewright.ops.accuracy import DEFAULT, Accuracy
from tilewright.runtime import file
from tilewright.runtime.cache import Cache
from tilewright.target.target import AVX2, BASELINE

MODEL = mlp((24, 16, 8))
X = np.random.default_rng(0).standard_normal((1, 24)).astype(np.float32)


def program(made: CompiledModel) -> bytes:
    return file.to_bytes(made.artifact)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gains an entry whenever a model is compiled by `load`."""
    seen: list[str] = []

    def counted(target: object, model: object, digest: str, *rest: object, **more: object) -> CompiledModel:
        seen.append(digest)
        return compile_for(target, model, digest, *rest, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("tilewright.compiler.compile_for", counted)
    return seen


def run(model: "str | Path | bytes | onnx.ModelProto", **options: object) -> np.ndarray:
    with api.load(model, threads=1, **options) as session:  # pyright: ignore[reportArgumentType]
        return session.run({session.inputs[0].name: X})[session.outputs[0].name]


# ---------------------------------------------------------------------------------------------------- the same program


def test_programs_are_the_same_with_and_without_workers() -> None:
    alone, helped = (compile_for(BASELINE, MODEL, "", workers=n) for n in (0, 2))
    assert program(alone) == program(helped)


def test_programs_are_the_same_with_and_without_cached_objects(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    made = [compile_for(BASELINE, MODEL, "", cache=cache, workers=0) for _ in range(2)]
    assert len(list((tmp_path / "c").iterdir())) > 1
    assert program(made[0]) == program(made[1])


REPEATED = """
import sys
from examples.models import mlp
from tilewright.compiler import compile_for
from tilewright.runtime.file import to_bytes
from tilewright.target.target import BASELINE
sys.stdout.buffer.write(to_bytes(compile_for(BASELINE, mlp((24, 16, 8)), "", workers=0).artifact))
"""


def test_programs_are_the_same_in_every_process() -> None:
    root = Path(__file__).resolve().parents[2]
    for seed in ("1", "2"):  # sets of strings have another order
        done = subprocess.run(
            [sys.executable, "-c", REPEATED],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join((f"{root}/src", str(root))),
            },
            capture_output=True,
            check=True,
        )
        assert done.stdout == program(compile_for(BASELINE, MODEL, "", workers=0))


def test_seconds_name_every_stage() -> None:
    made = compile(MODEL, target="x86-64")
    passes = [p.name for p in PASSES]
    stages = ["import", *passes, "lower", "emit", "llvm", "constants", "link"]
    assert list(made.seconds) == stages
    assert all(s >= 0 for s in made.seconds.values())


# ------------------------------------------------------------------------------------------------------------ the cache


def test_a_model_is_compiled_once(folder: Path, compilations: list[str]) -> None:
    path = folder / "model.onnx"
    onnx.save(MODEL, path)
    want = run(path)
    for same in (path, str(path), path.read_bytes(), onnx.load(path)):
        np.testing.assert_array_equal(run(same), want)
    assert len(compilations) == 1
    run(path, cache=False)
    run(path, target="x86-64")
    assert len(compilations) == 3


def test_a_changed_model_is_compiled_again(folder: Path, compilations: list[str]) -> None:
    path = folder / "model.onnx"
    onnx.save(mlp((24, 16, 8), seed=1), path)
    first = run(path)
    times = path.stat()
    onnx.save(mlp((24, 16, 8), seed=2), path)
    os.utime(
        path, ns=(times.st_atime_ns, times.st_mtime_ns)
    )  # the same size and time: only its content differs
    assert not np.array_equal(run(path), first)
    assert len(compilations) == 2


def external(path: Path, seed: int) -> None:
    (path.parent / "weights.bin").unlink(missing_ok=True)  # or onnx appends to it
    onnx.save(
        mlp((24, 16, 8), seed=seed),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )


def test_external_data_is_part_of_the_model(folder: Path, compilations: list[str]) -> None:
    path = folder / "model.onnx"
    external(path, 1)
    old, model = (folder / "weights.bin").read_bytes(), path.read_bytes()
    first = run(path)
    run(path)
    assert len(compilations) == 1
    external(path, 2)
    assert path.read_bytes() == model  # only the weights have changed
    second = run(path)
    assert not np.array_equal(second, first)
    (folder / "weights.bin").write_bytes(old)
    np.testing.assert_array_equal(run(path), first)


def test_external_data_that_was_written_meanwhile_is_not_kept(
    folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "model.onnx"
    external(path, 1)
    monkeypatch.setattr(api.time, "time_ns", lambda: 0)  # before they were written
    for _ in range(2):
        run(path)
    assert len(compilations) == 2


def test_a_model_that_changes_while_it_is_compiled_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "model.onnx"
    onnx.save(MODEL, path)

    def touched(*arguments: object, **more: object) -> CompiledModel:
        onnx.save(mlp((24, 16, 8), seed=5), path)
        return compile_for(*arguments, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("tilewright.compiler.compile_for", touched)
    run(path)
    assert not list((folder / "cache").glob("*.tw"))


def test_a_changed_compiler_compiles_again(
    folder: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "model.onnx"
    onnx.save(MODEL, path)
    run(path)
    monkeypatch.setattr(keys, "compiler_digest", lambda: "another")
    run(path)
    assert len(compilations) == 2


def test_a_damaged_program_is_compiled_again(
    folder: Path, compilations: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "model.onnx"
    onnx.save(MODEL, path)
    want = run(path)
    [cached] = (folder / "cache").glob("*.tw")
    data = bytearray(cached.read_bytes())
    data[-70] ^= 1  # in the weights
    cached.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(run(path), want)
    assert len(compilations) == 2
    assert "checksum of the weights" in caplog.text
    np.testing.assert_array_equal(run(path), want)
    assert len(compilations) == 2


def test_an_older_format_is_compiled_again(folder: Path, compilations: list[str]) -> None:
    path = folder / "model.onnx"
    onnx.save(MODEL, path)
    run(path)
    [cached] = (folder / "cache").glob("*.tw")
    data = bytearray(cached.read_bytes())
    data[8] = 1  # its version
    cached.write_bytes(data)
    run(path)
    assert len(compilations) == 2


WARM = """
import sys
import tilewright
with tilewright.load(sys.argv[1], threads=1) as session:
    print(session.inputs[0].shape, [m for m in ("onnx", "llvmlite", "tilewright.compiler") if m in sys.modules])
"""


def test_a_warm_load_imports_no_compiler(folder: Path) -> None:
    path = folder / "model.onnx"
    onnx.save(MODEL, path)
    run(path)
    done = subprocess.run(
        [sys.executable, "-c", WARM, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "(1, 24) []", done.stderr


# ------------------------------------------------------------------------------------------------------------- the keys


def test_every_fact_changes_the_key() -> None:
    base = ("aa", (), {"x": (1, 2)}, AVX2, DEFAULT)
    others = [
        ("ab", (), {"x": (1, 2)}, AVX2, DEFAULT),
        ("aa", ("bb",), {"x": (1, 2)}, AVX2, DEFAULT),
        ("aa", (), {"x": (2, 1)}, AVX2, DEFAULT),
        ("aa", (), {"y": (1, 2)}, AVX2, DEFAULT),
        ("aa", (), None, AVX2, DEFAULT),
        ("aa", (), {"x": (1, 2)}, BASELINE, DEFAULT),
        (
            "aa",
            (),
            {"x": (1, 2)},
            replace(AVX2, machine=replace(AVX2.machine, l2_rate=1e9)),
            DEFAULT,
        ),
        ("aa", (), {"x": (1, 2)}, replace(AVX2, cpu="generic"), DEFAULT),
        ("aa", (), {"x": (1, 2)}, replace(AVX2, features=AVX2.features - {"fma"}), DEFAULT),
        ("aa", (), {"x": (1, 2)}, AVX2, Accuracy(None)),
    ]
    found = {program_key(*facts) for facts in (base, *others)}
    assert len(found) == 1 + len(others)
    assert program_key("aa", (), {"x": [np.int64(1), 2]}, AVX2, DEFAULT) == program_key(*base)  # pyright: ignore


def test_any_source_file_changes_the_digest_of_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ir" / "__pycache__").mkdir(parents=True)
    (tmp_path / "ir" / "expr.py").write_text("a = 1\n")
    monkeypatch.setattr(keys, "_FOLDER", tmp_path)

    def digest() -> str:
        own_digest.cache_clear()
        return compiler_digest()

    try:
        first = digest()
        (tmp_path / "ir" / "__pycache__" / "expr.py").write_text("")
        assert digest() == first
        (tmp_path / "ir" / "expr.py").write_text("a = 2\n")
        second = digest()
        (tmp_path / "ir" / "expr.py").rename(tmp_path / "ir" / "stmt.py")
        assert len({first, second, digest()}) == 3
    finally:
        own_digest.cache_clear()


def test_digest_of_a_large_file_is_noted_once_it_has_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_LARGE", 4)
    hashed: list[str] = []
    real = keys.hashlib.file_digest

    def counted(f: object, name: str) -> object:
        hashed.append(name)
        return real(f, name)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(keys.hashlib, "file_digest", counted)
    path, cache = tmp_path / "model.onnx", Cache(tmp_path / "cache")
    path.write_bytes(b"content")
    first = file_digest(path, cache)
    assert file_digest(path, cache) == first and len(hashed) == 2  # written just now: not trusted yet
    monkeypatch.setattr(keys, "_SETTLED_NS", -1)
    assert {file_digest(path, cache) for _ in range(3)} == {first} and len(hashed) == 3
    times = path.stat()
    path.write_bytes(b"CONTENT")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_digest(path, cache) != first and len(hashed) == 4


def test_digests_of_models(tmp_path: Path) -> None:
    cache = Cache(None)
    path = tmp_path / "m.onnx"
    onnx.save(MODEL, path)
    assert model_digest(path, cache) == model_digest(path.read_bytes(), cache)
    assert model_digest(tmp_path / "absent.onnx", cache) == ""
    assert model_digest(MODEL, cache) == model_digest(mlp((24, 16, 8)), cache) != ""


def test_a_large_model_in_memory_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_SERIALISED", 100)
    assert model_digest(MODEL, Cache(None)) == ""
