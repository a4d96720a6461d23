"""Random schedule steps, drawn from the fields that each step declares.

`random_step(rng, module)` picks one of `STEPS` and fills its fields with names of the program and plausible numbers, so
that a good part of them are legal; now and then one is junk. Fields are drawn by name, in `FIELDS`: a new step whose
fields have the usual names is drawn without any change here.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from tilewright.ir import layout as layouts
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Load, Scope, free_vars
from tilewright.ir.expr import loads as loads_of
from tilewright.ir.layout import Layout
from tilewright.schedule.find import path_to
from tilewright.schedule.sampling import SamplingStep
from tilewright.schedule.step import Step
from tilewright.schedule.steps import STEPS
from tilewright.target.intrinsics import intrinsic_names
from tilewright.tir.analysis.dataflow import Dataflow
from tilewright.tir.func import Func, Module
from tilewright.tir.printer import print_expr
from tilewright.tir.stmt import Block, For, LoopKind, Seq, Store, blocks, loops, walk_stmts

JUNK = ("", "no such thing", "T0", "T0_va0", "X0", "random", "0")


class Draw:
    """Draws the fields of one step, which see those before them."""

    def __init__(self, rng: random.Random, module: Module) -> None:
        self.rng, self.module = rng, module
        self.func: Func = rng.choice(module.funcs)
        self.loops = list(loops(self.func.body))
        self.blocks = list(blocks(self.func.body))
        self.fields: dict[str, Any] = {}

    def pick(self, options: Any, default: Any = "none") -> Any:
        options = list(options)
        return self.rng.choice(options) if options else default

    # --------------------------------------------------------------------------------------------------------- names

    def loop(self) -> str:
        """Mostly one around the block, or around a block that it shares a buffer with."""
        block = self._block()
        if block is None:
            shared = [n for n in self.loops if isinstance(n.body, Seq)]
            some = shared if shared and self.rng.random() < 0.3 else self.loops
            return self.pick(n.var.name for n in some)
        flow = Dataflow(self.func)
        near: list[Block] = {
            0: [block],
            1: list(flow.consumers(block)),
            2: list(flow.producers(block)),
            3: self.blocks,
        }[self.rng.choice((0, 0, 1, 1, 1, 2, 2, 3))]
        names = [n.var.name for b in near for n in path_to(self.func.body, b) if isinstance(n, For)]
        return self.pick(names or [n.var.name for n in self.loops])

    def block(self) -> str:
        return self.pick(b.name for b in self.blocks)

    def _block(self) -> Block | None:
        return next((b for b in self.blocks if b.name == self.fields.get("block")), None)

    def _loop(self) -> For | None:
        return next((n for n in self.loops if n.var.name == self.fields.get("loop")), None)

    def buffer(self) -> str:
        block = self._block()
        known = [*self.func.params, *self.func.locals]
        if block is not None and self.rng.random() < 0.8:
            used = {n.buffer for n in walk_stmts(block) if isinstance(n, Store)}
            used |= {ld.buffer for n in walk_stmts(block) if isinstance(n, Store) for ld in _loads(n)}
            known = sorted(used, key=lambda b: b.name)
        return self.pick(b.name for b in known)

    def local(self) -> str:
        return self.pick(b.name for b in (self.func.locals or self.func.params))

    def target(self) -> str:
        return self.loop() if self.rng.random() < 0.5 else self.block()

    def nest(self) -> tuple[str, ...]:
        """Loops that belong together: nested, a permutation of a chain, or next to each other."""
        match self.rng.randrange(4):
            case 0:
                inner = [n for n in self.loops if isinstance(n.body, For)]
                loop = self.pick(inner, None)
                return (loop.var.name, loop.body.var.name) if loop is not None else ("none", "none")
            case 1:
                block = self.pick(self.blocks, None)
                path = (
                    [n.var.name for n in path_to(self.func.body, block) if isinstance(n, For)]
                    if block
                    else []
                )
                return tuple(self.rng.sample(path, self.rng.randint(min(2, len(path)), len(path))))
            case 2:
                siblings = [
                    [c.var.name for c in s.stmts if isinstance(c, For)]
                    for s in walk_stmts(self.func.body)
                    if isinstance(s, Seq)
                ]
                some = self.pick((s for s in siblings if len(s) > 1), ["none", "none"])
                return tuple(some[: self.rng.randint(2, len(some))])
            case _:
                return tuple(self.pick(n.var.name for n in self.loops) for _ in range(self.rng.randint(1, 3)))

    def iters(self) -> tuple[str, ...]:
        block = self._block()
        names = [it.var.name for it in block.iters] if block is not None else []
        if block is not None and self.rng.random() < 0.6:  # those of one operand, in some order
            reads = [ld for n in walk_stmts(block) if isinstance(n, Store) for ld in _loads(n)]
            read = self.pick((ld for ld in reads if ld.buffer.name == self.fields.get("buffer")), None)
            read = read if read is not None else self.pick(reads, None)
            if read is not None:
                names = sorted({v.name for i in read.indices for v in free_vars(i)})
                return tuple(self.rng.sample(names, len(names)))
        start = self.rng.randint(0, max(len(names) - 1, 0))
        return tuple(names[start : start + self.rng.randint(1, 3)])

    # ------------------------------------------------------------------------------------------------------- numbers

    def extent(self) -> int:
        loop = self._loop()
        return loop.extent if loop is not None else 4

    def factors(self) -> tuple[int | None, ...]:
        parts: list[int | None] = [self.rng.choice((1, 2, 2, 3, 4, 5)) for _ in range(self.rng.randint(1, 3))]
        if self.rng.random() < 0.9:
            parts[self.rng.randrange(len(parts))] = None
        return tuple(parts)

    def points(self) -> tuple[int, ...]:
        n = self.rng.choice((1, 1, 1, 2))
        return tuple(sorted(self.rng.randint(0, self.extent() + 1) for _ in range(n)))

    def numbers(self) -> tuple[int, ...]:
        block = self._block()
        count = len(block.iters) if block is not None else 2
        if self.rng.random() < 0.3:
            count = self.rng.randint(0, 3)
        return tuple(self.rng.choice((1, 1, 2, 3, 4)) for _ in range(count))

    def position(self) -> tuple[int, ...]:
        return tuple(self.rng.randint(0, 2) for _ in range(self.rng.randint(0, 2)))

    def layout(self) -> Layout:
        known: dict[str, Buffer] = {b.name: b for b in (*self.func.params, *self.func.locals)}
        buffer = known.get(self.fields.get("buffer", ""))
        block = self._block()
        shape = (
            list(buffer.shape) if buffer is not None else [it.extent for it in block.iters] if block else [2]
        )
        moves: list[Any] = []
        for _ in range(self.rng.randint(1, 2)):
            rank = len(shape) + (self.rng.random() < 0.05)  # sometimes of a dimension that is not there
            dim = self.rng.randrange(max(rank, 1))
            match self.rng.randrange(7):
                case 0:
                    moves.append(layouts.SplitDim(dim, self.rng.randint(1, 4)))
                case 1:
                    moves.append(layouts.ReorderDims(tuple(self.rng.sample(range(rank), rank))))
                case 2:
                    moves.append(layouts.FuseDims(max(dim - 1, 0), min(2, rank)))
                case 3:
                    moves.append(layouts.UnfoldDim(dim, self.rng.randint(1, 5), self.rng.randint(1, 3)))
                case 4 if self.rng.random() < 0.5:
                    moves.append(layouts.CropDim(dim, self.rng.randint(0, 1), self.rng.randint(0, 1)))
                case 5 if self.rng.random() < 0.2:
                    moves.append(layouts.FoldDim(dim, self.rng.randint(1, 3), self.rng.randint(1, 6)))
                case _:
                    moves.append(layouts.PadDim(dim, self.rng.randint(0, 1), self.rng.randint(0, 2)))
            try:
                shape = list(moves[-1].shape(tuple(shape)))
            except (IndexError, ZeroDivisionError):
                break
        return Layout(tuple(moves))

    def options(self) -> tuple[tuple[Step, ...], ...]:
        return tuple(
            tuple(random_step(self.rng, self.module) for _ in range(self.rng.randint(0, 2)))
            for _ in range(self.rng.randint(1, 2))
        )


def _loads(s: Store) -> list[Load]:
    """What a store reads, always in the same order."""
    return [ld for e in (*s.indices, s.value) for ld in sorted(loads_of(e), key=print_expr)]


FIELDS: Mapping[str, Callable[[Draw], object]] = {
    "loop": Draw.loop,
    "block": Draw.block,
    "buffer": Draw.buffer,
    "guest": Draw.local,
    "host": Draw.local,
    "dim": lambda d: d.rng.choice((0, 0, 1)),
    "row": lambda d: d.rng.choice((None, None, 0, 2)),
    "target": Draw.target,
    "at": Draw.target,
    "loops": Draw.nest,
    "iters": Draw.iters,
    "factors": Draw.factors,
    "points": Draw.points,
    "padding": Draw.numbers,
    "position": Draw.position,
    "layout": Draw.layout,
    "options": Draw.options,
    "scope": lambda d: d.rng.choice((Scope.GLOBAL, Scope.GLOBAL, Scope.LOCAL, Scope.REGISTER)),
    "axis": lambda d: d.rng.choice([k.value for k in LoopKind]),
    "key": lambda d: d.rng.choice(("pragma", "note", "")),
    "value": lambda d: d.rng.choice((None, 1, 2.5, True, "text")),
    "suffix": lambda d: d.rng.choice(("rf", "rf", "rf2")),
    "intrinsic": lambda d: d.rng.choice((*intrinsic_names(), "none")),
    "parts": lambda d: d.rng.choice((0, 1, 2, 2, 3)),
    "max_innermost": lambda d: d.rng.choice((1, 4, 16)),
    "decision": lambda d: None,
    "others": lambda d: tuple(d.block() for _ in range(d.rng.choice((0, 1)))),
    "partial": lambda d: d.rng.random() < 0.5,
    "size": lambda d: d.rng.choice((1, 2, 3, 5)),
    "skip": lambda d: d.rng.random() < 0.5,
    "grain": lambda d: d.rng.choice((2, 2, 3, 4, 8)),
    "first": lambda d: d.rng.choice([f.name for f in d.module.funcs]),
    "second": lambda d: d.rng.choice([f.name for f in d.module.funcs]),
    "blocks": lambda d: tuple(b.name for b in d.blocks[: d.rng.choice((1, 2, 3, 9))]),
    "kept": lambda d: tuple(b.name for b in d.blocks if d.rng.random() < 0.5),
    "width": lambda d: d.rng.choice((1, 2, 4, 5)),
    "chunk": lambda d: d.rng.choice((0, 0, 2, 3)),
    "split": lambda d: d.rng.choice((1, 1, 2, 3)),
    "panel": lambda d: d.rng.choice((1, 2, 3)),
    "depth": lambda d: d.rng.choice((0, 0, 2, 3)),
    "in_place": lambda d: d.rng.choice((False, True)),
    "ahead": lambda d: d.rng.choice((0, 0, 1, 2)),
    "rows": lambda d: d.rng.choice((1, 2, 3)),
    "separate": lambda d: d.rng.choice((False, True)),
    "halve": lambda d: d.rng.choice((0, 1)),
    "lanes": lambda d: d.rng.choice((1, 2, 4, 8)),
    "vectors": lambda d: d.rng.choice((1, 2, 3)),
    "across": lambda d: d.rng.choice((1, 4, 8)),
    "along": lambda d: d.rng.choice((1, 4, 8)),
    "squares": lambda d: d.rng.choice((1, 2)),
    "sources_first": lambda d: d.rng.choice((False, True)),
    "streams": lambda d: d.rng.choice((False, True)),
    "dtype": lambda d: d.rng.choice((None, None, *DType)),
}

# Of 4. What many others build on is drawn more often, and what closes a nest to others less.
WEIGHTS = {
    "Split": 8,
    "ComputeAt": 16,
    "ReverseComputeAt": 12,
    "RollingBuffer": 8,
    "DecomposeReduction": 8,
    "Rfactor": 8,
    "Bind": 2,
    "Blockize": 2,
    "Unroll": 2,
    "Annotate": 1,
    "AddUnitLoop": 2,
    "FoldPadding": 1,
    "RollingUpdate": 1,
    "JoinFuncs": 1,
    "StoreAt": 1,
    "Tensorize": 1,
    "SampleComputeLocation": 2,
}


def random_step(rng: random.Random, module: Module, classes: tuple[type[Step], ...] = STEPS) -> Step:
    """Some step, often a legal one."""
    known = [c for c in classes if all(f.name in FIELDS for f in fields(c))]
    (cls,) = rng.choices(known, [WEIGHTS.get(c.__name__, 4) for c in known])
    draw = Draw(rng, module)
    names = [f.name for f in fields(cls)]
    junk = rng.choice(names) if rng.random() < 0.05 else None
    for f in fields(cls):
        value = FIELDS[f.name](draw)
        if f.name == junk:
            value = _spoilt(rng, value)
        elif f.default is not MISSING and rng.random() < 0.5:
            value = f.default
        draw.fields[f.name] = value
    step = cls(**draw.fields)
    if isinstance(step, SamplingStep) and rng.random() < 0.9:
        try:
            choice = rng.choice(list(step.choices(module)))
        except Exception:  # a refusal, or a defect: then taking the step shows it
            return step
        return cls(**{**draw.fields, "decision": choice})
    return step


def _spoilt(rng: random.Random, value: object) -> Any:
    match value:
        case str():
            return rng.choice(JUNK)
        case int():
            return rng.choice((-1, 0, 1000))
        case tuple():
            return rng.choice(((), (*value, *value), tuple(_spoilt(rng, v) for v in value)))
        case _:
            return value
