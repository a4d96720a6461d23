"""pad_einsum: the iterators of a sum of products grow to multiples of what an instruction or a tile wants.

    for i in range(7), k in range(5):          for i in range(8), k in range(8):
        C[i] += A[i, k] * X[k]                     A_C_pad[i, k] = select(i < 7 and k < 5, A[i, k], -0)
                                               for k in range(8):
        PadEinsum("C", (4, 4))       ─────>        X_C_pad[k] = select(k < 5, X[k], 0)
                                               for i in range(8), k in range(8):
                                                   C_C_pad[i] += A_C_pad[i, k] * X_C_pad[k]
                                               for i in range(7):
                                                   C[i] = C_C_pad[i]

`padding` has a number per iterator of the block, 1 to leave it. An operand that a padded iterator indexes is copied by
a block `<block>_<buffer>_pad` (`_pad1` for a second operand out of the same buffer), and if the result grows,
`<block>_unpad` copies what is wanted of it. Operands that are not padded are read as before. Where all extents are
multiples already, nothing changes.

The block is a reduction with a constant init that adds a product of operands, each a load (perhaps cast) at distinct
iterators or constants; it is alone under plain loops, as its domain changes.

The result is the same to the bit, with any values in the inputs. What is added in vain must be zero, and 0 · Inf is
not: so each operand is zero there, and floats must all be indexed by every padded reduce iterator. It must be the
negative zero, since -0 + 0 is 0: one operand is padded with -0, the others with 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.ir.condition import logical_and
from tilewright.ir.expr import (
    Binary,
    BinaryOp,
    Buffer,
    Cast,
    Const,
    Expr,
    Fma,
    Indices,
    Load,
    Var,
    as_index,
    const,
    select,
)
from tilewright.ir.rewrite import transform as transform_expr
from tilewright.schedule.edit import replace_stmt
from tilewright.schedule.excerpt import step_refusal
from tilewright.schedule.find import find_block, top_level
from tilewright.schedule.names import bound_names, check_fresh
from tilewright.schedule.own_nest import own_nest, under_own_loops
from tilewright.schedule.preconditions import check_not_in_place, check_sole_writer
from tilewright.schedule.step import BlockStep
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.func import Func
from tilewright.tir.stmt import Block, Iter, IterKind, Stmt, Store, seq


@dataclass(frozen=True, slots=True)
class PadEinsum(BlockStep):
    padding: tuple[int, ...]

    @property
    def copy(self) -> str:
        """The block that copies the result out, if that is padded."""
        return f"{self.block}_unpad"

    def pad(self, buffer: str) -> str:
        """The block that copies this operand, if it is padded."""
        return f"{self.block}_{buffer}_pad"

    def rewrite(self, func: Func) -> Func:
        block = find_block(func, self.block)
        nest = own_nest(func, block)
        top = next(iter(nest.values()), block)
        if not any(s is top for s in top_level(func)):
            raise step_refusal(
                func, block, f"{self.block} is inside another nest", hint="pad blocks before they are moved"
            )
        if len(self.padding) != len(block.iters) or any(p < 1 for p in self.padding):
            raise step_refusal(
                func,
                block,
                f"{self.padding} is not a positive number for each of its {len(block.iters)} iterators",
            )
        store, operands = _einsum(func, block)
        flow = Dataflow(func)
        check_sole_writer(func, flow, block)
        check_not_in_place(func, flow, block)
        wide = {
            it.var: Iter(it.var, -(-it.extent // p) * p, it.kind, it.size)
            for it, p in zip(block.iters, self.padding, strict=True)
        }
        grown = {it.var: it for it in block.iters if wide[it.var].extent != it.extent}
        if not grown:
            return func
        _check_zero(func, block, store, operands, grown)
        pads, loads, made = self._pads(operands, wide, grown)
        result, unpad = self._unpad(block, store, wide, grown)
        nests = [*pads, *unpad]
        fresh = [name for n in nests for name in bound_names(n)]
        check_fresh(func, (*fresh, *(b.name for b in made), *([result.name] if unpad else ())))

        widened = _widened(block, store, result, loads, tuple(wide.values()))
        body: Stmt = widened
        for binding, loop in reversed(nest.items()):
            extent = widened.iters[block.bindings.index(binding)].extent
            body = replace(loop, extent=extent, body=body)
        func = replace(func, locals=(*func.locals, *made, *([result] if unpad else ())))
        return replace_stmt(func, top, seq(*pads, body, *unpad))

    def _pads(
        self, operands: tuple[Load, ...], wide: Mapping[Var, Iter], grown: Mapping[Var, Iter]
    ) -> tuple[list[Stmt], dict[Load, Load], list[Buffer]]:
        """The nests that copy operands, what is read instead of each, and the copies."""
        nests: list[Stmt] = []
        loads: dict[Load, Load] = {}
        made: list[Buffer] = []
        # A square has no sign, so an operand that tells the sign of the product gets the negative zero.
        signed = next((o for o in operands if o.dtype.is_float and operands.count(o) % 2), None)
        for load in dict.fromkeys(operands):
            mine = [i for i in load.indices if isinstance(i, Var)]
            if not any(v in grown for v in mine):
                continue
            twins = sum(o.buffer is load.buffer for o in loads)
            number = str(twins) if twins else ""
            name = self.pad(load.buffer.name) + number
            copy = _wide_buffer(f"{load.buffer.name}_{self.block}_pad{number}", load, wide)
            loads[load] = Load(copy, _inside(load.indices))
            fill = const(-0.0 if load is signed else 0, load.dtype)
            renamed = {v: Var(f"{name}_v{d}") for d, v in enumerate(mine)}
            inside = logical_and(*(renamed[v] < grown[v].extent for v in mine if v in grown))
            value = select(inside, Load(load.buffer, _renamed(load.indices, renamed)), fill)
            store = Store(copy, _renamed(_inside(load.indices), renamed), value)
            nests.append(_nest(name, [Iter(renamed[v], wide[v].extent) for v in mine], store))
            made.append(copy)
        return nests, loads, made

    def _unpad(
        self, block: Block, store: Store, wide: Mapping[Var, Iter], grown: Mapping[Var, Iter]
    ) -> tuple[Buffer, list[Stmt]]:
        """The buffer to store to, and the nest that copies what is wanted of it, if it is not the one there was."""
        mine = [i for i in store.indices if isinstance(i, Var)]
        if not any(v in grown for v in mine):
            return store.buffer, []
        place = Load(store.buffer, store.indices)
        result = _wide_buffer(f"{store.buffer.name}_{self.block}_pad", place, wide)
        renamed = {v: Var(f"{self.copy}_v{d}") for d, v in enumerate(mine)}
        extents = {it.var: it.extent for it in block.iters}
        value = Load(result, _renamed(_inside(store.indices), renamed))
        copy = Store(store.buffer, _renamed(store.indices, renamed), value)
        return result, [_nest(self.copy, [Iter(renamed[v], extents[v]) for v in mine], copy)]


# ---------------------------------------------------------------------------------------------------- what it is


def _einsum(func: Func, block: Block) -> tuple[Store, tuple[Load, ...]]:
    """The store of a sum of products, and its operands in order; one that is squared occurs twice."""
    store = block.try_store
    init = block.init
    if store is None or not isinstance(init, Store) or not isinstance(init.value, Const):
        raise step_refusal(
            func,
            block,
            f"{block.name} is not a reduction of one store with a constant init",
            hint="pad sums only",
        )
    update, acc = store.value, Load(store.buffer, store.indices)
    match update:
        case Fma(a=a, b=b, c=c) if c is acc:
            factors = [*_factors(a), *_factors(b)]
        case Binary(op=BinaryOp.ADD, a=a, b=b) if a is acc or b is acc:
            factors = _factors(b if a is acc else a)
        case _:
            factors = []
    operands = [f.a if isinstance(f, Cast) else f for f in factors]
    found = [o for o in operands if isinstance(o, Load) and o.buffer is not store.buffer]
    if not found or len(found) != len(operands):
        raise step_refusal(
            func,
            block,
            f"{block.name} does not add a product of loads to {store.buffer.name}",
            hint="pad sums only",
        )
    for place in (acc, *found):
        plain = [i for i in place.indices if isinstance(i, Var)]
        if len(set(plain)) != len(plain) or any(not isinstance(i, Var | Const) for i in place.indices):
            raise step_refusal(
                func,
                block,
                f"the indices of {place.buffer.name} in {block.name} are not distinct iterators or constants",
                hint="Reindex copies an operand into the order of the iterators first",
            )
    return store, tuple(found)


def _factors(e: Expr) -> list[Expr]:
    if isinstance(e, Binary) and e.op is BinaryOp.MUL:
        return [*_factors(e.a), *_factors(e.b)]
    return [e]


def _check_zero(
    func: Func, block: Block, store: Store, operands: tuple[Load, ...], grown: Mapping[Var, Iter]
) -> None:
    """What is added outside of the old domain is zero, or added to what is not copied out."""
    for v, it in grown.items():
        using = [o for o in operands if v in o.indices]
        if it.kind is IterKind.SPATIAL:
            if v not in store.indices:
                raise step_refusal(func, block, f"{v.name} does not index {store.buffer.name}")
        elif not using or (store.buffer.dtype.is_float and len(using) < len(operands)):
            other = next(o for o in operands if v not in o.indices)
            raise step_refusal(
                func,
                block,
                f"{other.buffer.name} is not indexed by {v.name}: 0 · {other.buffer.name} would be added, which is not "
                "0 if that is infinite",
                hint=f"leave {v.name} as it is: padding 1",
            )


# --------------------------------------------------------------------------------------------------------- making it


def _widened(
    block: Block, store: Store, result: Buffer, loads: Mapping[Load, Load], iters: tuple[Iter, ...]
) -> Block:
    """The block over its new domain."""
    assert isinstance(block.init, Store)
    inside = store.indices if result is store.buffer else _inside(store.indices)
    replaced: dict[Load, Load] = {**loads, Load(store.buffer, store.indices): Load(result, inside)}
    value = transform_expr(store.value, lambda n: replaced.get(n) if isinstance(n, Load) else None)
    init = Store(result, inside, block.init.value)
    return replace(block, iters=iters, body=Store(result, inside, value), init=init)


def _inside(indices: Indices) -> Indices:
    """The same place in a copy, which has one element where the index is a constant."""
    return tuple(i if isinstance(i, Var) else as_index(0) for i in indices)


def _wide_buffer(name: str, place: Load, wide: Mapping[Var, Iter]) -> Buffer:
    shape = tuple(wide[i].extent if isinstance(i, Var) else 1 for i in place.indices)
    return Buffer(name, shape, place.buffer.dtype)


def _renamed(indices: Indices, names: Mapping[Var, Var]) -> Indices:
    return tuple(names[i] if isinstance(i, Var) else i for i in indices)


def _nest(name: str, iters: list[Iter], store: Store) -> Stmt:
    """Loops `<name>_i<d>` around a block."""
    loops = tuple(Var(f"{name}_i{d}") for d in range(len(iters)))
    return under_own_loops(Block(name, tuple(iters), loops, store))
