"""Operations on values as LLVM IR: what each means is in `ir.evaluate`, and this agrees with it to the bit.

Operands may be scalars or vectors; a scalar that meets a vector is repeated in every lane. Nothing traps, whatever the
values are, and nothing becomes a call: functions, halves and missing instructions were expanded before (`legalize`).
"""

from tilewright.codegen.builder import TextBuilder
from tilewright.codegen.values import Val, intrinsic_type, literal, llvm_type
from tilewright.ir.dtype import DType
from tilewright.ir.expr import BinaryOp, UnaryOp
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


class Arithmetic:
    """Writes at the builder's current position."""

    def __init__(self, builder: TextBuilder) -> None:
        self.b = builder

    def widen(self, v: Val, lanes: int) -> Val:
        return v if v.lanes == lanes else self.b.splat(v, lanes)

    def same(self, *vals: Val) -> tuple[Val, ...]:
        lanes = max(v.lanes for v in vals)
        return tuple(self.widen(v, lanes) for v in vals)

    def unary(self, op: UnaryOp, a: Val) -> Val:
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
        x, y = self.same(a, b)
        return self.b.op(f"{op} {x}, {y.name}", x.dtype, x.lanes)

    def binary(self, op: BinaryOp, x: Val, y: Val, *, natural: bool = False) -> Val:
        """`natural`: x is known not to be negative."""
        divisor = y.known
        x, y = self.same(x, y)
        dtype, b = x.dtype, self.b
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
                return self._divide(op is BinaryOp.MOD, x, y, divisor, natural)
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
        # minps and maxps give the second operand where either is NaN; so a NaN in the first is put back. If the second
        # is a number, the comparison can see to that, and if the first is, there is nothing to put back.
        order = "u" if y.is_number else "o"
        c = b.op(f"fcmp {order}{'lt' if low else 'gt'} {x}, {y.name}", DType.BOOL, x.lanes)
        m = b.op(f"select {c}, {x}, {y}", x.dtype, x.lanes)
        if x.is_number or y.is_number:
            return m
        nan = b.op(f"fcmp uno {x}, {x.name}", DType.BOOL, x.lanes)
        return b.op(f"select {nan}, {x}, {m}", x.dtype, x.lanes)

    def _divide(self, mod: bool, x: Val, y: Val, known: int | None, natural: bool) -> Val:
        """Towards minus infinity; by zero it gives zero, and the least integer by -1 wraps to itself. Those two would
        trap, so there the divisor is 1 instead. Unsigned where the dividend is known not to be negative.
        """
        b, one = self.b, self._number(1, x)
        if known is not None and known > 0 and known & (known - 1) == 0:
            return self._divide_by_power(mod, x, known)
        zero = None if known else self._test("eq", y, 0)
        if not x.dtype.is_signed or (natural and known is not None and known > 0):
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
            negated = self.unary(UnaryOp.NEG, x)
            q = b.op(f"select {minus}, {negated}, {q}", x.dtype, x.lanes)
        moved = b.op(f"sub {q}, {one}", x.dtype, x.lanes)
        return self._zero_where(zero, b.op(f"select {fix}, {moved}, {q}", x.dtype, x.lanes))

    def _divide_by_power(self, mod: bool, x: Val, power: int) -> Val:
        if mod:
            return self.b.op(f"and {x}, {self._number(power - 1, x)}", x.dtype, x.lanes)
        shift = "ashr" if x.dtype.is_signed else "lshr"
        return self.b.op(f"{shift} {x}, {self._number(power.bit_length() - 1, x)}", x.dtype, x.lanes)

    def _number(self, value: int, like: Val) -> str:
        """An integer literal of the type of `like`."""
        return self.widen(Val(str(value), like.dtype), like.lanes).name

    def _test(self, relation: str, a: Val, value: int) -> Val:
        return self.b.op(f"icmp {relation} {a}, {self._number(value, a)}", DType.BOOL, a.lanes)

    def _zero_where(self, cond: Val | None, v: Val) -> Val:
        if cond is None:
            return v
        return self.b.op(f"select {cond}, {v.type} {self._number(0, v)}, {v}", v.dtype, v.lanes)

    def cast(self, a: Val, to: DType) -> Val:
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

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        x, y, z = self.same(a, b, c)
        f = self.b.intrinsic(f"llvm.fma.{intrinsic_type(x.dtype, x.lanes)}", x.type, x.type, x.type, x.type)
        return self.b.op(f"{f}({x}, {y}, {z})", x.dtype, x.lanes)

    def bitcast(self, a: Val, to: DType) -> Val:
        if llvm_type(to) == llvm_type(a.dtype):
            return Val(a.name, to, a.lanes)
        return self.b.op(f"bitcast {a} to {llvm_type(to, a.lanes)}", to, a.lanes)

    def select(self, cond: Val, a: Val, b: Val) -> Val:
        x, y = self.same(a, b)
        if cond.lanes > 1:
            cond, x, y = self.same(cond, x, y)
        return self.b.op(f"select {cond}, {x}, {y}", x.dtype, x.lanes)
