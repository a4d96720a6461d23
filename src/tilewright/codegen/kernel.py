"""A lowered Func as one LLVM function: `void name(ptr args, i64 part)`.

Takes what `tir.pipeline.lower` gives: loops, conditions, allocations and stores; no blocks, no
unrolled loops left. An outermost PARALLEL loop is the part, with the serial loops over steps around it, if there are
any; all other loops are serial. So is a VECTORIZED loop around another loop, an allocation or a tensor intrinsic:
vectors are straight-line code. Loops are do-while with extents, or limits, of at least one, and carry the register
slots that they change as phis.

A loop that streams is there twice: its first version stores whole vectors past the caches, which needs them aligned;
the other runs if a buffer that the caller gave is not. What went past the caches is seen by all when the kernel ends.
"""

import math
from dataclasses import replace
from typing import assert_never

from tilewright.codegen.builder import CodeRegion, TextBuilder
from tilewright.codegen.emit import write_intrinsic
from tilewright.codegen.expressions import ExprEmitter
from tilewright.codegen.registers import register_file, stored_slots
from tilewright.codegen.tiles import (
    TileShapes,
    config_text,
    is_in_tiles,
    tile_groups,
    tile_shapes,
    uses_tiles,
)
from tilewright.codegen.values import Val, intrinsic_type, llvm_type, memory_type
from tilewright.ir.condition import logical_and
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import Buffer, Expr, Scope, free_vars
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.support.errors import InternalError, UserError
from tilewright.tir.func import Func
from tilewright.tir.passes.split_phases import MAX_LOCAL_BYTES, part_loops
from tilewright.tir.printer import print_head
from tilewright.tir.simplify import ranges
from tilewright.tir.stmt import (
    STREAM,
    Alloc,
    Block,
    Emit,
    For,
    If,
    LoopKind,
    Repeat,
    Seq,
    Stmt,
    Store,
    loops,
    walk_stmts,
)

_NOT_IN_VECTORS = (For, Repeat, Alloc, Emit)
_STREAM_BYTES = 32  # of a store past the caches, and what it must be a multiple of
_PAST_CACHES = "!0"  # the name of LLVM's metadata that says so
MAX_INSTRUCTIONS = 20_000  # LLVM's time grows faster than the code, and such code is faster as a loop


def parts(func: Func) -> int:
    """Into how many parts the kernel's work is divided: those of all steps."""
    return math.prod(n.extent for n in part_loops(func.body))


def parts_in_use(func: Func) -> Expr | None:
    """How many of the parts there are to do, where that depends on open dimensions. Only of kernels without steps:
    parts of others find out themselves whether there is something to do.
    """
    numbered = part_loops(func.body)
    return numbered[0].limit if len(numbered) == 1 else None


def steps(func: Func) -> int:
    """Parts of a step may run at the same time; those of the next need all of them."""
    return math.prod(n.extent for n in part_loops(func.body)[:-1])


def kernel_ir(func: Func) -> str:
    """The text of an LLVM module that defines the kernel under the Func's name."""
    return _KernelEmitter(func).module()


class _KernelEmitter:
    def __init__(self, func: Func) -> None:
        self.func = func
        self.b = TextBuilder()
        self.e = ExprEmitter(self.b, Simplifier(ranges(func.body)))
        self.e.fixed = frozenset(func.params) - stored_buffers(func.body)
        self._local_bytes = 0
        self._streams: frozenset[Buffer] = frozenset()  # what is stored past the caches at this place
        self._needs_fence = False
        self._needs_tiles = uses_tiles(func.body)  # their shapes are not set at this place
        self._configs: list[str] = []  # what sets shapes of tiles, as it is written in the module

    def module(self) -> str:
        b, func = self.b, self.func
        axis = next((n for n in loops(func.body) if n.kind.is_thread_axis), None)
        if axis is not None:
            raise UserError(
                f"{func.name}: there is no code generator for GPU thread axes; {axis.var.name} is on {axis.kind.value}",
                where=print_head(axis),
                hint="for a CPU use Parallel, Vectorize and Unroll; Bind is for programs that are interpreted",
            )
        b.regions.append(CodeRegion(b.place()))
        with b.at(0):
            for n, p in enumerate(func.params):
                at = b.op(f"getelementptr ptr, ptr %args, i64 {n}", INDEX)
                self.e.pointers[p] = b.op(f"load ptr, ptr {at.name}, align 8", INDEX)
        self.stmt(self._part(func.body))
        if self._needs_fence:
            b.line("fence seq_cst")
        if self._configs:
            b.line(f"{b.intrinsic('llvm.x86.tilerelease', 'void')}()")
        b.line("ret void")
        if b.instructions > MAX_INSTRUCTIONS:
            raise InternalError(
                f"{func.name}: {b.instructions} LLVM instructions, more than {MAX_INSTRUCTIONS}; "
                "its schedule unrolls or vectorises too much"
            )
        declarations = "\n".join((*sorted(b.intrinsics), *self._configs))
        head = f"define void @{func.name}(ptr noalias nocapture readonly %args, i64 %part) nounwind"
        past_caches = f"{_PAST_CACHES} = !{{i32 1}}\n" if self._needs_fence else ""
        return f"{head} {{\nentry:\n{b.text()}\n}}\n{declarations}\n{past_caches}"

    def _part(self, body: Stmt) -> Stmt:
        """What is inside of the loops that number the parts; their variables get values."""
        b, numbered = self.b, part_loops(body)
        rest = Val("%part", INDEX)
        for n in reversed(numbered[1:]):
            with b.at(0):
                b.env[n.var] = b.op(f"urem i64 {rest.name}, {n.extent}", INDEX)
                rest = b.op(f"udiv i64 {rest.name}, {n.extent}", INDEX)
            b.depth[n.var] = 0
        if not numbered:
            return body
        b.env[numbered[0].var], b.depth[numbered[0].var] = rest, 0
        inner = numbered[-1].body
        limits = [n.var < n.limit for n in numbered if n.limit is not None]
        return If(logical_and(*limits), inner) if len(numbered) > 1 and limits else inner

    def stmt(self, s: Stmt) -> None:
        if self._needs_tiles and uses_tiles(s):
            shapes = tile_shapes(s)
            if shapes is not None:
                self._with_tiles(s, shapes)
                return
        match s:
            case Seq():
                for c in tile_groups(s.stmts) if self._needs_tiles else s.stmts:
                    self.stmt(c)
            case Store():
                self._store(s)
            case For():
                self._for(s)
            case If():
                self._if(s)
            case Repeat():
                self._repeat(s)
            case Emit():
                write_intrinsic(s, self.e)
            case Alloc():
                self._alloc(s)
            case Block():
                raise InternalError(f"block {s.name} reached code generation")
            case _:
                assert_never(s)

    def _with_tiles(self, s: Stmt, shapes: TileShapes) -> None:
        """The statement, where the registers for matrices that it uses have these shapes."""
        name = f"@{self.func.name}.tiles{len(self._configs)}"
        self._configs.append(f"{name} = private unnamed_addr constant {config_text(shapes)}, align 64")
        self.b.line(f"{self.b.intrinsic('llvm.x86.ldtilecfg', 'void', 'ptr')}(ptr {name})")
        self._needs_tiles = False
        self.stmt(s)
        self._needs_tiles = True

    # -------------------------------------------------------------------------------------------------- loops

    def _for(self, s: For) -> None:
        if s.extent == 0:
            return
        if STREAM in dict(s.annotations) and not self._streams and self.e.mask is None:
            self._stream(s)
            return
        if s.extent == 1:
            self.b.env[s.var], self.b.depth[s.var] = Val("0", INDEX), 0
            self.stmt(s.body)
            return
        if s.kind is LoopKind.VECTORIZED and not any(
            isinstance(n, _NOT_IN_VECTORS) for n in walk_stmts(s.body)
        ):
            with self.e.vector(s.var, s.extent):
                self.stmt(s.body)
            return
        if s.kind is LoopKind.UNROLLED:
            raise InternalError(f"unrolled loop {s.var.name} reached code generation")
        b = self.b
        count = s.extent if s.limit is None else self.e.emit(s.limit).name
        carried = stored_slots(s.body, self.e.registers, self.e.offsets)
        label, before = b.fresh("loop")[1:], b.label
        exit_label = f"{label}.exit"
        b.line(f"br label %{label}")
        b.start_block(label)
        phis = b.place()
        var = b.fresh("i")
        b.env[s.var] = Val(var, INDEX)
        b.depth[s.var] = len(b.regions)
        entering: dict[tuple[Buffer, int], tuple[str, str]] = {}
        for buffer, slots in carried.items():
            file = self.e.registers[buffer]
            for n in slots:
                name = b.fresh("acc")
                entering[buffer, n] = (name, file.slots[n] or "poison")
                file.slots[n] = name
        b.regions.append(CodeRegion(b.place()))
        self.e.forget_all()
        with self.e.prefetcher.inside(s):
            self.stmt(s.body)
        self.e.forget_all()
        b.regions.pop()
        step = b.op(f"add nuw nsw i64 {var}, 1", INDEX)
        more = b.op(f"icmp ult i64 {step.name}, {count}", DType.BOOL)
        b.line(f"br {more}, label %{label}, label %{exit_label}")
        phis.append(f"  {var} = phi i64 [ 0, %{before} ], [ {step.name}, %{b.label} ]")
        for (buffer, n), (name, start) in entering.items():
            file = self.e.registers[buffer]
            t = llvm_type(buffer.dtype, file.width)
            phis.append(f"  {name} = phi {t} [ {start}, %{before} ], [ {file.slots[n]}, %{b.label} ]")
        b.start_block(exit_label)

    def _stream(self, s: For) -> None:
        """The loop, twice: with stores past the caches if what it stores to is aligned, and as it is."""
        b, e = self.b, self.e
        plain = replace(s, annotations=tuple(n for n in s.annotations if n[0] != STREAM))
        targets = sorted(stored_buffers(s.body) & set(self.func.params), key=lambda p: p.name)
        if not targets or stored_slots(s.body, e.registers, e.offsets):
            self._for(plain)
            return
        with b.at(0):
            bits = [b.op(f"ptrtoint ptr {e.pointers[p].name} to i64", INDEX) for p in targets]
            every = bits[0]
            for n in bits[1:]:
                every = b.op(f"or i64 {every.name}, {n.name}", INDEX)
            low = b.op(f"and i64 {every.name}, {_STREAM_BYTES - 1}", INDEX)
            aligned = b.op(f"icmp eq i64 {low.name}, 0", DType.BOOL)
        label = b.fresh("stream")[1:]
        b.line(f"br {aligned}, label %{label}, label %{label}.plain")
        outer = e.known.copy()
        for name, streams in ((label, frozenset(targets)), (f"{label}.plain", frozenset[Buffer]())):
            b.start_block(name)
            e.known = outer.copy()
            self._streams = streams
            self._for(plain)
            self._streams = frozenset()
            b.line(f"br label %{label}.end")
        b.start_block(f"{label}.end")
        e.known = outer
        for buffer in stored_buffers(s.body):
            e.known.forget(buffer)

    def _repeat(self, s: Repeat) -> None:
        """The condition is at the head, so what holds after the loop are the phis."""
        b, e = self.b, self.e
        label, before = b.fresh("while")[1:], b.label
        b.line(f"br label %{label}")
        b.start_block(label)
        phis = b.place()
        entering: dict[tuple[Buffer, int], tuple[str, str]] = {}
        for buffer, slots in stored_slots(s.body, e.registers, e.offsets).items():
            file = e.registers[buffer]
            for n in slots:
                entering[buffer, n] = (b.fresh("acc"), file.slots[n] or "poison")
                file.slots[n] = entering[buffer, n][0]
        e.forget_all()
        cond = e.emit(s.cond)
        b.line(f"br {cond}, label %{label}.body, label %{label}.exit")
        b.start_block(f"{label}.body")
        self.stmt(s.body)
        b.line(f"br label %{label}")
        for (buffer, n), (name, start) in entering.items():
            file = e.registers[buffer]
            t = llvm_type(buffer.dtype, file.width)
            phis.append(f"  {name} = phi {t} [ {start}, %{before} ], [ {file.slots[n]}, %{b.label} ]")
            file.slots[n] = name
        e.forget_all()
        b.start_block(f"{label}.exit")

    def _if(self, s: If) -> None:
        b, e = self.b, self.e
        cond = e.emit(s.cond)
        if cond.lanes > 1 or e.mask is not None:
            with e.guarded(cond):
                self.stmt(s.then)
            return
        if e.lane is not None and e.lane in free_vars(s.cond):
            raise InternalError("a condition on lanes gave a scalar")
        changed = stored_slots(s.then, e.registers, e.offsets, e.lane, e.lanes)
        old = {(f, n): e.registers[f].slots[n] or "poison" for f, ns in changed.items() for n in ns}
        label, before = b.fresh("then")[1:], b.label
        after = f"{label}.end"
        b.line(f"br {cond}, label %{label}, label %{after}")
        b.start_block(label)
        # What the outer code computed holds here too; what is computed here does not hold after.
        outer = e.known.copy()
        self.stmt(s.then)
        e.known = outer
        for buffer in stored_buffers(s.then):
            e.known.forget(buffer)
        b.line(f"br label %{after}")
        end = b.label
        b.start_block(after)
        for (buffer, n), start in old.items():
            file = e.registers[buffer]
            t = llvm_type(buffer.dtype, file.width)
            file.slots[n] = b.op(
                f"phi {t} [ {start}, %{before} ], [ {file.slots[n]}, %{end} ]", buffer.dtype, file.width
            ).name

    # ------------------------------------------------------------------------------------------------- memory

    def _alloc(self, s: Alloc) -> None:
        buffer = s.buffer
        if is_in_tiles(buffer, s.body):
            self.stmt(s.body)  # instructions know where it is
            return
        if buffer.scope is Scope.REGISTER:
            self.e.registers[buffer] = register_file(buffer, s.body, self.e.offsets)
            self.stmt(s.body)
            del self.e.registers[buffer]
            return
        if buffer not in self.e.pointers:  # an unrolled loop repeats its allocations, one at a time
            self._local_bytes += buffer.bytes
            if self._local_bytes > MAX_LOCAL_BYTES:
                raise InternalError(
                    f"{self.func.name}: local buffers take {self._local_bytes} bytes of a worker's stack, "
                    f"more than {MAX_LOCAL_BYTES} (the last is {buffer})"
                )
            with self.b.at(0):
                self.e.pointers[buffer] = self.b.op(
                    f"alloca [{buffer.size} x {memory_type(buffer.dtype)}], align 64", INDEX
                )
        self.stmt(s.body)
        self.e.known.forget(buffer)

    def _store(self, s: Store) -> None:
        e, b = self.e, self.b
        value = e.emit(s.value)
        if s.buffer.scope is Scope.REGISTER:
            e.store_register(s.buffer, s.indices, value)
            # Loads of registers are looked up afresh, but sums of them are memoised.
            e.known.forget(s.buffer)
            return
        split = e.lane_form(e.flat_index(s.buffer, s.indices))
        if split is not None and e.lane is not None and split[1] == 1:
            wide = e.ops.widen(value, e.lanes)
            if s.buffer in self._streams and _is_aligned(split[0], s.buffer.dtype.bytes, e.lanes):
                self._write_past_caches(s.buffer, e.address(s.buffer, split[0]), wide)
            else:
                self._write(s.buffer, e.address(s.buffer, split[0]), wide)
        elif e.lane is None or (split is not None and split[1] == 0):
            assert split is not None
            if value.lanes > 1:
                raise InternalError(f"every lane stores to the same element of {s.buffer.name}")
            self._write(s.buffer, e.address(s.buffer, split[0]), value)
        else:
            for n in range(e.lanes):
                one = value if value.lanes == 1 else b.op(f"extractelement {value}, i64 {n}", value.dtype)
                indices = tuple(e.per_lane(i, n) for i in s.indices)
                with e.scalar_lane(n):
                    form = e.flat_index(s.buffer, indices)
                    self._write(s.buffer, e.address(s.buffer, form), one)
        e.known.forget(s.buffer)

    def _write_past_caches(self, buffer: Buffer, pointer: Val, value: Val) -> None:
        if self.e.mask is not None or buffer.dtype is DType.BOOL:
            self._write(buffer, pointer, value)
            return
        self._needs_fence = True
        t = memory_type(buffer.dtype, value.lanes)
        self.b.line(
            f"store {t} {value.name}, ptr {pointer.name}, align {_STREAM_BYTES}, !nontemporal {_PAST_CACHES}"
        )

    def _write(self, buffer: Buffer, pointer: Val, value: Val) -> None:
        b, mask, lanes = self.b, self.e.mask, value.lanes
        t, align = memory_type(buffer.dtype, lanes), buffer.dtype.bytes
        name = value.name
        if buffer.dtype is DType.BOOL:
            name = b.op(f"zext {value} to {t}", DType.U8, lanes).name
        if mask is None:
            b.line(f"store {t} {name}, ptr {pointer.name}, align {align}")
        elif lanes > 1:
            m = self.e.ops.widen(mask, lanes)
            suffix = intrinsic_type(DType.U8 if buffer.dtype is DType.BOOL else buffer.dtype, lanes)
            f = b.intrinsic(f"llvm.masked.store.{suffix}.p0", "void", t, "ptr", "i32", m.type)
            b.line(f"{f}({t} {name}, ptr {pointer.name}, i32 {align}, {m})")
        else:
            bit = mask if mask.lanes == 1 else self.e.any_lane(mask)
            label = b.fresh("store")[1:]
            b.line(f"br {bit}, label %{label}, label %{label}.end")
            b.start_block(label)
            b.line(f"store {t} {name}, ptr {pointer.name}, align {align}")
            b.line(f"br label %{label}.end")
            b.start_block(f"{label}.end")


def _is_aligned(form: Linear, nbytes: int, lanes: int) -> bool:
    """Is every vector at this index whole and aligned, if the buffer is?"""
    return all(k * nbytes % _STREAM_BYTES == 0 for k in (form.const, lanes, *(k for _, k in form.terms)))


def stored_buffers(s: Stmt) -> set[Buffer]:
    return {n.buffer for n in walk_stmts(s) if isinstance(n, Store)}
