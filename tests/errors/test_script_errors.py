"""Mistakes in tensor programs written as Python functions: one test per message, each with the place it marks."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import tilewright as tw
from tilewright.support.errors import UserError

N = 8
TABLE = {"n": 8}
SIZES = (4, 8)
CONFIG = SimpleNamespace(n=8)


def refused(text: str, message: str, marked: str, hint: str = "") -> None:
    """The program is refused with this message, and the caret is under `marked`."""
    with pytest.raises(UserError) as e:
        tw.func(text)
    assert message in e.value.message
    assert hint in (e.value.hint or "")
    assert e.value.where is not None
    _, source, caret = e.value.where.split("\n")
    start, end = caret.index("^"), caret.rindex("^") + 1
    assert source[start:end] == marked, str(e.value)


def body(lines: str, more: str = "") -> str:
    indented = "\n".join(f"    {line}" for line in lines.splitlines())
    return f"def f(A: f32[8, 8], x: f32[8], C: out(f32[8, 8]){more}):\n{indented}\n"


FILL = "for i, j in grid(8, 8):\n    C[i, j] = 0.0\n"

MISTAKES: dict[str, tuple[str, str, str]] = {
    "unknown name": ("for i, j in grid(8, 8):\n    C[i, j] = a[i, j]", "nothing is called 'a'", "a"),
    "unknown function": (
        "for i, j in grid(8, 8):\n    C[i, j] = relu(A[i, j])",
        "no function 'relu'",
        "relu(A[i, j])",
    ),
    "wrong rank": ("for i in range(8):\n    C[i] = 0.0", "has 2 dimensions, and 1 indices", "C[i]"),
    "wrong rank of a read": (
        "for i, j in grid(8, 8):\n    C[i, j] = x[i, j]",
        "has 1 dimensions, and 2 indices",
        "x[i, j]",
    ),
    "extent that is not constant": (
        "for i in range(8):\n    for j in range(i):\n        C[i, j] = 0.0",
        "the extent i is not known",
        "i",
    ),
    "extent that is a float": (
        "for i in range(2.5):\n    C[i, 0] = 0.0",
        "the extent 2.5 is not known",
        "2.5",
    ),
    "negative extent": ("for i in range(-3):\n    C[i, 0] = 0.0", "the extent is -3", "range(-3)"),
    "extent of a grid": ("for i, j in grid(8):\n    C[i, j] = 0.0", "2 variables for a grid of 1", "i, j"),
    "several variables of a range": (
        "for i, j in range(8):\n    C[i, j] = 0.0",
        "range has one variable",
        "for i, j in range(8):",
    ),
    "loop over a list": ("for i in [1, 2]:\n    C[i, 0] = 0.0", "nothing that a loop can run over", "[1, 2]"),
    "loop with else": (
        "for i in range(8):\n    C[i, 0] = 0.0\nelse:\n    C[0, 0] = 0.0",
        "a loop has no else",
        "C[0, 0] = 0.0",
    ),
    "loop variable bound twice": (
        "for i in range(8):\n    for i in range(8):\n        C[i, i] = 0.0",
        "i is the name of a loop around this one",
        "i",
    ),
    "loop variable called like a buffer": (
        "for A in range(8):\n    C[A, 0] = 0.0",
        "A is the name of a buffer",
        "A",
    ),
    "loop variable that is no name": (
        "for x[0] in range(8):\n    C[0, 0] = 0.0",
        "a loop variable is a name",
        "x[0]",
    ),
    "store to an input": (
        FILL + "for i in range(8):\n    x[i] = 0.0",
        "x is an input, and is stored to",
        "x[i]",
    ),
    "update of an input": (FILL + "for i in range(8):\n    x[i] += 1.0", "x is an input", "x[i] += 1.0"),
    "store to what is no buffer": ("for i in range(8):\n    i[0] = 0.0\n" + FILL, "i is not a buffer", "i"),
    "assignment to a buffer": ("C = A", "C is a buffer", "C"),
    "assignment to a loop variable": (
        "for i in range(8):\n    i = 3\n    C[i, 0] = 0.0",
        "i is a loop variable",
        "i",
    ),
    "two targets": (
        "for i in range(8):\n    a, b = 1.0, 2.0\n    C[i, 0] = a",
        "one element or one name",
        "a, b",
    ),
    "annotated assignment": ("y: int = 3\n" + FILL, "made by `T = tw.alloc", "y: int = 3"),
    "while": ("while True:\n    pass\n" + FILL, "has no `while`", "while True:"),
    "return": (
        "for i in range(8):\n    return C[i, 0]",
        "results are stored, not returned",
        "return C[i, 0]",
    ),
    "print": (FILL + "print(C)", "this statement does nothing", "print(C)"),
    "nested function": ("def g():\n    pass\n" + FILL, "has no `functiondef`", "def g():"),
    "scalar that accumulates": (
        "for i in range(8):\n    s = 0.0\n    for k in range(8):\n        s += A[i, k]\n    C[i, 0] = s",
        "s is an abbreviation and cannot be updated",
        "s",
    ),
    "scalar that accumulates, written out": (
        "for i in range(8):\n    s = 0.0\n    for k in range(8):\n        s = s + A[i, k]\n    C[i, 0] = s",
        "s is an abbreviation and cannot be updated",
        "s",
    ),
    "expression that accumulates": (
        "for i in range(8):\n    s = x[i]\n    for k in range(8):\n        s = s + A[i, k]\n    C[i, 0] = s",
        "s is an abbreviation and cannot be updated",
        "s",
    ),
    "abbreviation that no longer holds": (
        "for i, j in grid(8, 8):\n    t = C[i, j]\n    C[i, j] = A[i, j]\n    C[i, j] = t",
        "t abbreviates `t = C[i, j]`, and C has been stored to since",
        "t",
    ),
    "abbreviation in a block that no longer holds": (
        'for i in range(8):\n    with block("b"):\n        v = spatial(8, i)\n        t = C[v, 0]\n'
        "        C[v, 0] = 1.0\n        C[v, 1] = t",
        "C has been stored to since",
        "t",
    ),
    "abbreviation of an abbreviation": (
        "for i, j in grid(8, 8):\n    t = C[i, j]\n    u = t + 1.0\n    C[i, j] = A[i, j]\n    C[i, j] = u",
        "u abbreviates `u = t + 1.0`, and C has been stored to since",
        "u",
    ),
    "abbreviation of what the loop stores": (
        "t = C[0, 0]\nfor i, j in grid(8, 8):\n    C[i, j] = t",
        "C has been stored to since",
        "t",
    ),
    "abbreviation assigned in a loop": (
        "t = x[0] * 2.0\nfor i in range(8):\n    t = x[i] * 3.0\n    C[i, 0] = t\nC[0, 1] = t",
        "it has been assigned in a loop",
        "t",
    ),
    "condition on what is stored": (
        "for i, j in grid(8, 8):\n    if C[i, j] < 0.0:\n        C[i, j] = 0.0\n        C[i, 0] = 1.0",
        "the condition reads C",
        "C[i, j] < 0.0",
    ),
    "order that matters": (
        "for i, j, k in grid(8, 8, 8):\n    C[i, j] = A[i, k]",
        "iterations of k may store to the same element of C",
        "C[i, j] = A[i, k]",
    ),
    "two iterations to an element": (
        "for i, j in grid(8, 8):\n    C[i // 2, j] = A[i, j]",
        "iterations of i may store to the same element of C",
        "C[i // 2, j] = A[i, j]",
    ),
    "diagonals": (
        "for i, j in grid(4, 4):\n    C[i + j, 0] = A[i, j]",
        "iterations of i, j may store to the same element of C",
        "C[i + j, 0] = A[i, j]",
    ),
    "recurrence": (
        "for i, j, k in grid(8, 8, 8):\n    C[i, j] = C[i, j] * x[k] + A[i, k]",
        "the order matters",
        "C[i, j] = C[i, j] * x[k] + A[i, k]",
    ),
    "init of what is no reduction": (
        "for i, j in grid(8, 8):\n    with init():\n        C[i, j] = 0.0\n    C[i, j] += A[i, j]",
        "no loop that repeats it",
        "C[i, j] += A[i, j]",
    ),
    "init without an update": (
        "for i, j in grid(8, 8):\n    with init():\n        C[i, j] = 0.0",
        "`init` comes right before the update",
        "with init():",
    ),
    "init of another buffer": (
        "T = alloc(f32[8, 8])\nfor i, j, k in grid(8, 8, 8):\n    with init():\n        T[i, j] = 0.0\n"
        "    C[i, j] += A[i, k]",
        "`init` gives C its first value",
        "T[i, j] = 0.0",
    ),
    "init of another element": (
        "for i, j, k in grid(8, 8, 8):\n    with init():\n        C[j, i] = 0.0\n    C[i, j] += A[i, k]",
        "its init stores to another element",
        "C[i, j] += A[i, k]",
    ),
    "block under a condition": (
        'for i in range(8):\n    if i < 4:\n        with block("C"):\n            v = spatial(8, i)\n'
        "            C[v, 0] = 0.0",
        "a block does not stand under `if`",
        'with block("C"):',
    ),
    "index out of bounds": (
        "for i, j in grid(8, 8):\n    C[i, j + 1] = 0.0",
        "which goes from 1 to 8",
        "C[i, j + 1] = 0.0",
    ),
    "types that do not fit": (
        "for i, j in grid(8, 8):\n    C[i, j] = A[i, j] + i",
        "f32 and i64",
        "A[i, j] + i",
    ),
    "value of another type": (
        "for i, j in grid(8, 8):\n    C[i, j] = i",
        "the value stored to C: f32[8, 8] is i64",
        "C[i, j] = i",
    ),
    "condition that is a number": (
        "for i, j in grid(8, 8):\n    if i:\n        C[i, j] = 0.0",
        "the condition is i64",
        "C[i, j] = 0.0",
    ),
    "buffer as a value": ("for i, j in grid(8, 8):\n    C[i, j] = A", "A is a buffer", "A"),
    "number without a type": (
        "for i, j in grid(8, 8):\n    C[i, j] = cast(f32, 0.5)",
        "the type of 0.5 is not clear",
        "0.5",
    ),
    "chained comparison": (
        "for i, j in grid(8, 8):\n    C[i, j] = select(0 < i < 4, A[i, j], 0.0)",
        "comparisons do not chain",
        "0 < i < 4",
    ),
    "lambda": (
        "for i, j in grid(8, 8):\n    C[i, j] = (lambda: 0.0)()",
        "not an expression",
        "(lambda: 0.0)()",
    ),
    "alloc without a type": ("T = alloc()\n" + FILL, "alloc takes a type and a scope", "alloc()"),
    "alloc in a loop": (
        "for i in range(8):\n    T = alloc(f32[8])\n    C[i, 0] = 0.0",
        "allocated outside of loops",
        "T = alloc(f32[8])",
    ),
    "init under a condition": (
        "for i, j, k in grid(8, 8, 8):\n    if A[i, k] > 0.0:\n        with init():\n            C[i, j] = 0.0\n"
        "        C[i, j] += A[i, k]",
        "`init` does not stand under `if`",
        "with init():",
    ),
    "two blocks of one name": (
        'for i in range(8):\n    with block("b"):\n        v = spatial(8, i)\n        C[v, 0] = 0.0\n'
        '    with block("b"):\n        w = spatial(8, i)\n        C[w, 1] = 0.0',
        "there is a block 'b' already",
        'with block("b"):',
    ),
    "loop variable in a block": (
        'for i in range(8):\n    with block("b"):\n        v = spatial(8, i)\n        C[v, i] = 0.0',
        "i is not visible here in block b",
        'with block("b"):',
    ),
    "slice": ("for i in range(8):\n    C[i, 0] = A[i, :]", "not an expression", ":"),
    "attribute of a buffer": ("for i in range(8):\n    C[i, 0] = A.T[i, 0]", "a buffer is expected", "A.T"),
    "type of an allocation": ("T = alloc(8)\n" + FILL, "a type is expected", "8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_marked(mistake: str) -> None:
    lines, message, marked = MISTAKES[mistake]
    refused(body(lines), message, marked)


def test_output_that_is_not_stored() -> None:
    refused(body(FILL, ", D: out(f32[8])"), "nothing is stored to the output D", "D: out(f32[8])")


def test_parameter_without_a_type() -> None:
    refused(body(FILL, ", D"), "D has no type", "D")


def test_parameter_with_a_default() -> None:
    refused(body(FILL, ", D: f32[1] = None"), "a buffer has no default value", "None")


def test_parameters_of_any_number() -> None:
    refused(body(FILL, ", *D"), "plain parameters only", "D")


def test_type_that_is_none() -> None:
    refused("def f(A: float, C: out(f32[8])):\n    C[0] = 0.0\n", "a type is expected", "float")


def test_extent_in_a_type() -> None:
    refused("def f(C: out(f32[n])):\n    C[0] = 0.0\n", "n is not an integer that is known", "n")
    refused("def f(C: out(f32[-1])):\n    C[0] = 0.0\n", "the extent is -1", "-1")


def test_not_python() -> None:
    with pytest.raises(UserError, match="not Python syntax"):
        tw.func("def f(:\n")


def test_more_than_a_function() -> None:
    with pytest.raises(UserError, match="one function is expected"):
        tw.func("x = 3\n")
    with pytest.raises(UserError, match="is not async"):
        tw.func("async def f(): pass\n")


def test_not_a_function() -> None:
    with pytest.raises(UserError, match="a int is not a tensor program"):
        tw.func(3)  # pyright: ignore


# ------------------------------------------------------------------------------------------------- decorated functions


def message_of(define: Callable[[], object]) -> UserError:
    with pytest.raises(UserError) as e:
        define()
    return e.value


def line_of(error: UserError) -> str:
    """The line of this file that the error names."""
    assert error.where is not None
    file, _, number = error.where.split("\n")[0].rpartition(":")
    assert Path(file) == Path(__file__)
    return Path(file).read_text().splitlines()[int(number) - 1].strip()


def test_place_is_file_and_line() -> None:
    def define() -> None:
        @tw.func
        def f(A: tw.f32[N], C: tw.out(tw.f32[N])):
            for i in range(N):
                C[i] = B[i]  # noqa: F821

    error = message_of(define)
    assert line_of(error).startswith("C[i] = B[i]")
    assert error.message == "nothing is called 'B' here"


def test_caret_counts_characters_not_bytes() -> None:
    refused("def f(Ä: f32[8], C: out(f32[8])):\n    C[0] = Ä[0] + Ö[0]\n", "nothing is called 'Ö'", "Ö")


def test_python_function() -> None:
    def define() -> None:
        @tw.func
        def f(C: tw.out(tw.f32[N])):
            for i in range(N):
                C[i] = math.exp(0.0)

    error = message_of(define)
    assert "math.exp is a Python function" in error.message and "tw.exp" in (error.hint or "")
    assert line_of(error) == "C[i] = math.exp(0.0)"


def test_value_without_a_meaning() -> None:
    def define() -> None:
        @tw.func
        def f(C: tw.out(tw.f32[N])):
            for i in range(TABLE):
                C[i] = 0.0

    assert "TABLE is a dict" in message_of(define).message


def test_module_as_a_value() -> None:
    def define() -> None:
        @tw.func
        def f(C: tw.out(tw.f32[N])):
            C[0] = math

    assert "math is a module" in message_of(define).message


def test_attribute_that_does_not_exist() -> None:
    def define() -> None:
        @tw.func
        def f(C: tw.out(tw.f32[N])):
            for i in range(CONFIG.m):
                C[i] = 0.0

    assert "SimpleNamespace has no 'm'" in message_of(define).message


def test_element_that_does_not_exist() -> None:
    def define() -> None:
        @tw.func
        def f(C: tw.out(tw.f32[N])):
            for i in range(SIZES[2]):
                C[i] = 0.0

    assert "SIZES has no element 2" in message_of(define).message


def test_spread_of_what_is_no_tuple() -> None:
    def define() -> None:
        @tw.func
        def f(C: tw.out(tw.f32[N])):
            for i in tw.grid(*N):
                C[i] = 0.0

    assert "only a tuple from outside" in message_of(define).message


def test_arithmetic_without_a_value() -> None:
    def define() -> None:
        @tw.func
        def f(C: tw.out(tw.f32[N])):
            for i in range(N // 0):
                C[i] = 0.0

    assert "N // 0 has no value" in message_of(define).message.replace("8", "N")


def test_source_is_not_available() -> None:
    names: dict[str, object] = {"tw": tw}
    exec("def f(C: tw.out(tw.f32[8])):\n    C[0] = 0.0\n", names)
    error = message_of(lambda: tw.func(names["f"]))  # pyright: ignore
    assert error.message == "the source of f is not available"


@pytest.mark.parametrize("word", ["grid", "block", "init", "alloc", "fma", "exp", "max", "f32"])
def test_word_outside_of_a_program(word: str) -> None:
    with pytest.raises(UserError, match=rf"tw\.{word} is a word of tensor programs"):
        getattr(tw, word)(8)
