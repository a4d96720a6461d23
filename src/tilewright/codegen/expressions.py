"""Expressions as LLVM IR.

Inside a vectorised loop the loop variable stands for all lanes at once. A value that does not depend on it
stays scalar until it meets one that does. A load whose flattened index moves by one per lane is a vector
load, by none a scalar load, anything else a scalar load per lane.

`Select` evaluates only the chosen side: loads on a guarded side are masked (vectors) or read from the start
of the buffer instead (scalars), so that nothing outside of a buffer is ever touched.
"""

from collections.abc import Generator
from contextlib import contextmanager

from tilewright.codegen.builder import TextBuilder
from tilewright.codegen.loaded import LoadedBuffers
from tilewright.codegen.registers import RegisterFile, constant_offset
from tilewright.codegen.values import Val, intrinsic_type, literal, llvm_type, memory_type
from tilewright.ir.dtype import INDEX, DType
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Fma,
    Indices,
    Load,
    Scope,
    Select,
    Unary,
    UnaryOp,
    Var,
    as_index,
    free_vars,
    loads,
    walk,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.simplify import Linear, Simplifier
from tilewright.support.errors import InternalError

_ARITHMETIC = {BinaryOp.ADD: "add", BinaryOp.SUB: "sub", BinaryOp.MUL: "mul", BinaryOp.DIV: "div"}
_BITWISE = {BinaryOp.AND: "and", BinaryOp.OR: "or", BinaryOp.XOR: "xor", BinaryOp.SHL: "shl"}
_FLOAT_COMPARE = {BinaryOp.EQ: "oeq", BinaryOp.NE: "une", BinaryOp.LT: "olt", BinaryOp.LE: "ole"}
_INT_COMPARE = {BinaryOp.EQ: "eq", BinaryOp.NE: "ne", BinaryOp.LT: "lt", BinaryOp.LE: "le"}
_BOOLEAN = {BinaryOp.ADD: "or", BinaryOp.MUL: "and"}
_FLOAT_UNARY = {
    UnaryOp.FLOOR: "floor",
    UnaryOp.CEIL: "ceil",
    UnaryOp.ROUND: "roundeven",
    UnaryOp.TRUNC: "trunc",
    UnaryOp.SQRT: "sqrt",
    UnaryOp.ABS: "fabs",
}
_ROUNDINGS = frozenset({UnaryOp.FLOOR, UnaryOp.CEIL, UnaryOp.ROUND, UnaryOp.TRUNC})


class ExprEmitter:
    """Emits values at the builder's current position, under the current lane and mask."""

    def __init__(self, builder: TextBuilder, simplify: Simplifier) -> None:
        self.b, self.simplify = builder, simplify
        self.pointers: dict[Buffer, Val] = {}
        self.registers: dict[Buffer, RegisterFile] = {}
        self.lane: Var | None = None
        self.lanes = 1
        self.mask: Val | None = None
        # Values in the current straight line of code, by expression and mask: shared nodes are computed once.
        self.memo: dict[tuple[Expr, str, int], Val] = {}
        self._loaded = LoadedBuffers()

    # ------------------------------------------------------------------------------------------------- context

    @contextmanager
    def vector(self, lane: Var, lanes: int) -> Generator[None]:
        if self.lane is not None:
            raise InternalError(f"vectorised loop {lane.name} inside vectorised loop {self.lane.name}")
        self.lane, self.lanes = lane, lanes
        try:
            yield
        finally:
            self.lane, self.lanes = None, 1

    @contextmanager
    def guarded(self, cond: Val) -> Generator[None]:
        """Loads and stores happen only where `cond` holds."""
        outer = self.mask
        self.mask = cond if outer is None else self.logical("and", outer, cond)
        try:
            yield
        finally:
            self.mask = outer

    def forget(self, buffer: Buffer) -> None:
        """After a store: what was loaded from the buffer is no longer its content."""
        stale = [k for k in self.memo if buffer in self._loaded.of(k[0])]
        for k in stale:
            del self.memo[k]

    # --------------------------------------------------------------------------------------------- expressions

    def emit(self, e: Expr) -> Val:
        key = (e, self.mask.name if self.mask is not None else "", self.lanes)
        done = self.memo.get(key)
        if done is None:
            done = self._emit(e)
            self.memo[key] = done
        return done

    def wide(self, e: Expr) -> Val:
        """`emit`, in every lane if there are lanes."""
        return self.widen(self.emit(e), self.lanes)

    def widen(self, v: Val, lanes: int) -> Val:
        return v if v.lanes == lanes else self.b.splat(v, lanes)

    def _emit(self, e: Expr) -> Val:
        match e:
            case Const():
                return Val(literal(e.value, e.dtype), e.dtype)
            case Var():
                return self._var(e)
            case Load():
                return self._load(e)
            case Unary():
                return self._unary(e.op, self.emit(e.a))
            case Binary():
                return self._binary(e)
            case Fma():
                x, y, z = self._same(self.emit(e.a), self.emit(e.b), self.emit(e.c))
                f = self.b.intrinsic(
                    f"llvm.fma.{intrinsic_type(x.dtype, x.lanes)}", x.type, x.type, x.type, x.type
                )
                return self.b.op(f"{f}({x}, {y}, {z})", x.dtype, x.lanes)
            case Select():
                return self._select(e)
            case Cast():
                return self._cast(self.emit(e.a), e.dtype)
            case Bitcast():
                a = self.emit(e.a)
                if llvm_type(e.dtype) == llvm_type(a.dtype):
                    return Val(a.name, e.dtype, a.lanes)
                return self.b.op(f"bitcast {a} to {llvm_type(e.dtype, a.lanes)}", e.dtype, a.lanes)
            case _:
                raise InternalError(f"no code for {type(e).__name__}")

    def _same(self, *vals: Val) -> tuple[Val, ...]:
        lanes = max(v.lanes for v in vals)
        return tuple(self.widen(v, lanes) for v in vals)

    def _var(self, v: Var) -> Val:
        if v is not self.lane:
            return self.b.env[v]
        ramp = "<" + ", ".join(f"i64 {n}" for n in range(self.lanes)) + ">"
        return Val(ramp, INDEX, self.lanes)

    def _unary(self, op: UnaryOp, a: Val) -> Val:
        b = self.b
        if op is UnaryOp.NOT:
            return self.logical("xor", a, Val("true", DType.BOOL))
        if op is UnaryOp.NEG:
            text = f"fneg {a}" if a.dtype.is_float else f"sub {a.type} {self._number(0, a)}, {a.name}"
            return b.op(text, a.dtype, a.lanes)
        if not a.dtype.is_float and (op in _ROUNDINGS or not a.dtype.is_signed):
            return a  # integers are round, and unsigned ones are their own absolute value
        if op is UnaryOp.ABS and not a.dtype.is_float:
            f = b.intrinsic(f"llvm.abs.{intrinsic_type(a.dtype, a.lanes)}", a.type, a.type, "i1")
            return b.op(f"{f}({a}, i1 false)", a.dtype, a.lanes)
        name = _FLOAT_UNARY.get(op)
        if name is None:
            raise InternalError(f"{op.value} must be expanded before code generation")
        f = b.intrinsic(f"llvm.{name}.{intrinsic_type(a.dtype, a.lanes)}", a.type, a.type)
        return b.op(f"{f}({a})", a.dtype, a.lanes)

    def logical(self, op: str, a: Val, b: Val) -> Val:
        x, y = self._same(a, b)
        return self.b.op(f"{op} {x}, {y.name}", x.dtype, x.lanes)

    def _binary(self, e: Binary) -> Val:
        x, y = self._same(self.emit(e.a), self.emit(e.b))
        op, dtype, b = e.op, x.dtype, self.b
        if dtype is DType.BOOL and op in _BOOLEAN:
            return self.logical(_BOOLEAN[op], x, y)
        if op in _ARITHMETIC:
            # No `nsw`, not even for i64: that is the type of indices, but of users' integers too, which wrap.
            return b.op(f"{'f' if dtype.is_float else ''}{_ARITHMETIC[op]} {x}, {y.name}", dtype, x.lanes)
        if op in _BITWISE:
            return b.op(f"{_BITWISE[op]} {x}, {y.name}", dtype, x.lanes)
        match op:
            case BinaryOp.SHR:
                return b.op(f"{'ashr' if dtype.is_signed else 'lshr'} {x}, {y.name}", dtype, x.lanes)
            case BinaryOp.FLOORDIV | BinaryOp.MOD if dtype.is_int:
                return self._divide(e, x, y)
            case BinaryOp.MIN | BinaryOp.MAX:
                return self._min_max(op, x, y)
            case BinaryOp.EQ | BinaryOp.NE | BinaryOp.LT | BinaryOp.LE:
                return self._compare(op, x, y)
            case _:
                raise InternalError(f"{op.value} of {dtype} must be expanded before code generation")

    def _compare(self, op: BinaryOp, x: Val, y: Val) -> Val:
        if x.dtype.is_float:
            return self.b.op(f"fcmp {_FLOAT_COMPARE[op]} {x}, {y.name}", DType.BOOL, x.lanes)
        sign = "" if op in (BinaryOp.EQ, BinaryOp.NE) else "s" if x.dtype.is_signed else "u"
        return self.b.op(f"icmp {sign}{_INT_COMPARE[op]} {x}, {y.name}", DType.BOOL, x.lanes)

    def _min_max(self, op: BinaryOp, x: Val, y: Val) -> Val:
        b, low = self.b, op is BinaryOp.MIN
        if not x.dtype.is_float:
            sign = "s" if x.dtype.is_signed else "u"
            c = b.op(f"icmp {sign}{'lt' if low else 'gt'} {x}, {y.name}", DType.BOOL, x.lanes)
            return b.op(f"select {c}, {x}, {y}", x.dtype, x.lanes)
        # minps and maxps give the second operand where either is NaN; so a NaN in the first is put back.
        c = b.op(f"fcmp {'olt' if low else 'ogt'} {x}, {y.name}", DType.BOOL, x.lanes)
        m = b.op(f"select {c}, {x}, {y}", x.dtype, x.lanes)
        nan = b.op(f"fcmp uno {x}, {x.name}", DType.BOOL, x.lanes)
        return b.op(f"select {nan}, {x}, {m}", x.dtype, x.lanes)

    def _divide(self, e: Binary, x: Val, y: Val) -> Val:
        """Towards minus infinity; by zero it gives zero, and the least integer by -1 wraps to itself. Those two would
        trap, so there the divisor is 1 instead. Unsigned where the dividend is known not to be negative.
        """
        b, mod, one = self.b, e.op is BinaryOp.MOD, self._number(1, x)
        known = int(e.b.value) if isinstance(e.b, Const) else None
        if known is not None and known > 0 and known & (known - 1) == 0:
            return self._divide_by_power(mod, x, known)
        zero = None if known else self._test("eq", y, 0)
        if not x.dtype.is_signed or (known is not None and known > 0 and self._is_natural(e.a)):
            divisor = y if zero is None else b.op(f"select {zero}, {y.type} {one}, {y}", y.dtype, y.lanes)
            out = b.op(f"{'urem' if mod else 'udiv'} {x}, {divisor.name}", x.dtype, x.lanes)
            return out if mod else self._zero_where(zero, out)
        minus = self._test("eq", y, -1) if known in (None, -1) else None
        divisor = y
        for special in (zero, minus):
            if special is not None:
                divisor = b.op(f"select {special}, {y.type} {one}, {divisor}", y.dtype, y.lanes)
        r = b.op(f"srem {x}, {divisor.name}", x.dtype, x.lanes)
        # The remainder has the sign of the dividend: where that differs from the divisor's, one step further.
        mixed = b.op(f"xor {r}, {y.name}", x.dtype, x.lanes)
        fix = self.logical("and", self._test("slt", mixed, 0), self._test("ne", r, 0))
        if mod:
            moved = b.op(f"add {r}, {y.name}", x.dtype, x.lanes)
            return b.op(f"select {fix}, {moved}, {r}", x.dtype, x.lanes)
        q = b.op(f"sdiv {x}, {divisor.name}", x.dtype, x.lanes)
        if minus is not None:
            negated = self._unary(UnaryOp.NEG, x)
            q = b.op(f"select {minus}, {negated}, {q}", x.dtype, x.lanes)
        moved = b.op(f"sub {q}, {one}", x.dtype, x.lanes)
        return self._zero_where(zero, b.op(f"select {fix}, {moved}, {q}", x.dtype, x.lanes))

    def _divide_by_power(self, mod: bool, x: Val, power: int) -> Val:
        if mod:
            return self.b.op(f"and {x}, {self._number(power - 1, x)}", x.dtype, x.lanes)
        shift = "ashr" if x.dtype.is_signed else "lshr"
        return self.b.op(f"{shift} {x}, {self._number(power.bit_length() - 1, x)}", x.dtype, x.lanes)

    def _is_natural(self, e: Expr) -> bool:
        return e.dtype is INDEX and self.simplify.bounds(e).lo >= 0

    def _number(self, value: int, like: Val) -> str:
        """An integer literal of the type of `like`."""
        return self.widen(Val(str(value), like.dtype), like.lanes).name

    def _test(self, relation: str, a: Val, value: int) -> Val:
        return self.b.op(f"icmp {relation} {a}, {self._number(value, a)}", DType.BOOL, a.lanes)

    def _zero_where(self, cond: Val | None, v: Val) -> Val:
        if cond is None:
            return v
        return self.b.op(f"select {cond}, {v.type} {self._number(0, v)}, {v}", v.dtype, v.lanes)

    def _select(self, e: Select) -> Val:
        cond = self.emit(e.cond)
        a = self._side(e.a, cond, negated=False)
        b = self._side(e.b, cond, negated=True)
        if cond.lanes == 1:
            x, y = self._same(a, b)
            return self.b.op(f"select {cond}, {x}, {y}", x.dtype, x.lanes)
        c, x, y = self._same(cond, a, b)
        return self.b.op(f"select {c}, {x}, {y}", x.dtype, x.lanes)

    def _side(self, e: Expr, cond: Val, *, negated: bool) -> Val:
        """One side of a Select. Only loads that the code before has not made anyway need the guard."""
        outer = self.mask.name if self.mask is not None else ""
        memory = [ld for ld in loads(e) if ld.buffer.scope is not Scope.REGISTER]
        if all((ld, outer, self.lanes) in self.memo for ld in memory):
            return self.emit(e)
        with self.guarded(self._unary(UnaryOp.NOT, cond) if negated else cond):
            return self.emit(e)

    def _cast(self, a: Val, to: DType) -> Val:
        source, b = a.dtype, self.b
        if source is to:
            return a
        if to is DType.BOOL:
            zero = self.widen(Val(literal(0, source), source), a.lanes)
            return b.op(f"{'fcmp une' if source.is_float else 'icmp ne'} {a}, {zero.name}", to, a.lanes)
        if {source, to} & {DType.F16, DType.BF16}:
            return self._cast_f16(a, to)
        if source.is_float and to.is_float:
            op = "fpext" if to.bits > source.bits else "fptrunc"
        elif source.is_float:
            if to in (DType.I32, DType.I64):
                # Out of range: whatever cvttps2dq gives, which never traps. `freeze` keeps LLVM from reasoning on it.
                wide = b.op(f"fptosi {a} to {llvm_type(to, a.lanes)}", to, a.lanes)
                return b.op(f"freeze {wide}", to, a.lanes)
            else:
                return self._saturating("fptosi" if to.is_signed else "fptoui", a, to)
        elif to.is_float:
            op = "sitofp" if source.is_signed else "uitofp"
        elif to.bits == source.bits:
            return Val(a.name, to, a.lanes)
        else:
            op = "trunc" if to.bits < source.bits else "sext" if source.is_signed else "zext"
        return b.op(f"{op} {a} to {llvm_type(to, a.lanes)}", to, a.lanes)

    def _cast_f16(self, a: Val, to: DType) -> Val:
        """Between f16 and f32: for targets with instructions for it."""
        half = "half" if a.lanes == 1 else f"<{a.lanes} x half>"
        match a.dtype, to:
            case DType.F16, DType.F32:
                same = self.b.op(f"bitcast {a} to {half}", to, a.lanes)
                return self.b.op(f"fpext {half} {same.name} to {llvm_type(to, a.lanes)}", to, a.lanes)
            case DType.F32, DType.F16:
                short = self.b.op(f"fptrunc {a} to {half}", to, a.lanes)
                return self.b.op(f"bitcast {half} {short.name} to {llvm_type(to, a.lanes)}", to, a.lanes)
            case _:
                raise InternalError(
                    f"the cast from {a.dtype} to {to} must be expanded before code generation"
                )

    def _saturating(self, kind: str, a: Val, to: DType) -> Val:
        out = llvm_type(to, a.lanes)
        name = f"llvm.{kind}.sat.{intrinsic_type(to, a.lanes)}.{intrinsic_type(a.dtype, a.lanes)}"
        f = self.b.intrinsic(name, out, a.type)
        return self.b.op(f"{f}({a})", to, a.lanes)

    # ------------------------------------------------------------------------------------------------- memory

    def flat_index(self, buffer: Buffer, indices: Indices) -> Expr:
        flat: Expr = as_index(0)
        for i, stride in zip(indices, buffer.strides, strict=True):
            flat = flat + i * stride
        return flat

    def lane_form(self, flat: Expr) -> tuple[Linear, int] | None:
        """(the index without the lane, elements per lane); None if the lane enters in another way."""
        form = self.simplify.linear(flat)
        lane = self.lane
        if lane is None:
            return form, 0
        step, rest = 0, list[tuple[Expr, int]]()
        for atom, k in form.terms:
            if atom is lane:
                step = k
            elif lane in free_vars(atom):
                return None
            else:
                rest.append((atom, k))
        return Linear(form.const, tuple(rest)), step

    def address(self, buffer: Buffer, form: Linear) -> Val:
        """A pointer to the element; each partial sum is computed in the head of the loop that it needs. Those may
        lie outside of the buffer, and so does the whole where a load is masked: no `inbounds`.
        """
        b = self.b
        cursor = self.pointers[buffer]
        by_depth: dict[int, list[tuple[Expr, int]]] = {}
        here: list[tuple[Expr, int]] = []
        for atom, k in form.terms:
            if any(isinstance(n, Load) for n in walk(atom)):
                here.append((atom, k))  # depends on data: nothing to hoist
            else:
                depth = max((b.depth.get(v, 0) for v in free_vars(atom)), default=0)
                by_depth.setdefault(depth, []).append((atom, k))
        for depth in sorted(by_depth):
            key = (cursor.name, tuple(by_depth[depth]))
            cached = b.regions[depth].cache.get(key)
            if cached is None:
                with b.at(depth):
                    cached = self._advance(buffer, cursor, by_depth[depth], depth)
                b.regions[depth].cache[key] = cached
            cursor = cached
        if here:
            cursor = self._advance(buffer, cursor, here, None)
        if form.const:
            cursor = b.op(
                f"getelementptr {memory_type(buffer.dtype)}, ptr {cursor.name}, i64 {form.const}", INDEX
            )
        return cursor

    def _advance(self, buffer: Buffer, cursor: Val, terms: list[tuple[Expr, int]], depth: int | None) -> Val:
        total: Val | None = None
        for atom, k in terms:
            value = self.emit(atom) if depth is None else self._hoisted(atom, depth)
            if k != 1:
                value = self.b.op(f"mul nsw i64 {value.name}, {k}", INDEX)
            total = value if total is None else self.b.op(f"add nsw i64 {total.name}, {value.name}", INDEX)
        assert total is not None
        element = memory_type(buffer.dtype)
        return self.b.op(f"getelementptr {element}, ptr {cursor.name}, i64 {total.name}", INDEX)

    def _hoisted(self, atom: Expr, depth: int) -> Val:
        """The value of an index expression, in the head of the region at `depth` (where the builder
        writes).
        """
        cache = self.b.regions[depth].cache
        value = cache.get(atom)
        if value is None:
            # The memo belongs to the code at the current statement; a hoisted value must not use what is
            # only known there.
            memo, lane, lanes, mask = self.memo, self.lane, self.lanes, self.mask
            self.memo, self.lane, self.lanes, self.mask = {}, None, 1, None
            try:
                value = self.emit(atom)
            finally:
                self.memo, self.lane, self.lanes, self.mask = memo, lane, lanes, mask
            cache[atom] = value
        return value

    def _load(self, e: Load) -> Val:
        if e.buffer.scope is Scope.REGISTER:
            return self._load_register(e)
        if not e.buffer.size:  # on a side that is never chosen: there is nothing to read, not even elsewhere
            return Val(literal(0, e.dtype), e.dtype)
        split = self.lane_form(self.flat_index(e.buffer, e.indices))
        if split is None or split[1] not in (0, 1):
            return self._gather(e)
        form, step = split
        return self._read(e.buffer, self.address(e.buffer, form), self.lanes if step else 1)

    def _read(self, buffer: Buffer, pointer: Val, lanes: int) -> Val:
        b, t, align = self.b, memory_type(buffer.dtype, lanes), buffer.dtype.bytes
        if self.mask is None:
            v = b.op(f"load {t}, ptr {pointer.name}, align {align}", buffer.dtype, lanes)
        elif lanes == 1:
            any_lane = self.mask if self.mask.lanes == 1 else self.any_lane(self.mask)
            base = self.pointers[buffer]
            safe = b.op(f"select {any_lane}, ptr {pointer.name}, ptr {base.name}", INDEX)
            v = b.op(f"load {t}, ptr {safe.name}, align {align}", buffer.dtype)
        else:
            m = self.widen(self.mask, lanes)
            suffix = intrinsic_type(DType.U8 if buffer.dtype is DType.BOOL else buffer.dtype, lanes)
            f = b.intrinsic(f"llvm.masked.load.{suffix}.p0", t, "ptr", "i32", m.type, t)
            v = b.op(f"{f}(ptr {pointer.name}, i32 {align}, {m}, {t} zeroinitializer)", buffer.dtype, lanes)
        if buffer.dtype is DType.BOOL:
            zero = "0" if lanes == 1 else "zeroinitializer"
            return b.op(f"icmp ne {t} {v.name}, {zero}", DType.BOOL, lanes)
        return v

    def any_lane(self, mask: Val) -> Val:
        f = self.b.intrinsic(f"llvm.vector.reduce.or.v{mask.lanes}i1", "i1", mask.type)
        return self.b.op(f"{f}({mask})", DType.BOOL)

    def per_lane(self, e: Expr, lane_number: int) -> Expr:
        assert self.lane is not None
        return self.simplify(substitute(e, {self.lane: as_index(lane_number)}))

    @contextmanager
    def scalar_lane(self, lane_number: int) -> Generator[None]:
        """One lane alone: no lane variable, and that lane's bit of the mask."""
        lane, lanes, mask = self.lane, self.lanes, self.mask
        self.lane, self.lanes = None, 1
        if mask is not None and mask.lanes > 1:
            self.mask = self.b.op(f"extractelement {mask}, i64 {lane_number}", DType.BOOL)
        try:
            yield
        finally:
            self.lane, self.lanes, self.mask = lane, lanes, mask

    def _gather(self, e: Load) -> Val:
        """A scalar load per lane."""
        lanes = self.lanes
        out = Val("poison", e.dtype, lanes)
        for n in range(lanes):
            one = self.per_lane(e, n)
            with self.scalar_lane(n):
                v = self.emit(one)
            out = self.b.op(f"insertelement {out}, {v}, i64 {n}", e.dtype, lanes)
        return out

    # ---------------------------------------------------------------------------------------------- registers

    def _load_register(self, e: Load) -> Val:
        file = self.registers[e.buffer]
        offset, step = constant_offset(e.buffer, e.indices, self.lane, self.simplify)
        if step == 0:
            return self._element(file, offset)
        if step == 1 and offset % file.width == 0 and self.lanes == file.width:
            return self._slot(file, offset // file.width)
        out = Val("poison", e.dtype, self.lanes)
        for n in range(self.lanes):
            v = self._element(file, offset + n * step)
            out = self.b.op(f"insertelement {out}, {v}, i64 {n}", e.dtype, self.lanes)
        return out

    def _slot(self, file: RegisterFile, n: int) -> Val:
        return Val(file.slots[n] or "poison", file.buffer.dtype, file.width)

    def _element(self, file: RegisterFile, offset: int) -> Val:
        slot = self._slot(file, offset // file.width)
        if file.width == 1:
            return slot
        return self.b.op(f"extractelement {slot}, i64 {offset % file.width}", slot.dtype)

    def store_register(self, buffer: Buffer, indices: Indices, value: Val) -> None:
        file = self.registers[buffer]
        offset, step = constant_offset(buffer, indices, self.lane, self.simplify)
        if step == 1 and offset % file.width == 0 and self.lanes == file.width:
            self._set_slot(file, offset // file.width, self.widen(value, self.lanes), self.mask)
            return
        for n in range(self.lanes if step else 1):
            one = value if value.lanes == 1 else self.b.op(f"extractelement {value}, i64 {n}", value.dtype)
            bit = self.mask
            if bit is not None and bit.lanes > 1:
                bit = self.b.op(f"extractelement {bit}, i64 {n}", DType.BOOL)
            at = offset + n * step
            slot = self._slot(file, at // file.width)
            if file.width > 1:
                one = self.b.op(f"insertelement {slot}, {one}, i64 {at % file.width}", slot.dtype, file.width)
            self._set_slot(file, at // file.width, one, bit)

    def _set_slot(self, file: RegisterFile, n: int, value: Val, mask: Val | None) -> None:
        if mask is not None:
            m = mask if mask.lanes == 1 else self.widen(mask, value.lanes)
            value = self.b.op(f"select {m}, {value}, {self._slot(file, n)}", value.dtype, value.lanes)
        file.slots[n] = value.name
