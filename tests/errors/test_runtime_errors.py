"""One test for each mistake in using a compiled program: the message names it, and says what to do."""

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime_programs import (
    N,
    add_program,
    arena,
    artifact,
    biased_program,
    const,
    inp,
    kernel_object,
    out,
    vector,
)
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.session import Session
from tilewright.runtime.team import spin_us
from tilewright.support.artifact import (
    ExternalCall,
    KernelCall,
    Segment,
    Slot,
    TensorSpec,
)
from tilewright.support.errors import UserError
from tilewright.support.program import Branch, ProgramStep, While
from tilewright.support.sizes import Dim, SizeExpr

A = np.arange(N, dtype=np.float32)


def message(feeds: object, outputs: object = None) -> str:
    with Session(add_program(), threads=1) as session:
        with pytest.raises(UserError) as of_run:
            session.run(feeds, outputs)  # pyright: ignore
        with pytest.raises(UserError) as of_bind:
            session.bind(feeds, outputs)  # pyright: ignore
    assert str(of_run.value) == str(of_bind.value)
    return str(of_run.value)


@pytest.mark.parametrize(
    ("given", "kind"),
    [(A, "one array, float32[16]"), (None, "None"), ([A, A], "of type list"), (3, "of type int")],
)
def test_inputs_without_names(given: object, kind: str) -> None:
    assert message(given) == (
        f"inputs are given by name, in a mapping, and this is {kind}\n  try: write run({{'a': …, 'b': …}})"
    )


@pytest.mark.parametrize("names", [None, ["y"]])
def test_arguments_in_the_order_of_onnx_runtime(names: object) -> None:
    assert message(names, {"a": A, "b": A}).endswith("; inputs come first, unlike in ONNX Runtime")


def test_outputs_without_names() -> None:
    text = message({"a": A, "b": A}, ["y"])
    assert "arrays for outputs are given by name, in a mapping, and this is of type list" in text
    assert "try: leave it out" in text


def test_missing_feed() -> None:
    text = message({"a": A})
    assert "b: missing, should be float32[16]" in text
    assert "try: it takes a: float32[16], b: float32[16]" in text


def test_extra_feed() -> None:
    assert "c: there is no such input" in message({"a": A, "b": A, "c": A})


def test_misspelt_feed_is_both() -> None:
    text = message({"a": A, "B": A})
    assert "B: there is no such input" in text and "b: missing" in text


def test_wrong_dtype() -> None:
    text = message({"a": A, "b": A.astype(np.float64)})
    assert "b: is float64[16], should be float32[16]" in text


def test_wrong_byte_order() -> None:
    assert "b: is >f4[16], should be float32[16]" in message({"a": A, "b": A.astype(">f4")})


def test_wrong_shape() -> None:
    assert "a: is float32[15], should be float32[16]" in message({"a": A[1:], "b": A})


def test_wrong_rank() -> None:
    assert "a: is float32[16, 1], should be float32[16]" in message({"a": A[:, None], "b": A})


def test_all_faults_at_once() -> None:
    text = message({"a": A[1:], "b": A.astype(np.int32), "x": 1})
    assert all(f in text for f in ("a: is float32[15]", "b: is int32[16]", "x: there is no such input"))


def test_ragged_list() -> None:
    assert "a: cannot be read as an array" in message({"a": [[1.0], [2.0, 3.0]], "b": A})


def test_list_of_words() -> None:
    assert "a: is <U1[2], which does not fit float32 without loss" in message({"a": ["x", "y"], "b": A})


def test_none_is_no_feed() -> None:
    assert "a: is object[], should be float32[16]" in message({"a": None, "b": A})


def test_fractions_for_integers() -> None:
    call = KernelCall("move", 1, (inp(0), out(0)))
    program = artifact([Segment((call,))], [TensorSpec("i", "int64", ())], [TensorSpec("o", "int64", ())])
    with Session(program) as session, pytest.raises(UserError, match="does not fit int64 without loss"):
        session.run({"i": 1.5})


def test_number_out_of_range() -> None:
    call = KernelCall("nothing", 1, (inp(0),))
    program = artifact([Segment((call,))], [TensorSpec("i", "uint8", (1,))], [])
    with Session(program) as session:
        with pytest.raises(UserError, match="i: cannot be read as an array"):
            session.run({"i": [256]})
        with pytest.raises(UserError, match="i: cannot be read as an array"):
            session.run({"i": [-1]})


def test_unknown_output() -> None:
    assert "total: there is no such output" in message({"a": A, "b": A}, {"total": A.copy()})


def test_output_of_wrong_dtype() -> None:
    text = message({"a": A, "b": A}, {"sum": np.empty(N)})
    assert "sum: is float64[16], should be float32[16]" in text


def test_output_that_is_no_array() -> None:
    assert "sum: is a list, not an array" in message({"a": A, "b": A}, {"sum": [0.0] * N})


@pytest.mark.parametrize(
    "array",
    [np.empty(2 * N, np.float32)[::2], np.frombuffer(bytes(4 * N), np.float32)],
    ids=["strided", "read-only"],
)
def test_output_that_cannot_be_written_in_place(array: "NDArray[np.float32]") -> None:
    assert "sum: is not contiguous, aligned and writable" in message({"a": A, "b": A}, {"sum": array})


def test_output_shares_memory_with_an_input() -> None:
    a = A.copy()
    assert "sum: shares memory with input a" in message({"a": a, "b": A}, {"sum": a})


def test_outputs_share_memory() -> None:
    calls = (KernelCall("move", 1, (inp(0), out(0))), KernelCall("move", 1, (inp(0), out(1))))
    spec = TensorSpec("i", "int64", (1,))
    outs = [TensorSpec("x", "int64", (1,)), TensorSpec("y", "int64", (1,))]
    memory = np.zeros(1, np.int64)
    with (
        Session(artifact([Segment(calls)], [spec], outs)) as session,
        pytest.raises(UserError, match="y: shares memory with output x"),
    ):
        session.run({"i": [1]}, {"x": memory, "y": memory})


def test_closed_session() -> None:
    session = Session(add_program(), threads=1)
    session.run({"a": A, "b": A})
    session.close()
    session.close()
    with pytest.raises(UserError, match="the session is closed"):
        session.run({"a": A, "b": A})
    with pytest.raises(UserError, match="the session is closed"):
        session.bind({"a": A, "b": A})


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_absurd_thread_count(threads: int) -> None:
    with pytest.raises(UserError, match="is not between 1 and"):
        Session(add_program(), threads=threads)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "1e9"])
def test_absurd_spin_time(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TILEWRIGHT_SPIN_US", text)
    with pytest.raises(UserError, match="TILEWRIGHT_SPIN_US"):
        spin_us()


def test_missing_external_code() -> None:
    call = ExternalCall("npu/0", (), ())
    nested = Branch(inp(0), (While(inp(0), (ExternalCall("npu/1", (), ()),)),), ())
    program = artifact([call, nested], [TensorSpec("c", "bool", ())], [])
    with pytest.raises(UserError, match="not given: 'npu/0', 'npu/1'"):
        Session(program)


def test_external_code_that_fails_is_named() -> None:
    def broken(_inputs: object, _outputs: object) -> None:
        raise ValueError("the device is on fire")

    program = artifact([ExternalCall("npu/0", (), ())], [], [])
    with Session(program, externals={"npu/0": broken}) as session:
        with pytest.raises(ValueError, match="on fire") as caught:
            session.run({})
        assert "npu/0" in caught.value.__notes__[0]
        with pytest.raises(ValueError, match="on fire"):  # the context went back to the pool
            session.run({})


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Segment((KernelCall("absent", 1, ()),)), "does not define 'absent'"),
        (Segment((KernelCall("nothing", 0, ()),)), "with 0 parts"),
        (Segment((KernelCall("nothing", 5, (), steps=2),)), "with 5 parts in 2 steps"),
        (Segment((KernelCall("nothing", 1 << 25, (), steps=1 << 25),)), "too many calls"),
        (
            Segment((KernelCall("nothing", 1, ()), KernelCall("nothing", 2, (), beside=True))),
            "beside each other",
        ),
        (Segment((KernelCall("nothing", 1, (inp(2),)),)), "no input 2"),
        (Segment((KernelCall("nothing", 1, (out(1),)),)), "no output 1"),
        (Segment((KernelCall("nothing", 1, (const(0),)),)), "no constant 0"),
        (Segment((KernelCall("nothing", 1, (arena(65),)),)), "no arena 65"),
        (While(arena(-1), ()), "no arena -1"),
        (While(arena(64), ()), "arena 64 is not one bool"),
        (Branch(inp(0), (), ()), "input 0 is not one bool"),
        (ExternalCall("x", ((inp(0), TensorSpec("a", "float32", (4, 4))),), ()), "input 0 is not TensorSpec"),
    ],
)
def test_program_that_does_not_fit_itself(step: ProgramStep[Segment | ExternalCall, Slot], text: str) -> None:
    program = artifact([step], [vector("a"), vector("b")], [vector("s")], arena_bytes=64)
    with pytest.raises(UserError, match=text):
        Session(program)


def test_view_past_the_arena() -> None:
    big: tuple[Slot, TensorSpec] = (arena(64), vector("t"))
    program = artifact([ExternalCall("x", (big,), ())], [], [], arena_bytes=64)
    with pytest.raises(UserError, match="arena 64 is not TensorSpec"):
        Session(program, externals={"x": lambda _i, _o: None})


def test_view_that_may_be_larger_than_its_memory() -> None:
    n = Dim("n", 1, 9)
    spec = TensorSpec("t", "float32", (4, 2), (SizeExpr.of_dim(n), None))
    program = artifact([ExternalCall("x", ((arena(0), spec),), ())], [], [], arena_bytes=64)
    program = dataclasses.replace(program, manifest=dataclasses.replace(program.manifest, dims=(n,)))
    with pytest.raises(UserError, match="t may be larger than its memory"):
        OpenSession(program, externals={"x": lambda _i, _o, _s: None})


def test_code_that_was_not_given_for_open_sizes() -> None:
    program = artifact([ExternalCall("npu/0", (), ())], [], [])
    program = dataclasses.replace(
        program, manifest=dataclasses.replace(program.manifest, dims=(Dim("n", 1, 9),))
    )
    with pytest.raises(UserError, match="needs external code that was not given: 'npu/0'"):
        OpenSession(program)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(UserError, match="bytes of memory"):
        Session(artifact([], [], [], arena_bytes=1 << 60))


def test_program_for_another_machine() -> None:
    program = add_program()
    for change, text in (
        ({"features": ("avx1024",)}, "lacks: avx1024"),
        ({"triple": "arm-x-y"}, "compiled for arm"),
    ):
        manifest = dataclasses.replace(program.manifest, **change)  # pyright: ignore
        with pytest.raises(UserError, match=text):
            Session(dataclasses.replace(program, manifest=manifest))


def test_objects_are_needed() -> None:
    with pytest.raises(UserError, match="does not define 'add'"):
        Session(
            artifact(
                biased_program().program, [vector("a"), vector("b")], [vector("sum")], [A], 192, objects=[]
            )
        )
    assert kernel_object()
