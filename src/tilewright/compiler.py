"""From a model to a program: the one file that sees all parts.

graph = prepare(load_graph(model))        frontend, graph passes
module = lower(graph)                     one Func per group, over shared buffers
module = choose_layouts(module)           layouts belong to the Module
kernels = schedule, lower, compile        each distinct Func once
artifact = kernels + constants + a memory plan + the program
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from tilewright.codegen.objects import LLVM_VERSION, compile_assembly
from tilewright.frontend.onnx import load_graph
from tilewright.graph.graph import Graph
from tilewright.graph.passes import prepare
from tilewright.graph.passes.lower import lower
from tilewright.ir.expr import Buffer
from tilewright.kernels import Compiled, Kernel, KernelCompiler, fold_kernels, run_now
from tilewright.runtime import file
from tilewright.runtime.cache import Cache, default_cache
from tilewright.runtime.session import Session
from tilewright.schedule.recipes.layouts import choose_layouts
from tilewright.support.artifact import (
    FORMAT_VERSION,
    Artifact,
    BranchStep,
    ExternalCall,
    KernelCall,
    Manifest,
    Place,
    ProgramStep,
    Segment,
    Slot,
    TensorSpec,
    WhileStep,
)
from tilewright.support.errors import UserError
from tilewright.target.target import AVX2, BASELINE, Target, native
from tilewright.tir.func import Branch, Call, External, Module, Program, Sequence, While
from tilewright.tir.memory_plan import plan_memory
from tilewright.version import __version__

_log = logging.getLogger("tilewright")

Model: TypeAlias = "str | Path | bytes | ModelProto"
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Progress: TypeAlias = Callable[[str, int, int], None]
Array: TypeAlias = NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledModel:
    """A program and how long each stage of its making took."""

    artifact: Artifact
    seconds: dict[str, float]

    def save(self, path: str | Path) -> None:
        """Write a `.tw` file. It is native code: load it only where you would run a program of that origin."""
        file.save(self.artifact, path)

    def session(self, threads: int | None = None) -> Session:
        return Session(self.artifact, threads)


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Every stage of a compilation, for people to look at."""

    graph: Graph
    tir: Module
    scheduled: Module
    kernels: tuple[Kernel, ...]
    calls: dict[str, int]  # how often each kernel is called in a run
    target: Target
    artifact: Artifact

    def asm(self, kernel: str) -> str:
        return compile_assembly(next(k.llvm for k in self.kernels if k.name == kernel), self.target)


def compile(
    model: Model,
    *,
    shapes: Shapes | None = None,
    target: str | Target = "native",
    progress: Progress | None = None,
) -> CompiledModel:
    """Compile a model for `target`: "native", "x86-64" (any), "x86-64-v3" (AVX2 and FMA), or a Target."""
    return _Compilation(resolve_target(target), default_cache(), progress).run(model, shapes)


def stages(model: Model, *, shapes: Shapes | None = None, target: str | Target = "native") -> Stages:
    """Compile, and keep what each stage has made."""
    machine = resolve_target(target)
    c = _Compilation(machine, default_cache(), None)
    made = c.run(model, shapes)
    assert c.graph is not None and c.tir is not None and c.scheduled is not None
    return Stages(c.graph, c.tir, c.scheduled, c.compiler.kernels, c.calls, machine, made.artifact)


def load(
    model: Model,
    *,
    shapes: Shapes | None = None,
    threads: int | None = None,
    target: str | Target = "native",
    cache: bool = True,
    progress: Progress | None = None,
) -> Session:
    """A session for a model, compiled now or taken from the cache; or for a compiled `.tw` file."""
    if isinstance(model, str | Path) and Path(model).suffix == ".tw":
        return Session(file.load(model), threads)
    machine = resolve_target(target)
    store = default_cache() if cache else Cache(None)
    key = _cache_key(model, shapes, machine) if store.is_on else ""
    found = store.get(key) if key else None
    if found is not None:
        try:
            return Session(file.from_bytes(found, where="cached program"), threads)
        except UserError as e:
            _log.warning("a cached program is not usable, compiling again: %s", e.message)
    made = _Compilation(machine, store, progress).run(model, shapes)
    if key:
        store.put(key, file.to_bytes(made.artifact))
    return made.session(threads)


def resolve_target(target: str | Target) -> Target:
    if isinstance(target, Target):
        return target
    known = {"native": native(), "x86-64": BASELINE, "x86-64-v3": AVX2}
    if target not in known:
        raise UserError(f"unknown target {target!r}", hint=f"one of {', '.join(known)}")
    return known[target]


def _cache_key(model: Model, shapes: Shapes | None, target: Target) -> str:
    """Over everything that decides what the program is; empty if the model is not one file."""
    facts = [
        __version__,
        str(FORMAT_VERSION),
        LLVM_VERSION,
        repr(replace(target, features=frozenset())),  # a set prints in another order in every process
        sorted(target.features),
        sorted((shapes or {}).items()),
    ]
    h = hashlib.sha256(repr(facts).encode())
    digest = model_digest(model)
    if not digest:
        return ""
    h.update(digest.encode())
    return h.hexdigest()


def model_digest(model: Model) -> str:
    """Of the bytes of the model's file; empty where they are not at hand, or not all of the model."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    if isinstance(model, ModelProto):
        return ""
    try:
        with open(model, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError:
        return ""  # the importer will say what is wrong with it


@dataclass(slots=True)
class _Compilation:
    target: Target
    cache: Cache
    progress: Progress | None
    compiler: KernelCompiler = field(init=False)
    graph: Graph | None = None
    tir: Module | None = None
    scheduled: Module | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    calls: dict[str, int] = field(default_factory=dict[str, int])
    values: dict[Buffer, Array] = field(default_factory=dict[Buffer, Array])
    shared: list[Buffer] = field(default_factory=list[Buffer])

    def __post_init__(self) -> None:
        self.compiler = KernelCompiler(self.target, self.cache)

    def run(self, model: Model, shapes: Shapes | None) -> CompiledModel:
        start = time.perf_counter()

        def stage(name: str) -> None:
            nonlocal start
            now = time.perf_counter()
            self.seconds[name], start = now - start, now

        self._tell("import", 0, 1)
        graph = load_graph(model, shapes)
        stage("import")
        self._tell("graph", 0, 1)
        self.graph = prepare(graph)
        self.tir = lower(self.graph)
        stage("graph")
        module, _ = choose_layouts(self.tir)
        stage("layouts")
        self.values = {c.buffer: c.value for c in module.constants}
        compiled = self._kernels(module)
        self.scheduled = replace(module, funcs=tuple(compiled[f.name].scheduled for f in module.funcs))
        stage("kernels")
        nodes = self._nodes(module.program, compiled)
        stage("constants")
        artifact = self._artifact(module, nodes, model_digest(model))
        stage("link")
        return CompiledModel(artifact, self.seconds)

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    def _kernels(self, module: Module) -> dict[str, Compiled]:
        constants = frozenset(self.values)
        out: dict[str, Compiled] = {}
        for n, func in enumerate(module.funcs):
            self._tell("kernels", n, len(module.funcs))
            out[func.name] = self.compiler.compile(func, constants)
        self._tell("kernels", len(module.funcs), len(module.funcs))
        return out

    # ------------------------------------------------------------------------------------------- the program

    def _nodes(self, p: Program, compiled: Mapping[str, Compiled]) -> "list[_Node]":
        match p:
            case Call():
                return list(self._call(p, compiled[p.func]))
            case External():
                return [p]
            case Sequence():
                return [x for s in p.steps for x in self._nodes(s, compiled)]
            case Branch():
                return [_Fork(p.cond, self._nodes(p.then, compiled), self._nodes(p.otherwise, compiled))]
            case While():
                return [_Repeat(p.cond, self._nodes(p.body, compiled))]

    def _call(self, call: Call, compiled: Compiled) -> list["_Item"]:
        """The kernels of one call, over the buffers of the Module; what needs only constants is computed now."""
        actual = dict(zip(compiled.func.params, call.args, strict=True))
        known = {p: np.ascontiguousarray(self.values[b]) for p, b in actual.items() if b in self.values}
        kernels, made = fold_kernels(compiled, known, run_now)
        for b in compiled.shared:
            own = Buffer(f"{b.name}#{len(self.shared)}", b.shape, b.dtype, b.scope)
            self.shared.append(own)
            actual[b] = own
            if b in made:
                self.values[own] = made[b]
        for k in kernels:
            self.calls[k.name] = self.calls.get(k.name, 0) + 1
        return [_Item(k, tuple(actual[p] for p in k.func.params)) for k in kernels]

    def _artifact(self, module: Module, nodes: "list[_Node]", digest: str) -> Artifact:
        times = [t for n in nodes for t in _touched(n)]
        used = dict.fromkeys(b for t in times for b in t)
        constants = [b for b in used if b in self.values]
        plan = plan_memory(times, (*module.temps, *(b for b in self.shared if b not in self.values)))
        slots = {b: Slot(Place.ARENA, at) for b, at in plan.offsets.items()}
        for place, group in (
            (Place.INPUT, module.inputs),
            (Place.OUTPUT, module.outputs),
            (Place.CONSTANT, constants),
        ):
            slots.update((b, Slot(place, n)) for n, b in enumerate(group))
        assert self.graph is not None
        manifest = Manifest(
            FORMAT_VERSION,
            __version__,
            LLVM_VERSION,
            {},
            digest,
            self.target.triple,
            tuple(sorted(self.target.features)),
            _specs(module.inputs, [v.name for v in self.graph.inputs]),
            _specs(module.outputs, list(self.graph.output_names)),
        )
        called = {i.kernel.name: i.kernel.object for n in nodes for i in _items(n)}
        return Artifact(
            manifest,
            self.compiler.driver(),
            tuple(called.values()),
            tuple(np.ascontiguousarray(self.values[b]) for b in constants),
            plan.bytes,
            _steps(nodes, slots),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """A kernel call before its buffers have places."""

    kernel: Kernel
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Fork:
    cond: Buffer
    then: "list[_Node]"
    otherwise: "list[_Node]"


@dataclass(frozen=True, slots=True, eq=False)
class _Repeat:
    cond: Buffer
    body: "list[_Node]"


_Node: TypeAlias = "_Item | External | _Fork | _Repeat"


def _items(n: _Node) -> list[_Item]:
    match n:
        case _Item():
            return [n]
        case External():
            return []
        case _Fork():
            return [i for m in (*n.then, *n.otherwise) for i in _items(m)]
        case _Repeat():
            return [i for m in n.body for i in _items(m)]


def _touched(n: _Node) -> list[tuple[Buffer, ...]]:
    """The buffers of each call in order. What a loop touches is all alive as long as the loop runs."""
    match n:
        case _Item():
            return [n.buffers]
        case External():
            return [(*n.inputs, *n.outputs)]
        case _Fork():
            return [(n.cond,), *(t for m in (*n.then, *n.otherwise) for t in _touched(m))]
        case _Repeat():
            return [(n.cond, *(b for m in n.body for t in _touched(m) for b in t))]


def _steps(nodes: list[_Node], slots: Mapping[Buffer, Slot]) -> tuple[ProgramStep, ...]:
    """Runs of kernel calls become segments."""
    out: list[ProgramStep] = []
    calls: list[KernelCall] = []

    def end_segment() -> None:
        if calls:
            out.append(Segment(tuple(calls)))
            calls.clear()

    for n in nodes:
        if isinstance(n, _Item):
            calls.append(KernelCall(n.kernel.name, n.kernel.parts, tuple(slots[b] for b in n.buffers)))
            continue
        end_segment()
        match n:
            case External():
                inputs, outputs = (
                    tuple((slots[b], _spec(b, b.name)) for b in bs) for bs in (n.inputs, n.outputs)
                )
                out.append(ExternalCall(n.key, inputs, outputs))
            case _Fork():
                out.append(BranchStep(slots[n.cond], _steps(n.then, slots), _steps(n.otherwise, slots)))
            case _Repeat():
                out.append(WhileStep(slots[n.cond], _steps(n.body, slots)))
    end_segment()
    return tuple(out)


def _spec(b: Buffer, name: str) -> TensorSpec:
    return TensorSpec(name, b.dtype.numpy.name, b.shape)


def _specs(buffers: tuple[Buffer, ...], names: list[str]) -> tuple[TensorSpec, ...]:
    return tuple(_spec(b, n) for b, n in zip(buffers, names, strict=True))
