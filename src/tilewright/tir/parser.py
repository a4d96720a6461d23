"""Reading the text that `printer` writes, or that a person does. `parse(print(x))` is `x` again.

The text is Python syntax, so Python's own parser makes the tree; this file gives it meaning. Nodes are built as they
are written, without folding: `1 + 2` stays a sum. For those who write by hand, a bare number takes the type of what
it is combined with (`X[i] * 2.0`), and `>` and `>=` are read as `<` and `<=` with their sides exchanged.

Errors are `UserError`s with the line and a caret. Only names, shapes and types are checked here; `verify` has the
rules that programs keep.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.expr import TRUE, Buffer, Expr, Load, Scope, Var
from tilewright.support.program import Branch, ProgramStep, While
from tilewright.tir.expr_parser import ExprParser, Scoped, near, number_of, parse_expr
from tilewright.tir.func import Call, Constant, External, Func, Module, Program
from tilewright.tir.printer import constant_digest
from tilewright.tir.stmt import (
    Alloc,
    Annotations,
    AnnotationValue,
    Block,
    Emit,
    For,
    If,
    Iter,
    IterKind,
    LoopKind,
    Repeat,
    Stmt,
    Store,
    seq,
)

__all__ = ["parse_expr", "parse_func", "parse_module"]

_LOOPS = {k.value: k for k in LoopKind}
_ITERS = {k.value: k for k in IterKind}


def parse_func(text: str) -> Func:
    p = FuncParser(text)
    match p.statements():
        case [ast.FunctionDef() as d]:
            return p.func(d)
        case _:
            p.fail(None, "one function is expected")


def parse_module(text: str, constants: Mapping[str, NDArray[np.generic]] | None = None) -> Module:
    """A Module; the values of its constants are given by name and must have the digests of the text."""
    p = FuncParser(text)
    funcs: list[Func] = []
    program: ast.FunctionDef | None = None
    for d in p.statements():
        match d:
            case ast.FunctionDef(decorator_list=[ast.Name(id="func")]):
                funcs.append(p.func(d))
            case ast.FunctionDef(decorator_list=[ast.Name(id="module")]) if program is None:
                program = d
            case _:
                p.fail(d, "@func functions and one @module function are expected")
    if program is None:
        p.fail(None, "the @module function is missing")
    return p.module(program, tuple(funcs), constants or {})


class FuncParser(ExprParser):
    # ------------------------------------------------------------------------------------------ functions, modules

    def func(self, d: ast.FunctionDef) -> Func:
        names, body = self.stand_ins(d.body)
        scope: dict[str, Scoped] = {}
        params: list[Buffer] = []
        outputs: list[Buffer] = []
        for a in d.args.args:
            match a.annotation:
                case ast.Call(func=ast.Name(id="out"), args=[kind]):
                    params.append(self._buffer(a, kind, names))
                    outputs.append(params[-1])
                case kind:
                    params.append(self._buffer(a, kind, names))
            scope[a.arg] = params[-1]
        local: list[Buffer] = []
        while body:
            match body[0]:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="alloc")) as call
                ):
                    local.append(self._allocated(name, call, names))
                    scope[name] = local[-1]
                    body = body[1:]
                case _:
                    break
        match body:
            case [*rest, ast.Return(value=value)] if value is not None:
                outputs, body = self.buffers(value, scope), rest
            case _:
                pass
        stmt = self._body(body, scope, names)
        return Func(names.get(d.name, d.name), tuple(params), tuple(local), stmt, tuple(outputs))

    def _buffer(self, a: ast.arg, kind: ast.expr | None, names: Mapping[str, str]) -> Buffer:
        dtype, shape, sizes = self.open_type(kind if kind is not None else a)
        return Buffer(names.get(a.arg, a.arg), shape, dtype, Scope.GLOBAL, sizes)

    def _allocated(self, name: str, call: ast.Call, names: Mapping[str, str]) -> Buffer:
        match call.args:
            case [kind]:
                scope = Scope.GLOBAL
            case [kind, ast.Constant(value=str(word))] if word in [s.value for s in Scope]:
                scope = Scope(word)
            case _:
                self.fail(call, "alloc takes a type and a scope", 'write it as alloc(f32[8], "register")')
        dtype, shape, sizes = self.open_type(kind)
        return Buffer(names.get(name, name), shape, dtype, scope, sizes)

    def module(
        self, d: ast.FunctionDef, funcs: tuple[Func, ...], values: Mapping[str, NDArray[np.generic]]
    ) -> Module:
        names, body = self.stand_ins(d.body)
        scope: dict[str, Scoped] = {}
        inputs: list[Buffer] = []
        temps: list[Buffer] = []
        constants: list[Constant] = []
        for a in d.args.args:
            match a.annotation:
                case ast.Call(func=ast.Name(id="out"), args=[kind]):
                    buffer = self._buffer(a, kind, names)
                case ast.Call(func=ast.Name(id="temp"), args=[kind]):
                    buffer = self._buffer(a, kind, names)
                    temps.append(buffer)
                case ast.Call(func=ast.Name(id="constant"), args=[kind, ast.Constant(value=str(key))]):
                    buffer = self._buffer(a, kind, names)
                    constants.append(self._constant(a, buffer, key, values))
                case kind:
                    buffer = self._buffer(a, kind, names)
                    inputs.append(buffer)
            scope[a.arg] = buffer
        match body:
            case [*rest, ast.Return(value=value)]:
                outputs = self.buffers(value, scope) if value is not None else []
            case _:
                self.fail(d, "the program ends without `return` of its outputs")
        program = self._program(rest, scope, names, {f.name: f for f in funcs})
        return Module(funcs, program, tuple(inputs), tuple(outputs), tuple(constants), tuple(temps))

    def _constant(
        self, a: ast.arg, buffer: Buffer, key: str, values: Mapping[str, NDArray[np.generic]]
    ) -> Constant:
        value = values.get(buffer.name)
        if value is None:
            self.fail(a, f"no value is given for the constant {buffer.name!r}")
        if value.shape != buffer.shape or value.dtype != buffer.dtype.numpy or constant_digest(value) != key:
            self.fail(a, f"the value given for {buffer.name!r} is not the one that the text is about")
        return Constant(buffer, value)

    def _program(
        self,
        body: Sequence[ast.stmt],
        scope: Mapping[str, Scoped],
        names: Mapping[str, str],
        funcs: Mapping[str, Func],
    ) -> Program:
        steps: list[ProgramStep[Call | External, Buffer]] = []
        for s in body:
            match s:
                case ast.Pass():
                    pass
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Name(id="external"),
                        args=[ast.Constant(value=str(key))],
                        keywords=[ast.keyword(arg="inputs", value=i), ast.keyword(arg="outputs", value=o)],
                    )
                ):
                    steps.append(External(key, tuple(self.buffers(i, scope)), tuple(self.buffers(o, scope))))
                case ast.Expr(value=ast.Call(func=ast.Name(id=word), args=args) as call):
                    func = funcs.get(names.get(word, word))
                    if func is None:
                        self.fail(call, f"no function is called {word!r}", near(word, funcs))
                    if len(args) != len(func.params):
                        self.fail(call, f"{func.name} takes {len(func.params)} buffers, not {len(args)}")
                    steps.append(Call(func.name, tuple(self.named_buffer(b, scope) for b in args)))
                case ast.If(test=test, body=then, orelse=otherwise):
                    both = [self._program(b, scope, names, funcs) for b in (then, otherwise)]
                    steps.append(Branch(self.named_buffer(test, scope), both[0], both[1]))
                case ast.While(test=test, body=inner, orelse=[]):
                    again = self._program(inner, scope, names, funcs)
                    steps.append(While(self.named_buffer(test, scope), again))
                case _:
                    self.fail(s, "a program calls functions, and has `if` and `while` on a buffer")
        return tuple(steps)

    # ------------------------------------------------------------------------------------------------- statements

    def _body(self, body: Sequence[ast.stmt], scope: dict[str, Scoped], names: Mapping[str, str]) -> Stmt:
        scope = dict(scope)
        out: list[Stmt] = []
        for s in body:
            match s:
                case ast.Pass():
                    pass
                case ast.Assign(targets=[ast.Subscript() as target], value=value):
                    buffer, indices = self.access(target, scope)
                    out.append(Store(buffer, indices, self.expr(value, scope, buffer.dtype)))
                case ast.Assign():
                    self.let(s, scope)
                case ast.For(
                    target=ast.Name(id=name),
                    iter=ast.Call(func=ast.Name(id=kind), args=[extent, *limits], keywords=notes),
                    body=inner,
                    orelse=[],
                ) if kind in _LOOPS and len(limits) <= 1:
                    var = Var(names.get(name, name))
                    nest = self._body(inner, {**scope, name: var}, names)
                    limit = self.expr(limits[0], scope) if limits else None
                    out.append(For(var, self.integer(extent), nest, _LOOPS[kind], self._notes(notes), limit))
                case ast.If(test=test, body=inner, orelse=[]):
                    out.append(If(self.expr(test, scope), self._body(inner, scope, names)))
                case ast.While(test=test, body=inner, orelse=[]):
                    out.append(Repeat(self.expr(test, scope), self._body(inner, scope, names)))
                case ast.With(
                    items=[
                        ast.withitem(
                            context_expr=ast.Call(
                                func=ast.Name(id="block"),
                                args=[ast.Constant(value=str(name))],
                                keywords=notes,
                            ),
                            optional_vars=None,
                        )
                    ],
                    body=inner,
                ):
                    out.append(
                        replace(self._block(name, inner, scope, names), annotations=self._notes(notes))
                    )
                case ast.With(
                    items=[
                        ast.withitem(
                            context_expr=ast.Call(
                                func=ast.Name(id="emit"), args=[ast.Constant(value=str(name)), *places]
                            ),
                            optional_vars=None,
                        )
                    ],
                    body=inner,
                ):
                    operands = tuple(self._operand(p, scope) for p in places)
                    out.append(Emit(name, operands, self._body(inner, scope, names)))
                case ast.With(
                    items=[
                        ast.withitem(
                            context_expr=ast.Call(func=ast.Name(id="alloc")) as call,
                            optional_vars=ast.Name(id=name),
                        )
                    ],
                    body=inner,
                ):
                    buffer = self._allocated(name, call, names)
                    out.append(Alloc(buffer, self._body(inner, {**scope, name: buffer}, names)))
                case _:
                    self.fail(
                        s,
                        "this is not a statement of TIR",
                        f"loops are `for i in range(8):`, with {', '.join(_LOOPS)}; see docs/ir.md",
                    )
        return seq(*out)

    def _notes(self, words: Sequence[ast.keyword]) -> Annotations:
        """Annotations, which are written as keyword arguments, and as **{"key": value} where a key is no word."""
        found: dict[str, AnnotationValue] = {}
        for w in words:
            if w.arg is not None:
                pairs: list[tuple[ast.expr | None, ast.expr]] = [(ast.Constant(w.arg), w.value)]
            else:
                pairs = (
                    list(zip(w.value.keys, w.value.values, strict=True))
                    if isinstance(w.value, ast.Dict)
                    else []
                )
            for key, value in pairs or [(None, w.value)]:
                if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or key.value in found:
                    self.fail(value, 'annotations are key=value, or **{"key": value}, each key once')
                found[key.value] = self._note(value)
        return tuple(sorted(found.items()))

    def _note(self, node: ast.expr) -> AnnotationValue:
        match node:
            case ast.Constant(value=str(value) | bool(value)):
                return value
            case _:
                number = number_of(node)
                if number is None:
                    self.fail(node, "the value of an annotation is a string, a number, True or False")
                return number

    def _operand(self, node: ast.expr, scope: dict[str, Scoped]) -> tuple[Load, ...]:
        elements = node.elts if isinstance(node, ast.List) else []
        if not elements or not all(isinstance(e, ast.Subscript) for e in elements):
            self.fail(node, "an operand of emit is a list of elements", "write it as [A[i, 0], A[i + 1, 0]]")
        return tuple(Load(*self.access(e, scope)) for e in elements if isinstance(e, ast.Subscript))

    def _block(
        self, name: str, body: list[ast.stmt], scope: dict[str, Scoped], names: Mapping[str, str]
    ) -> Block:
        iters: list[Iter] = []
        bindings: list[Expr] = []
        predicate: Expr = TRUE
        init: Stmt | None = None
        inside = dict(scope)
        rest = list(body)
        while rest:
            match rest[0]:
                case ast.Assign(
                    targets=[ast.Name(id=word)],
                    value=ast.Call(func=ast.Name(id=kind), args=[extent, binding, *sizes]),
                ) if kind in _ITERS and len(sizes) <= 1:
                    var = Var(names.get(word, word))
                    size = self.expr(sizes[0], inside) if sizes else None
                    iters.append(Iter(var, self.integer(extent), _ITERS[kind], size))
                    bindings.append(self.expr(binding, scope))
                    inside[word] = var
                case ast.Expr(value=ast.Call(func=ast.Name(id="where"), args=[cond])):
                    predicate = self.expr(cond, scope)
                case ast.Expr(value=ast.Call(func=ast.Name(id="reads" | "writes"))):
                    pass
                case ast.With(
                    items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="init"), args=[]))], body=inner
                ) if init is None:
                    init = self._body(inner, inside, names)
                case _:
                    break
            rest = rest[1:]
        return Block(name, tuple(iters), tuple(bindings), self._body(rest, inside, names), init, predicate)
