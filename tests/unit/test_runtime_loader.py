"""The loader: what it resolves, how it protects memory, and that damaged objects are errors and not crashes."""

import ctypes
import random
import struct
from pathlib import Path

import pytest

from tests.runtime_programs import driver_object, kernel_object
from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import compile_assembly, compile_object
from tilewright.runtime.loader import Code
from tilewright.support.errors import UserError
from tilewright.target.target import native

CALLER = """
declare i64 @callee(i64)
@table = external global [2 x i64]
@pointer = global ptr @counter
@counter = global i64 40
@zeros = global [1000 x i64] zeroinitializer, align 64
@local = internal constant [4 x i64] [i64 1, i64 2, i64 3, i64 4], align 32

define i64 @caller(i64 %i) {
  %c = call i64 @callee(i64 %i)
  %t_at = getelementptr i64, ptr @table, i64 %i
  %t = load i64, ptr %t_at
  %l_at = getelementptr i64, ptr @local, i64 %i
  %l = load i64, ptr %l_at
  %p = load ptr, ptr @pointer
  %n = load i64, ptr %p
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %p
  %z_at = getelementptr i64, ptr @zeros, i64 999
  %z = load i64, ptr %z_at
  %s1 = add i64 %c, %t
  %s2 = add i64 %s1, %l
  %s3 = add i64 %s2, %n1
  %s4 = add i64 %s3, %z
  ret i64 %s4
}
"""
CALLEE = """
@table = constant [2 x i64] [i64 1000, i64 2000]
define i64 @callee(i64 %i) {
  %r = mul i64 %i, 100
  ret i64 %r
}
"""


def obj(ir: str) -> bytes:
    return compile_object('target triple = "x86_64-unknown-linux-gnu"\n' + ir, native())


def protections(code: Code, *symbols: str) -> list[str]:
    """Access rights of the pages that hold the symbols, from the kernel."""
    found: list[str] = []
    for symbol in symbols:
        address = code.address(symbol)
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            low, high = (int(x, 16) for x in span.split("-"))
            if low <= address < high:
                found.append(rights)
    return found


def test_symbols_resolve_across_objects() -> None:
    code = Code([obj(CALLER), obj(CALLEE)])
    caller = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("caller"))
    assert caller(1) == 100 + 2000 + 2 + 41
    assert caller(0) == 0 + 1000 + 1 + 42
    assert "caller" in code and "nobody" not in code
    assert code.address("zeros") % 64 == 0


def unsafe_pages() -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[0] for line in lines if "wx" in line.split()[1]}


def test_no_page_is_writable_and_executable() -> None:
    before = unsafe_pages()  # older versions of libffi have some
    code = Code([obj(CALLER), obj(CALLEE)])
    assert unsafe_pages() <= before
    assert protections(code, "caller", "callee", "table", "counter") == ["r-xp", "r-xp", "r--p", "rw-p"]


def test_memory_goes_with_the_code() -> None:
    code = Code([obj(CALLEE)])
    before = len(protections(code, "callee"))
    address = code.address("callee")
    del code
    spans = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    assert before == 1
    assert not [s for s in spans if int(s[0], 16) <= address < int(s[1], 16)]


def test_driver_is_self_contained() -> None:
    code = Code([driver_object()])
    assert all(name in code for name in ("tw_run", "tw_start", "tw_worker", "tw_stop", "tw_pause"))


def test_driver_leaves_floating_point_control_alone() -> None:
    assembly = compile_assembly(driver_ir(native()), native())
    assert "mxcsr" not in assembly and "fldcw" not in assembly
    assert "pause" in assembly and "syscall" in assembly


def test_undefined_symbols_are_named() -> None:
    with pytest.raises(UserError, match=r"nobody defines: 'callee' \(object 0\), 'table' \(object 0\)"):
        Code([obj(CALLER)])


def test_two_definitions_are_refused() -> None:
    with pytest.raises(UserError, match="'callee' is also defined in object 0"):
        Code([obj(CALLEE), obj(CALLEE)])


def test_unknown_symbol() -> None:
    with pytest.raises(UserError, match="does not define 'other'"):
        Code([obj(CALLEE)]).address("other")


@pytest.mark.parametrize("line", ["movl $callee, %eax", "movq $callee, %rax"], ids=["32", "32S"])
def test_absolute_relocation_out_of_reach(line: str) -> None:
    """32-bit absolute addresses do not reach where we map."""
    with pytest.raises(UserError, match="to 'callee' is out of reach"):
        Code([obj(CALLEE + f'module asm "{line}"')])


def test_absolute_values_and_wide_relocations() -> None:
    text = 'module asm ".data; .globl a,b; a: .quad callee - .; b: .quad five; .globl five; five = 5"'
    code = Code([obj(CALLEE + text)])
    assert ctypes.c_int64.from_address(code.address("a")).value == code.address("callee") - code.address("a")
    assert ctypes.c_int64.from_address(code.address("b")).value == 5


@pytest.mark.parametrize(
    ("asm", "why"),
    [
        (".section .w,\\22awx\\22; nop", "writable and executable"),
        (".section .t,\\22awT\\22; .long 1", "no kind we emit"),
        (".section .init_array,\\22aw\\22,@init_array; .quad callee", "no kind we emit"),
        (".comm shared,8,8", "which does not exist"),
        (".quad callee@GOT", "relocation type 27"),
        (".p2align 13; nop", "out of range"),
    ],
)
def test_what_we_never_emit_is_refused(asm: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        Code([obj(CALLEE + f'module asm "{asm}"')])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda d: b"", "too few"),
        (lambda d: b"\x7fELF" + bytes(100), "not a relocatable"),
        (lambda d: d[:18] + struct.pack("<H", 183) + d[20:], "machine 183"),
        (lambda d: d[:-1], "outside of the file"),
        (lambda d: d[:40] + struct.pack("<Q", 1 << 63) + d[48:], "outside of the file"),
    ],
    ids=["empty", "not relocatable", "another machine", "cut", "wild header"],
)
def test_damaged_objects(make: object, why: str) -> None:
    assert callable(make)
    with pytest.raises(UserError, match=why):
        Code([make(kernel_object())])


def test_random_damage_is_an_error_or_harmless() -> None:
    """Flip bytes of headers, symbols and relocations; whatever loads is not run."""
    random.seed(0)
    good = obj(CALLER)
    other = obj(CALLEE)
    refused = 0
    for _ in range(600):
        data = bytearray(good)
        for _ in range(random.randint(1, 6)):
            data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        try:
            Code([bytes(data), other])
        except UserError:
            refused += 1
    assert refused > 50


def test_every_cut_is_refused() -> None:
    data = kernel_object()
    for size in range(0, len(data), 97):
        with pytest.raises(UserError):
            Code([data[:size]])
