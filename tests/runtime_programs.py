"""Small compiled programs for the runtime's tests, from kernels written by hand in LLVM IR."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tilewright.codegen.driver import driver_ir
from tilewright.codegen.objects import compile_object
from tilewright.support.artifact import (
    FORMAT_VERSION,
    Artifact,
    ExternalCall,
    KernelCall,
    Manifest,
    Place,
    Segment,
    Slot,
    TensorSpec,
)
from tilewright.support.program import ProgramStep
from tilewright.target.target import native

N = 16  # elements of a vector
PARTS = 4

_TRIPLE = 'target triple = "x86_64-unknown-linux-gnu"\n'

# out[i] = a[i] + b[i], four elements a part
_ADD = """
define void @add(ptr %args, i64 %part) {
entry:
  %a_at = load ptr, ptr %args
  %b_slot = getelementptr ptr, ptr %args, i64 1
  %b_at = load ptr, ptr %b_slot
  %o_slot = getelementptr ptr, ptr %args, i64 2
  %o_at = load ptr, ptr %o_slot
  %i = mul i64 %part, 4
  %a_i = getelementptr float, ptr %a_at, i64 %i
  %b_i = getelementptr float, ptr %b_at, i64 %i
  %o_i = getelementptr float, ptr %o_at, i64 %i
  %a = load <4 x float>, ptr %a_i, align 4
  %b = load <4 x float>, ptr %b_i, align 4
  %s = fadd <4 x float> %a, %b
  store <4 x float> %s, ptr %o_i, align 4
  ret void
}
"""

# out[part] = a sum over all of a, multiplied by 0.5: every part reads what all parts of the call before wrote
_MIX = """
define void @mix(ptr %args, i64 %part) {
entry:
  %a_at = load ptr, ptr %args
  %o_slot = getelementptr ptr, ptr %args, i64 1
  %o_at = load ptr, ptr %o_slot
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k1, %loop ]
  %s = phi float [ 0.0, %entry ], [ %s1, %loop ]
  %j0 = add i64 %k, %part
  %j = and i64 %j0, 15
  %p = getelementptr float, ptr %a_at, i64 %j
  %v = load float, ptr %p, align 4
  %h = fmul float %s, 0.5
  %s1 = fadd float %h, %v
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, 16
  br i1 %more, label %loop, label %done
done:
  %o = getelementptr float, ptr %o_at, i64 %part
  store float %s1, ptr %o, align 4
  ret void
}
"""

# out[0] = x[0] + 1 (i64); flag[0] = out[0] < limit[0]
_COUNT = """
define void @count(ptr %args, i64 %part) {
  %x_at = load ptr, ptr %args
  %l_slot = getelementptr ptr, ptr %args, i64 1
  %l_at = load ptr, ptr %l_slot
  %o_slot = getelementptr ptr, ptr %args, i64 2
  %o_at = load ptr, ptr %o_slot
  %f_slot = getelementptr ptr, ptr %args, i64 3
  %f_at = load ptr, ptr %f_slot
  %x = load i64, ptr %x_at
  %l = load i64, ptr %l_at
  %x1 = add i64 %x, 1
  store i64 %x1, ptr %o_at
  %c = icmp slt i64 %x1, %l
  %b = zext i1 %c to i8
  store i8 %b, ptr %f_at
  ret void
}
"""

# copies one i64
_MOVE = """
define void @move(ptr %args, i64 %part) {
  %x_at = load ptr, ptr %args
  %o_slot = getelementptr ptr, ptr %args, i64 1
  %o_at = load ptr, ptr %o_slot
  %x = load i64, ptr %x_at
  store i64 %x, ptr %o_at
  ret void
}
"""

# spins n[0] times
_SLOW = """
define void @slow(ptr %args, i64 %part) {
entry:
  %n_at = load ptr, ptr %args
  %n = load i64, ptr %n_at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %i1 = add i64 %i, 1
  call void asm sideeffect "pause", ""()
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

# counts[part] grows by one
_MARK = """
define void @mark(ptr %args, i64 %part) {
  %at = load ptr, ptr %args
  %p = getelementptr i64, ptr %at, i64 %part
  %n = load i64, ptr %p
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %p
  ret void
}
"""

# mix, from the row of the part's step to the next row
_SCAN = """
define void @scan(ptr %args, i64 %part) {
entry:
  %at = load ptr, ptr %args
  %column = and i64 %part, 15
  %row = sub i64 %part, %column
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k1, %loop ]
  %s = phi float [ 0.0, %entry ], [ %s1, %loop ]
  %j0 = add i64 %k, %column
  %j1 = and i64 %j0, 15
  %j = add i64 %row, %j1
  %p = getelementptr float, ptr %at, i64 %j
  %v = load float, ptr %p, align 4
  %h = fmul float %s, 0.5
  %s1 = fadd float %h, %v
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, 16
  br i1 %more, label %loop, label %done
done:
  %next = add i64 %part, 16
  %o = getelementptr float, ptr %at, i64 %next
  store float %s1, ptr %o, align 4
  ret void
}
"""

_NOTHING = """
define void @nothing(ptr %args, i64 %part) {
  ret void
}
"""


@lru_cache
def kernel_object(ir: str = _ADD + _MIX + _COUNT + _MOVE + _SLOW + _MARK + _SCAN + _NOTHING) -> bytes:
    return compile_object(_TRIPLE + ir, native())


@lru_cache
def driver_object() -> bytes:
    return compile_object(driver_ir(native()), native())


def inp(at: int) -> Slot:
    return Slot(Place.INPUT, at)


def out(at: int) -> Slot:
    return Slot(Place.OUTPUT, at)


def const(at: int) -> Slot:
    return Slot(Place.CONSTANT, at)


def arena(at: int) -> Slot:
    return Slot(Place.ARENA, at)


def vector(name: str) -> TensorSpec:
    return TensorSpec(name, "float32", (N,))


def artifact(
    program: Sequence[ProgramStep[Segment | ExternalCall, Slot]],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    constants: Sequence[NDArray[np.generic]] = (),
    arena_bytes: int = 0,
    objects: Sequence[bytes] | None = None,
) -> Artifact:
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        compiler_version="0",
        llvm_version="0",
        options={"level": "test"},
        model_digest="0" * 64,
        triple="x86_64-unknown-linux-gnu",
        features=tuple(sorted(native().features)),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )
    code = (kernel_object(),) if objects is None else tuple(objects)
    return Artifact(manifest, driver_object(), code, tuple(constants), arena_bytes, tuple(program))


def add_program(parts: int = PARTS) -> Artifact:
    """sum = a + b."""
    call = KernelCall("add", parts, (inp(0), inp(1), out(0)))
    return artifact([Segment((call,))], [vector("a"), vector("b")], [vector("sum")])


def biased_program() -> Artifact:
    """sum = (a + b) + bias, through the arena."""
    bias = np.arange(N, dtype=np.float32)
    calls = (
        KernelCall("add", PARTS, (inp(0), inp(1), arena(64))),
        KernelCall("add", PARTS, (arena(64), const(0), out(0))),
    )
    return artifact([Segment(calls)], [vector("a"), vector("b")], [vector("sum")], [bias], 192)


def mixing_program(rounds: int) -> Artifact:
    """`rounds` dependent kernels with a barrier after each: a missing barrier changes the result."""
    place = [arena(0), arena(64)]
    calls = [KernelCall("mix", N, (inp(0), place[0]))]
    calls += [KernelCall("mix", N, (place[i % 2], place[1 - i % 2])) for i in range(rounds - 1)]
    calls.append(KernelCall("mix", N, (place[(rounds - 1) % 2], out(0))))
    return artifact([Segment(tuple(calls))], [vector("x")], [vector("y")], arena_bytes=128)


def mixed(x: NDArray[np.float32], rounds: int) -> NDArray[np.float32]:
    """What `mixing_program` computes."""
    for _ in range(rounds + 1):
        y = np.empty_like(x)
        for part in range(N):
            s = np.float32(0)
            for k in range(N):
                s = np.float32(np.float32(s * np.float32(0.5)) + x[(k + part) % N])
            y[part] = s
        x = y
    return x


def scanning_program(steps: int) -> Artifact:
    """One kernel of several steps, each of which reads what all parts of the one before wrote: the rows of y."""
    rows = TensorSpec("y", "float32", (steps + 1, N))
    calls = (
        KernelCall("add", PARTS, (inp(0), const(0), out(0))),
        KernelCall("scan", steps * N, (out(0),), steps=steps),
    )
    return artifact([Segment(calls)], [vector("x")], [rows], [np.zeros(N, np.float32)])


def marking_program(calls: Sequence[int]) -> Artifact:
    """A call for each of `calls`, which says how many parts it has; these are counted in an output of its own."""
    outs = [TensorSpec(f"y{n}", "int64", (parts,)) for n, parts in enumerate(calls)]
    marks = tuple(KernelCall("mark", parts, (out(n),), n % 3 > 0) for n, parts in enumerate(calls))
    return artifact([Segment(marks)], [], outs)


def chained_program(rounds: int) -> Artifact:
    """Between parallel kernels a chain of `rounds` kernels of one part, each of which reads what the last one wrote."""
    place = [arena(0), arena(64)]
    calls = [KernelCall("mix", N, (inp(0), place[0])), KernelCall("mix", N, (place[0], place[1]))]
    calls += [KernelCall("mix", 1, (place[1 - i % 2], place[i % 2])) for i in range(rounds)]
    calls.append(KernelCall("mix", N, (place[1 - rounds % 2], out(0))))
    return artifact([Segment(tuple(calls))], [vector("x")], [vector("y")], arena_bytes=128)


def chained(x: NDArray[np.float32], rounds: int) -> NDArray[np.float32]:
    """What `chained_program` computes."""
    places = [mixed(x, 0), mixed(x, 1)]
    for i in range(rounds):
        places[i % 2][0] = mixed(places[1 - i % 2], 0)[0]
    return mixed(places[1 - rounds % 2], 0)
