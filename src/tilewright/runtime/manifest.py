"""The parts of an artifact that are neither code nor weights, as JSON values and back.

Reading checks every type and range and takes exactly the known keys: a file is hostile data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, assert_never, cast

from tilewright.runtime.dtypes import numpy_dtype
from tilewright.support.artifact import (
    ArtifactProgram,
    ExternalCall,
    KernelCall,
    Manifest,
    Place,
    RegionCode,
    Segment,
    SizeBox,
    Slot,
    TensorSpec,
)
from tilewright.support.errors import UserError
from tilewright.support.indices import IndexCheck
from tilewright.support.program import Branch, ProgramStep, While
from tilewright.support.sizes import Atom, Dim, DimUnits, Guard, Quotient, SizeExpr

Json: TypeAlias = "bool | int | str | Sequence[Json] | Mapping[str, Json]"
_T = TypeVar("_T", str, int, bool)
_Step: TypeAlias = ProgramStep[Segment | ExternalCall, Slot]
_MAX_DEPTH = 64  # of branches and loops


@dataclass(frozen=True, slots=True)
class Entry:
    """A value read from JSON, and where it was."""

    value: object
    where: str

    def bad(self, should: str) -> UserError:
        return UserError(
            f"the manifest is damaged: {self.where} should be {should}",
            hint="compile the program again",
        )

    def record(self, *keys: str) -> "tuple[Entry, ...]":
        """The values of a mapping with exactly these keys."""
        values = cast(dict[str, object], self.value) if isinstance(self.value, dict) else {}
        if values.keys() != set(keys):
            raise self.bad(f"a mapping with {', '.join(keys)}")
        return tuple(Entry(values[k], f"{self.where}.{k}") for k in keys)

    def items(self, n: int | None = None) -> "tuple[Entry, ...]":
        if not isinstance(self.value, list):
            raise self.bad("a list")
        values = cast(list[object], self.value)
        if n is not None and len(values) != n:
            raise self.bad(f"a list of {n}")
        return tuple(Entry(v, f"{self.where}[{i}]") for i, v in enumerate(values))

    def _exactly(self, kind: type[_T]) -> _T:
        if type(self.value) is not kind:
            raise self.bad(f"of type {kind.__name__}")
        return cast(_T, self.value)

    def text(self) -> str:
        return self._exactly(str)

    def flag(self) -> bool:
        return self._exactly(bool)

    def count(self) -> int:
        value = self._exactly(int)
        if not 0 <= value < 1 << 62:
            raise self.bad("a count")
        return value

    def number(self) -> int:
        value = self._exactly(int)
        if not -1 << 62 < value < 1 << 62:
            raise self.bad("a number")
        return value

    def texts(self) -> tuple[str, ...]:
        return tuple(e.text() for e in self.items())

    def counts(self) -> tuple[int, ...]:
        return tuple(e.count() for e in self.items())


def manifest_to_json(m: Manifest) -> Json:
    return {
        "compiler_version": m.compiler_version,
        "llvm_version": m.llvm_version,
        "options": dict(sorted(m.options.items())),
        "model_digest": m.model_digest,
        "triple": m.triple,
        "features": list(m.features),
        "inputs": [spec_to_json(s) for s in m.inputs],
        "outputs": [spec_to_json(s) for s in m.outputs],
        "checks": [[c.node, c.dtype, list(c.extents), c.from_back] for c in m.checks],
        "dims": [dim_to_json(d) for d in m.dims],
        "guards": [[size_to_json(g.size), g.op] for g in m.guards],
        "in_place": [list(pair) for pair in m.in_place],
        "states": [list(pair) for pair in m.states],
    }


def manifest_from_json(entry: Entry, format_version: int) -> Manifest:
    compiler, llvm, options, digest, triple, features, inputs, outputs, *rest = entry.record(
        *("compiler_version", "llvm_version", "options", "model_digest"),
        *("triple", "features", "inputs", "outputs", "checks", "dims", "guards", "in_place", "states"),
    )
    checks, dims, guards, in_place, states = rest
    known = {d.name: d for d in map(dim_from_json, dims.items())}
    if not isinstance(options.value, dict):
        raise options.bad("a mapping")
    pairs = cast(dict[str, object], options.value)
    return Manifest(
        format_version,
        compiler.text(),
        llvm.text(),
        {k: Entry(v, f"{options.where}.{k}").text() for k, v in pairs.items()},
        digest.text(),
        triple.text(),
        features.texts(),
        tuple(spec_from_json(s, known) for s in inputs.items()),
        tuple(spec_from_json(s, known) for s in outputs.items()),
        tuple(_check_from_json(c) for c in checks.items()),
        tuple(known.values()),
        tuple(_guard_from_json(g, known) for g in guards.items()),
        *(
            tuple(_pair_from_json(e, len(inputs.items()), len(outputs.items())) for e in pairs.items())
            for pairs in (in_place, states)
        ),
    )


def region_to_json(r: RegionCode) -> Json:
    """All but its code, which is a section."""
    return [r.key, r.plugin, r.version, [[name, at] for name, at in r.constants], r.last]


def region_from_json(entry: Entry, blob: bytes, model: bytes, constants: int) -> RegionCode:
    key, plugin, version, used, last = entry.items(5)
    pairs: list[tuple[str, int]] = []
    for pair in used.items():
        name, at = pair.items(2)
        if at.count() >= constants:
            raise at.bad("one of the constants")
        pairs.append((name.text(), at.count()))
    return RegionCode(key.text(), plugin.text(), version.text(), blob, model, tuple(pairs), last.flag())


def spec_to_json(spec: TensorSpec) -> Json:
    sizes = [[] if s is None else [size_to_json(s)] for s in spec.sizes]
    return [spec.name, spec.dtype, list(spec.shape), sizes]


def spec_from_json(entry: Entry, dims: Mapping[str, Dim]) -> TensorSpec:
    name, dtype, shape, sizes = entry.items(4)
    numpy_dtype(dtype.text())
    found = tuple(_size_from_json(e.items(1)[0], dims) if e.items() else None for e in sizes.items())
    if found and len(found) != len(shape.items()):
        raise sizes.bad("a size for each dimension")
    return TensorSpec(name.text(), dtype.text(), shape.counts(), found)


# ----------------------------------------------------------------------------------------------- sizes of dimensions


def size_to_json(size: SizeExpr) -> Json:
    return [[c, [_atom_to_json(a) for a in m]] for m, c in size.terms]


def _atom_to_json(atom: Atom) -> Json:
    return atom.dim.name if isinstance(atom, DimUnits) else [size_to_json(atom.size), atom.by]


def _size_from_json(entry: Entry, dims: Mapping[str, Dim], depth: int = 0) -> SizeExpr:
    if depth > _MAX_DEPTH:
        raise entry.bad(f"nested at most {_MAX_DEPTH} deep")
    total = SizeExpr(())
    for term in entry.items():
        coefficient, atoms = term.items(2)
        part = SizeExpr.of(coefficient.number())
        for a in atoms.items():
            part = part * SizeExpr((((_atom_from_json(a, dims, depth),), 1),))
        total = total + part
    return total


def _atom_from_json(entry: Entry, dims: Mapping[str, Dim], depth: int) -> Atom:
    if isinstance(entry.value, str):
        if entry.value not in dims:
            raise entry.bad("an open dimension")
        return DimUnits(dims[entry.value])
    size, by = entry.items(2)
    if by.count() < 1:
        raise by.bad("a positive number")
    return Quotient(_size_from_json(size, dims, depth + 1), by.count())


def dim_to_json(dim: Dim) -> Json:
    return [dim.name, dim.least, dim.most, dim.multiple]


def dim_from_json(entry: Entry) -> Dim:
    name, least, most, multiple = entry.items(4)
    if not 0 <= least.count() <= most.count() or multiple.count() < 1:
        raise entry.bad("a range")
    return Dim(name.text(), least.count(), most.count(), multiple.count())


def _guard_from_json(entry: Entry, dims: Mapping[str, Dim]) -> Guard:
    size, op = entry.items(2)
    if op.text() not in ("<", "==", "!="):
        raise op.bad("a comparison")
    return Guard(_size_from_json(size, dims), op.text())


def _pair_from_json(entry: Entry, inputs: int, outputs: int) -> tuple[int, int]:
    first, second = entry.items(2)
    if first.count() >= inputs or second.count() >= outputs:
        raise entry.bad("an input and an output")
    return first.count(), second.count()


def _check_from_json(entry: Entry) -> IndexCheck:
    node, dtype, extents, from_back = entry.items(4)
    if numpy_dtype(dtype.text()).kind not in "iu":
        raise dtype.bad("an integer type")
    if not extents.counts():
        raise extents.bad("a list of extents")
    return IndexCheck(node.text(), dtype.text(), extents.counts(), from_back.flag())


def _slot_to_json(slot: Slot) -> Json:
    return [slot.place.value, slot.at]


def _slot_from_json(entry: Entry) -> Slot:
    place, at = entry.items(2)
    if place.text() not in {p.value for p in Place}:
        raise place.bad("a place")
    return Slot(Place(place.text()), at.count())


def program_to_json(program: ArtifactProgram) -> Json:
    return [_step_to_json(s) for s in program]


def _step_to_json(step: _Step) -> Json:
    match step:
        case Segment(calls):
            return [
                "segment",
                [_call_to_json(c) for c in calls],
            ]
        case ExternalCall(key, inputs, outputs):
            views = [[[_slot_to_json(s), spec_to_json(t)] for s, t in group] for group in (inputs, outputs)]
            return ["external", key, *views]
        case Branch(cond, then, otherwise):
            return ["branch", _slot_to_json(cond), program_to_json(then), program_to_json(otherwise)]
        case While(cond, body):
            return ["while", _slot_to_json(cond), program_to_json(body)]
        case _:
            assert_never(step)


def _call_to_json(c: KernelCall) -> Json:
    in_use = [size_to_json(e) for e in c.in_use]
    args = [_slot_to_json(s) for s in c.args]
    boxes = [_box_to_json(c.only), [_box_to_json(box) for box in c.unless]]
    return [c.kernel, c.parts, args, c.barrier, c.steps, c.beside, in_use, *boxes]


def _box_to_json(box: SizeBox) -> Json:
    return [[name, most] for name, most in box]


def program_from_json(entry: Entry, dims: Mapping[str, Dim], depth: int = 0) -> ArtifactProgram:
    if depth > _MAX_DEPTH:
        raise entry.bad(f"nested at most {_MAX_DEPTH} deep")
    return tuple(_step_from_json(e, dims, depth) for e in entry.items())


def _step_from_json(entry: Entry, dims: Mapping[str, Dim], depth: int) -> _Step:
    head, *rest = entry.items() or (entry,)
    match head.value, rest:
        case "segment", [calls]:
            return Segment(tuple(_call_from_json(c, dims) for c in calls.items()))
        case "external", [key, inputs, outputs]:
            return ExternalCall(key.text(), _views_from_json(inputs, dims), _views_from_json(outputs, dims))
        case "branch", [cond, then, otherwise]:
            return Branch(
                _slot_from_json(cond),
                program_from_json(then, dims, depth + 1),
                program_from_json(otherwise, dims, depth + 1),
            )
        case "while", [cond, body]:
            return While(_slot_from_json(cond), program_from_json(body, dims, depth + 1))
        case _:
            raise entry.bad("a step of a program")


def _call_from_json(entry: Entry, dims: Mapping[str, Dim]) -> KernelCall:
    kernel, parts, args, barrier, steps, beside, in_use, only, unless = entry.items(9)
    return KernelCall(
        kernel.text(),
        parts.count(),
        tuple(_slot_from_json(a) for a in args.items()),
        barrier.flag(),
        steps.count(),
        beside.flag(),
        tuple(_size_from_json(e, dims) for e in in_use.items()),
        _box_from_json(only, dims),
        tuple(_box_from_json(box, dims) for box in unless.items()),
    )


def _box_from_json(entry: Entry, dims: Mapping[str, Dim]) -> SizeBox:
    found: list[tuple[str, int]] = []
    for pair in entry.items():
        name, most = pair.items(2)
        if name.text() not in dims:
            raise name.bad("an open dimension")
        found.append((name.text(), most.count()))
    return tuple(found)


def _views_from_json(entry: Entry, dims: Mapping[str, Dim]) -> tuple[tuple[Slot, TensorSpec], ...]:
    pairs = [e.items(2) for e in entry.items()]
    return tuple((_slot_from_json(slot), spec_from_json(spec, dims)) for slot, spec in pairs)
