"""Expressions as LLVM IR.

Inside a vectorised loop the loop variable stands for all lanes at once. A value that does not depend on it
stays scalar until it meets one that does. A load whose flattened index moves by one per lane is a vector
load, by none a scalar load, by a few a shuffle of vector loads, anything else a scalar load per lane.

`Select` evaluates only the chosen side: loads on a guarded side are masked (vectors) or read from the start
of the buffer instead (scalars), so that nothing outside of a buffer is ever touched.
"""

from collections.abc import Generator
from contextlib import contextmanager

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.builder import TextBuilder
from tilewright.codegen.fetching import Prefetcher
from tilewright.codegen.loaded import Facts, LoadedValues, NodeKey
from tilewright.codegen.registers import Offsets, RegisterFile
from tilewright.codegen.strided import MAX_STEP, can_shuffle, load_strided
from tilewright.codegen.transposes import can_turn, transpose_vectors
from tilewright.codegen.values import Val, intrinsic_type, literal, memory_type
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
from tilewright.tir.passes.place_sizes import size_name

_DIVISIONS = frozenset({BinaryOp.FLOORDIV, BinaryOp.MOD})
_COMPUTED = 3  # instructions for an index: as many as it takes to take it out of a vector


class ExprEmitter:
    """Emits values at the builder's current position, under the current lane and mask."""

    def __init__(self, builder: TextBuilder, simplify: Simplifier) -> None:
        self.b, self.ops, self.simplify = builder, Arithmetic(builder), simplify
        self.pointers: dict[Buffer, Val] = {}
        self._strides: dict[Buffer, tuple[int, ...]] = {}
        self.registers: dict[Buffer, RegisterFile] = {}
        self.lane: Var | None = None
        self.lanes = 1
        self.mask: Val | None = None
        self.fixed: frozenset[Buffer] = frozenset()  # what nothing in the kernel stores to
        self._sizes: dict[Buffer, Val] = {}
        self.offsets = Offsets(simplify)
        self.facts = Facts()
        self.known = LoadedValues(self.facts)
        self.prefetcher = Prefetcher(builder, simplify, self.facts, self.address, self._is_fixed)

    # ------------------------------------------------------------------------------------------------- context

    @contextmanager
    def vector(self, lane: Var, lanes: int) -> Generator[None]:
        self.lane, self.lanes = lane, lanes
        try:
            yield
        finally:
            self.lane, self.lanes = None, 1

    @contextmanager
    def guarded(self, cond: Val) -> Generator[None]:
        """Loads and stores happen only where `cond` holds."""
        outer = self.mask
        self.mask = cond if outer is None else self.ops.logical("and", outer, cond)
        try:
            yield
        finally:
            self.mask = outer

    def forget_all(self) -> None:
        """In another line of code, which what was computed so far does not dominate or may have changed in."""
        self.known = LoadedValues(self.facts)

    # --------------------------------------------------------------------------------------------- expressions

    def emit(self, e: Expr) -> Val:
        key = self._key(e)
        done = self.known.get(key)
        if done is None:
            done = self._emit(e)
            self.known.put(key, done)
        return done

    def _key(self, e: Expr) -> NodeKey:
        # What reads nothing does not depend on the mask.
        return (e, self.mask.name if self.mask is not None and self.facts.buffers(e) else "", self.lanes)

    def _emit(self, e: Expr) -> Val:
        match e:
            case Const():
                return Val(literal(e.value, e.dtype), e.dtype)
            case Var():
                return self._var(e)
            case Load():
                return self._load(e)
            case Unary():
                return self.ops.unary(e.op, self.emit(e.a))
            case Binary():
                natural = e.op in _DIVISIONS and e.dtype is INDEX and self.simplify.bounds(e.a).lo >= 0
                return self.ops.binary(e.op, self.emit(e.a), self.emit(e.b), natural=natural)
            case Fma():
                return self.ops.fma(self.emit(e.a), self.emit(e.b), self.emit(e.c))
            case Select():
                return self._select(e)
            case Cast():
                return self.ops.cast(self.emit(e.a), e.dtype)
            case Bitcast():
                return self.ops.bitcast(self.emit(e.a), e.dtype)
            case _:
                raise InternalError(f"no code for {type(e).__name__}")

    def _var(self, v: Var) -> Val:
        if v is not self.lane:
            return self.b.env[v]
        ramp = "<" + ", ".join(f"i64 {n}" for n in range(self.lanes)) + ">"
        return Val(ramp, INDEX, self.lanes)

    def _select(self, e: Select) -> Val:
        cond = self.emit(e.cond)
        # What both sides load is loaded in any case: once, and without a guard. (Under two masks it would be computed
        # twice, and twice as often with every Select around it.)
        both = self.facts.certain(e.a) & self.facts.certain(e.b)
        if both:
            for n in walk(e.a):
                if n in both:
                    self.emit(n)
        a = self._side(e.a, cond, negated=False)
        return self.ops.select(cond, a, self._side(e.b, cond, negated=True))

    def _side(self, e: Expr, cond: Val, *, negated: bool) -> Val:
        """One side of a Select. Only loads that the code before has not made anyway need the guard."""
        if not self._loads_more(e):
            return self.emit(e)
        with self.guarded(self.ops.unary(UnaryOp.NOT, cond) if negated else cond):
            return self.emit(e)

    def _loads_more(self, e: Expr) -> bool:
        """Does computing `e` read memory, given what is known?"""
        seen: set[Expr] = set()
        todo = [e]
        while todo:
            n = todo.pop()
            if n in seen or not self.facts.buffers(n) or self._key(n) in self.known:
                continue
            if isinstance(n, Load) and n.buffer.scope is not Scope.REGISTER:
                return True
            seen.add(n)
            todo.extend(n.children())
        return False

    # ------------------------------------------------------------------------------------------------- memory

    def flat_index(self, buffer: Buffer, indices: Indices) -> Linear:
        """How many elements lie before the one at `indices`."""
        strides = self._strides.get(buffer) or self._strides.setdefault(buffer, buffer.strides)
        return self.simplify.weighted(indices, strides)

    def lane_form(self, form: Linear) -> tuple[Linear, int] | None:
        """(the index without the lane, elements per lane); None if the lane enters in another way."""
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
        b, cache = self.b, self.b.regions[-1].cache
        cursor = cache.get((buffer, form.terms))  # the same but for the constant: most elements of a tile are
        if cursor is None:
            cursor, here = self._hoisted_address(buffer, form)
            if here:
                cursor = self._advance(buffer, cursor, here, None)
            else:
                cache[buffer, form.terms] = cursor
        if form.const:
            cursor = b.op(
                f"getelementptr {memory_type(buffer.dtype)}, ptr {cursor.name}, i64 {form.const}", INDEX
            )
        return cursor

    def _hoisted_address(self, buffer: Buffer, form: Linear) -> tuple[Val, list[tuple[Expr, int]]]:
        """The part of an address that is computed in heads of loops, and the terms that are not."""
        b = self.b
        cursor = self.pointers[buffer]
        by_depth: dict[int, list[tuple[Expr, int]]] = {}
        here: list[tuple[Expr, int]] = []
        for atom, k in form.terms:
            depth = max((b.depth.get(v, 0) for v in free_vars(atom)), default=0)
            if self.facts.buffers(atom) and (depth == len(b.regions) - 1 or not self._is_fixed(atom)):
                here.append((atom, k))
            else:
                by_depth.setdefault(depth, []).append((atom, k))
        for depth in sorted(by_depth):
            key = (cursor.name, tuple(by_depth[depth]))
            cached = b.regions[depth].cache.get(key)
            if cached is None:
                with b.at(depth):
                    cached = self._advance(buffer, cursor, by_depth[depth], depth)
                b.regions[depth].cache[key] = cached
            cursor = cached
        return cursor, here

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

    def _is_fixed(self, atom: Expr) -> bool:
        """May it be read before the code that asks for it, and whether or not that runs? So it is if nothing stores
        there, and every element that it reads exists.
        """
        return all(
            ld.buffer in self.fixed
            and all(
                self.simplify.bounds(i).lo >= 0 and self.simplify.bounds(i).hi < n
                for i, n in zip(ld.indices, ld.buffer.shape, strict=True)
            )
            for ld in loads(atom)
        )

    def _hoisted(self, atom: Expr, depth: int) -> Val:
        """The value of an index expression, in the head of the region at `depth` (where the builder
        writes).
        """
        cache = self.b.regions[depth].cache
        value = cache.get(atom)
        if value is None:
            # A hoisted value must not use what is known only in the code at the current statement.
            known, lane, lanes, mask = self.known, self.lane, self.lanes, self.mask
            self.known, self.lane, self.lanes, self.mask = LoadedValues(self.facts), None, 1, None
            try:
                value = self.emit(atom)
            finally:
                self.known, self.lane, self.lanes, self.mask = known, lane, lanes, mask
            cache[atom] = value
        return value

    def _load(self, e: Load) -> Val:
        if e.buffer.scope is Scope.REGISTER:
            return self._load_register(e)
        if e.buffer in self.fixed and size_name(e.buffer) is not None:
            return self._size(e.buffer)
        if not e.buffer.size:  # on a side that is never chosen: there is nothing to read, not even elsewhere
            return Val(literal(0, e.dtype), e.dtype)
        split = self.lane_form(self.flat_index(e.buffer, e.indices))
        if split is None:
            return self._gather(e)
        form, step = split
        if self.mask is None and can_shuffle(e.dtype, self.lanes, step):
            return load_strided(self.b, e.dtype, self.address(e.buffer, form), self.lanes, step)
        if step not in (0, 1):
            return self._gather(e)
        self.prefetcher.before_load(e.buffer, form, self.lanes, is_vector=step > 0)
        return self._read(e.buffer, self.address(e.buffer, form), self.lanes if step else 1)

    def _size(self, buffer: Buffer) -> Val:
        """The size of a dimension is read once, at the beginning: LLVM would read it again after every store, and
        compute again what depends on it.
        """
        found = self._sizes.get(buffer)
        if found is None:
            pointer = self.pointers[buffer]
            with self.b.at(0):
                found = self.b.op(f"load i64, ptr {pointer.name}, align 8", INDEX)
            self._sizes[buffer] = found
        return found

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
            m = self.ops.widen(self.mask, lanes)
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
        chosen = self._chosen_places(e)
        for n in range(lanes):
            if chosen is None:
                one = self.per_lane(e, n)
                with self.scalar_lane(n):
                    v = self.emit(one)
            else:
                with self.scalar_lane(n):
                    v = self._chosen(e.buffer, *chosen, n)
            out = self.b.op(f"insertelement {out}, {v}, i64 {n}", e.dtype, lanes)
        return out

    def _chosen_places(self, e: Load) -> tuple[Linear, int, list[tuple[Val, int]]] | None:
        """(what all lanes share, how far each is from the one before, (a vector of indices, their factor)…) where data
        chooses elements, and which takes several instructions: those are done for all lanes at once.
        """
        form, lane = self.flat_index(e.buffer, e.indices), self.lane
        own = [(atom, k) for atom, k in form.terms if lane is not None and lane in free_vars(atom)]
        chosen = [(atom, k) for atom, k in own if atom is not lane]
        if not chosen or not all(self._is_computed(atom) for atom, _ in chosen):
            return None
        shared = Linear(form.const, tuple(t for t in form.terms if t not in own))
        step = sum(k for atom, k in own if atom is lane)
        return shared, step, [(self.emit(atom), k) for atom, k in chosen]

    def _is_computed(self, atom: Expr) -> bool:
        """Is it arithmetic on elements that a vector load reads?"""
        read = loads(atom)
        steps = [self.lane_form(self.flat_index(ld.buffer, ld.indices)) for ld in read]
        along = [s[1] for s in steps if s is not None]
        return (
            bool(read)
            and len(along) == len(steps)
            and all(0 <= step <= MAX_STEP for step in along)
            and _instructions(atom) >= _COMPUTED
        )

    def _chosen(
        self, buffer: Buffer, shared: Linear, step: int, chosen: list[tuple[Val, int]], lane_number: int
    ) -> Val:
        at = self.address(buffer, Linear(shared.const + lane_number * step, shared.terms))
        for vector, k in chosen:
            index = self.b.op(f"extractelement {vector}, i64 {lane_number}", INDEX)
            if k != 1:
                index = self.b.op(f"mul nsw i64 {index.name}, {k}", INDEX)
            at = self.b.op(
                f"getelementptr {memory_type(buffer.dtype)}, ptr {at.name}, i64 {index.name}", INDEX
            )
        return self._read(buffer, at, 1)

    # ---------------------------------------------------------------------------------------------- registers

    def _load_register(self, e: Load) -> Val:
        file = self.registers[e.buffer]
        offset, step = self.offsets.of(e.buffer, e.indices, self.lane)
        if step == 0:
            return self.element(file, offset)
        if step == 1 and offset % file.width == 0 and self.lanes == file.width:
            return self._slot(file, offset // file.width)
        if step % file.width == 0 and can_turn(e.dtype, file.width, self.lanes):
            return self._column(file, offset, step)
        out = Val("poison", e.dtype, self.lanes)
        for n in range(self.lanes):
            v = self.element(file, offset + n * step)
            out = self.b.op(f"insertelement {out}, {v}, i64 {n}", e.dtype, self.lanes)
        return out

    def _column(self, file: RegisterFile, offset: int, step: int) -> Val:
        """One element each of several slots; their other columns, which are likely wanted next, come with it."""
        rows = [self._slot(file, (offset + n * step) // file.width) for n in range(self.lanes)]
        names = tuple(v.name for v in rows)
        if names not in self.known.transposed:
            self.known.transposed[names] = transpose_vectors(self.b, rows)
        return self.known.transposed[names][offset % file.width]

    def _slot(self, file: RegisterFile, n: int) -> Val:
        return Val(file.slots[n] or "poison", file.buffer.dtype, file.width)

    def element(self, file: RegisterFile, offset: int) -> Val:
        """One element of a register buffer, by its flattened index."""
        slot = self._slot(file, offset // file.width)
        if file.width == 1:
            return slot
        return self.b.op(f"extractelement {slot}, i64 {offset % file.width}", slot.dtype)

    def store_register(self, buffer: Buffer, indices: Indices, value: Val) -> None:
        file = self.registers[buffer]
        offset, step = self.offsets.of(buffer, indices, self.lane)
        if step == 1 and offset % file.width == 0 and self.lanes == file.width:
            self._set_slot(file, offset // file.width, self.ops.widen(value, self.lanes), self.mask)
            return
        for n in range(self.lanes if step else 1):
            one = value if value.lanes == 1 else self.b.op(f"extractelement {value}, i64 {n}", value.dtype)
            bit = self.mask
            if bit is not None and bit.lanes > 1:
                bit = self.b.op(f"extractelement {bit}, i64 {n}", DType.BOOL)
            self.set_element(file, offset + n * step, one, bit)

    def set_element(self, file: RegisterFile, offset: int, one: Val, bit: Val | None = None) -> None:
        slot = self._slot(file, offset // file.width)
        if file.width > 1:
            one = self.b.op(f"insertelement {slot}, {one}, i64 {offset % file.width}", slot.dtype, file.width)
        self._set_slot(file, offset // file.width, one, bit)

    def _set_slot(self, file: RegisterFile, n: int, value: Val, mask: Val | None) -> None:
        if mask is not None:
            m = mask if mask.lanes == 1 else self.ops.widen(mask, value.lanes)
            value = self.b.op(f"select {m}, {value}, {self._slot(file, n)}", value.dtype, value.lanes)
        file.slots[n] = value.name


def _instructions(index: Expr) -> int:
    """Of arithmetic on what is loaded: addresses of these loads are no part of it, whole vectors have them too."""
    addresses = {n for load in loads(index) for i in load.indices for n in walk(i)}
    return sum(isinstance(n, Binary | Select) and n not in addresses for n in walk(index))
