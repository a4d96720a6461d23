"""Sessions of models that cannot be one program: shapes are left open, or the host has a part in them.

A model with open dimensions is compiled for the shapes of the first feeds. When others come, one program is made for
all sizes of the dimensions that were seen to vary, with room to grow (`sessions/seen_sizes.py`); sizes beyond it need a
wider one. Where the shapes of a model cannot be followed, and for sizes that such a program leaves out, there is a
program for each set of shapes: a variant, of which the least recently used goes when there are too many. Every
compilation is logged with its reason (logger "tilewright"; `docs/dynamic.md` has the lines).
"""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from tilewright.frontend.onnx.interface import OpenDims
from tilewright.frontend.onnx.load import OnnxModel
from tilewright.frontend.onnx.stage import HostNodes
from tilewright.ops.hostop import HostValue
from tilewright.runtime.feeds import Buffers, as_array, check_by_name, signature_text
from tilewright.runtime.open_session import OpenSession
from tilewright.runtime.range_program import OpenBound
from tilewright.runtime.session import Bound, Session
from tilewright.sessions.seen_sizes import SeenSizes
from tilewright.sessions.staged import Build, Staged
from tilewright.support.arrays import Array, Shapes
from tilewright.support.artifact import TensorSpec
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError
from tilewright.support.input_spec import InputSpec
from tilewright.support.sizes import Dim

_log = logging.getLogger("tilewright")

ShapeKey: TypeAlias = tuple[tuple[int, ...], ...]

VARIANTS = 8
_KNOWN_SHAPES = 1024
_SHARE_OF_MEMORY = (
    0.5  # of the machine's: more at capacity than that is given up for a program for each shape
)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output whose type is known only after a run."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class _OpenProgram:
    """The program for all sizes, and the shapes that are known to be among them."""

    session: OpenSession
    ranges: Mapping[str, Dim]
    covered: set[ShapeKey] = field(default_factory=set[ShapeKey])

    def covers(self, key: ShapeKey, shapes: Shapes) -> bool:
        if key in self.covered:
            return True
        if not self.session.covers(shapes):
            return False
        if len(self.covered) >= _KNOWN_SHAPES:
            self.covered.clear()
        self.covered.add(key)
        return True

    def __str__(self) -> str:
        return _ranges_text(self.ranges)


class DynamicSession(Closing):
    """Compiles once it has seen the shapes. `run` may be called from several Python threads at once.

    `load` gives the program for shapes of all inputs, or raises HostNodes; `build` compiles a part of a model; `open`
    gives one program for all sizes of the model's open dimensions, or a UserError that says why there is none.
    """

    def __init__(
        self,
        model: OnnxModel,
        load: Callable[[Shapes], Session],
        build: Build,
        open: Callable[[OnnxModel, Mapping[str, Dim]], OpenSession],
        variants: int = VARIANTS,
    ) -> None:
        self._model, self._load, self._build, self._limit = model, load, build, variants
        self._make_open = open
        self._open: _OpenProgram | None = None
        self._is_closed_up = False  # no further program for all sizes is tried
        self._seen = SeenSizes(model.specs)
        self.inputs: tuple[TensorSpec | InputSpec, ...] = model.specs
        self.outputs = tuple(OutputSpec(n) for n in model.scope.outputs)
        self._names = [s.name for s in model.specs]
        self._tensors = [(s.name, s.dtype) for s in model.specs if s.dtype is not None]
        self._results = model.scope.outputs
        self._variants: OrderedDict[ShapeKey, Session] = OrderedDict()
        self._staged: Staged | None = None
        self._fitting: set[ShapeKey] = set()  # shapes of inputs that the model allows
        self._lock = threading.Lock()
        self._compiling = threading.Lock()

    def __repr__(self) -> str:
        """Inputs and outputs as far as their types are known, and how many programs were compiled."""
        inputs = signature_text([(s.name, _type_text(s)) for s in self.inputs])
        outputs = ", ".join(o.name for o in self.outputs) or "nothing"
        if self._staged is not None:
            state = "the host runs a part of it"
        else:
            with self._lock:
                made = list(self._variants.values())
            state = f"{len(made)} of at most {self._limit} programs compiled, each for its shapes"
            state += f"; and one for {self._open}" if self._open is not None else ""
        return f"<DynamicSession {inputs} -> {outputs}; {state}>"

    @property
    def staged(self) -> Staged | None:
        """The stages of the model, if the host runs some of its nodes."""
        return self._staged

    def is_closed(self, shapes: Shapes) -> bool:
        """Are all types known without feeds, given these shapes?"""
        try:
            self._model.types(shapes)
        except OpenDims:
            return False
        return True

    def prepare(self, shapes: Shapes) -> None:
        """Compile for these shapes, as far as they determine the program."""
        types = self._model.types(shapes)
        self.inputs = tuple(
            TensorSpec(t.name, types[t.name].dtype.numpy.name, types[t.name].shape) if t.name in types else t
            for t in self._model.specs
        )
        found = self._variant({n: t.shape for n, t in types.items()})
        if isinstance(found, Staged):
            found.prepare(types)

    def run(self, feeds: Mapping[str, Any], outputs: Buffers | None = None) -> dict[str, Any]:
        """Run once. An output is an array, or for a sequence a list, or None for an empty optional."""
        staged = self._staged
        if staged is not None and outputs is None and self._is_ready(feeds):
            return dict(zip(self._results, _owned(staged.run(feeds), feeds), strict=True))
        check_by_name(feeds, outputs, self._names)
        values = self._values(feeds)
        found = self._variant(self._shapes(values))
        if not isinstance(found, Staged):
            return found.run(values, outputs)  # pyright: ignore[reportArgumentType]
        results = dict(zip(self._results, _owned(found.run(values), values), strict=True))
        return results if outputs is None else _copied(results, outputs)

    def bind(self, feeds: Mapping[str, Any], outputs: Buffers | None = None) -> Bound | OpenBound:
        """Fix the arrays that runs read from and write to; the shapes are those of the feeds."""
        check_by_name(feeds, outputs, self._names)
        values = self._values(feeds)
        found = self._variant(self._shapes(values))
        if not isinstance(found, Staged):
            return found.bind(values, outputs)  # pyright: ignore[reportArgumentType]
        raise UserError(
            "a model in which the host has a part cannot be bound",
            hint="use run; `tilewright inspect` shows which nodes the host runs",
        )

    def close(self) -> None:
        """Free the memory of all compiled programs."""
        with self._lock:
            if self._open is not None:
                self._open.session.close()
                self._open = None
            for session in self._variants.values():
                session.close()
            self._variants.clear()
            self._model.close()

    def _is_ready(self, feeds: Mapping[str, Any]) -> bool:
        """Are the feeds arrays of the right types, in shapes that were seen before? If not, they get a closer look."""
        if feeds.__class__ is not dict or not len(feeds) == len(self._tensors) == len(self._names):
            return False
        shapes: list[tuple[int, ...]] = []
        for name, dtype in self._tensors:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype:
                return False
            shapes.append(array.shape)
        return tuple(shapes) in self._fitting

    def _values(self, feeds: Mapping[str, Any]) -> dict[str, HostValue]:
        """The feeds as the host holds them. Their names and element types are checked; shapes when they are used."""
        faults = [
            f"{name}: there is no such input"
            for name in sorted(map(str, feeds.keys() - {s.name for s in self._model.specs}))
        ]
        values: dict[str, HostValue] = {}
        for spec in self._model.specs:
            if spec.name not in feeds:
                faults.append(f"{spec.name}: missing, should be {spec}")
                continue
            value = feeds[spec.name]
            if spec.dtype is None:
                values[spec.name] = value
                continue
            array = as_array(value, spec.dtype)
            if isinstance(array, str):
                faults.append(f"{spec.name}: {array}")
            elif array.dtype != spec.dtype:
                faults.append(f"{spec.name}: is {array.dtype}{list(array.shape)}, should be {spec}")
            else:
                values[spec.name] = array
        if faults:
            raise UserError(
                "the feeds do not fit the model:" + "".join(f"\n  {f}" for f in faults),
                hint="it takes " + (", ".join(f"{s.name}: {s}" for s in self._model.specs) or "no inputs"),
            )
        return values

    def _shapes(self, values: Mapping[str, HostValue]) -> dict[str, tuple[int, ...]]:
        return {n: v.shape for n, _ in self._tensors if isinstance(v := values[n], np.ndarray)}

    def _variant(self, shapes: Shapes) -> Session | OpenSession | Staged:
        key = tuple(shapes.values())
        if self._staged is not None:
            if key not in self._fitting:
                self._model.types(shapes)  # held to what the model says of its inputs
                if len(self._fitting) >= _KNOWN_SHAPES:
                    self._fitting.clear()
                self._fitting.add(key)
            return self._staged
        found = self._found(key, shapes)
        if found is not None:
            return found
        with self._compiling:  # runs whose program is compiled do not wait for this one
            if self._staged is not None:
                return self._staged
            found = self._found(key, shapes)  # another thread may have been quicker
            if found is not None:
                return found
            self._model.types(shapes)  # held to what the model says of its inputs
            why = self._opened_for(shapes)
            if why is None and self._open is not None and self._open.covers(key, shapes):
                return self._open.session
            return self._compiled(key, shapes, why or self._left_out(shapes))

    def _opened_for(self, shapes: Shapes) -> str | None:
        """Make a program for all sizes that has these among them, if it is time for one; otherwise, why not."""
        sizes = self._seen.sizes(shapes)
        if not sizes or 0 in sizes.values():
            return self._why_one_more()
        is_first = not self._variants and self._open is None
        before = self._seen.ranges()
        self._seen.note(sizes)
        if is_first or self._is_closed_up:
            return self._why_one_more()
        if self._open is not None and all(d.allows(sizes[n]) for n, d in self._open.ranges.items()):
            return self._left_out(shapes)
        ranges = self._seen.ranges()
        reasons = [
            f"{n} is {sizes[n]}, {f'and was {d.most}' if d.least == d.most else f'outside of {d}'}"
            for n, d in before.items()
            if not d.allows(sizes[n])
        ]
        _log.info("compiling for %s: %s", _ranges_text(ranges), "; ".join(reasons))
        try:
            made = self._make_open(self._model, ranges)
            needed = made.capacity_bytes
            if needed > _SHARE_OF_MEMORY * _memory():
                made.close()
                raise UserError(f"one for {_ranges_text(ranges)} would need {needed >> 20} MiB")
        except Exception as e:
            # A program for each shape is right in any case: a fault of ours in this one must not take it away.
            is_ours = not isinstance(e, UserError)
            what = "a mistake of Tilewright's, please report it" if is_ours else e.message
            _log.log(
                logging.WARNING if is_ours else logging.INFO,
                "a program for each shape: %s",
                what,
                exc_info=is_ours,
            )
            self._is_closed_up = True
            return self._why_one_more()
        self._open = _OpenProgram(made, ranges)
        return None

    def _left_out(self, shapes: Shapes) -> str:
        """Why the program for all sizes is not for these."""
        why = "" if self._open is None else self._open.session.why_not(shapes)
        return f"the program for {self._open} leaves them out: {why}"

    def _compiled(self, key: ShapeKey, shapes: Shapes, why: str) -> Session | Staged:
        text = ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
        _log.info("compiling for %s: %s", text, why)
        try:
            made = self._load(shapes)
        except HostNodes as e:
            _log.info("the host runs a part of the model: %s", e.message)
            self._staged = Staged(self._model.scope, self._build)
            return self._staged
        with self._lock:
            self._variants[key] = made
            if len(self._variants) > self._limit:
                self._variants.popitem(last=False)  # not closed: a run may be about to use it
        return made

    def _found(self, key: ShapeKey, shapes: Shapes) -> Session | OpenSession | None:
        """The program for these shapes, or the one for all sizes if they are among those."""
        with self._lock:
            found = self._variants.get(key)
            if found is not None:
                self._variants.move_to_end(key)
                return found
            program = self._open
        return program.session if program is not None and program.covers(key, shapes) else None

    def _why_one_more(self) -> str:
        if not self._variants:
            return "the first shapes"
        full = "" if len(self._variants) < self._limit else "; the least recently used variant goes"
        return f"none of {len(self._variants)} variants has them{full}"


def _ranges_text(ranges: Mapping[str, Dim]) -> str:
    """Those that are open, and then the sizes of the others."""
    ordered = sorted(ranges.values(), key=lambda d: d.least == d.most)
    return ", ".join(str(d) if d.least < d.most else f"{d.name} {d.most}" for d in ordered)


def _memory() -> int:
    """Bytes that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _type_text(spec: TensorSpec | InputSpec) -> str:
    return str(spec) if isinstance(spec, InputSpec) else f"{spec.dtype}{list(spec.shape)}"


def _owned(results: list[HostValue], feeds: Mapping[str, HostValue]) -> list[HostValue]:
    """The results, which are the caller's own: what is a feed, a constant or another result as well is copied."""
    given: set[int] = set()
    return [_own(v, feeds, given) for v in results]


def _own(value: Any, feeds: Mapping[str, HostValue], given: set[int]) -> Any:
    if isinstance(value, np.ndarray):
        array = cast(Array, value)
        if id(array) in given or not array.flags.writeable or _is_fed(array, feeds):
            return array.copy()
        given.add(id(array))
        return array
    return [_own(v, feeds, given) for v in cast("list[Any]", value)] if isinstance(value, list) else value


def _is_fed(array: Array, feeds: Mapping[str, HostValue]) -> bool:
    """May it be a part of a feed? Not if it is a part of memory that numpy has allocated, and no feed is."""
    whole = _whole(array)
    is_ours = whole.flags.owndata
    for v in feeds.values():
        if isinstance(v, np.ndarray) and (_whole(v) is whole if is_ours else np.may_share_memory(array, v)):
            return True
    return False


def _whole(array: Array) -> Array:
    """The array that it is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _copied(results: Mapping[str, HostValue], outputs: Buffers) -> dict[str, Any]:
    """The results, copied to the caller's arrays where there are such."""
    out = dict(results)
    for name, array in outputs.items():
        value = results.get(name)
        if not isinstance(value, np.ndarray) or value.shape != array.shape or value.dtype != array.dtype:
            raise UserError(f"the array given for output {name!r} does not fit what it is")
        np.copyto(array, value)
        out[name] = array
    return out
