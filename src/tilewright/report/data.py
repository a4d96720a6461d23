"""What a report says, as plain values that go to JSON and back.

Seconds, bytes and floating-point operations are those of one run of the model unless a field says otherwise. Lists
refer to each other by index: a call to its kernel and box, a kernel to its texts. `None` is what is not known; a page
says so.
"""

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tilewright.support.errors import UserError

FORMAT = "tilewright report, version 1"
NATIVE, HOST = "native", "host"  # who runs a box, if no plugin does
AS_STATED = "as stated"  # the layout of a tensor whose indices are in the model's order

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorFacts:
    name: str
    dtype: str
    shape: str  # "1x3x224x224", with the names of open dimensions


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`source` is the file's kind, onnx or tw. `operators` counts the nodes of the model by their operator."""

    name: str
    source: str
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    operators: tuple[tuple[str, int], ...]
    weights_bytes: int
    arena_bytes: int
    code_bytes: int
    accuracy: str
    features: tuple[str, ...]
    tuned_kernels: int
    compiler_version: str


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Rates are those that the cores of the run reach together, measured beside it."""

    summary: str
    flop_rate: float
    byte_rate: float


@dataclass(frozen=True, slots=True)
class RunFacts:
    """`seconds` is the median of `runs` runs of the whole program, `kernel_seconds` the sum over calls timed one by
    one; `on_core` the share of the time in which we had a core; `attributed_seconds` what ONNX nodes account for.
    """

    date: str
    threads: int
    cores: tuple[int, ...]
    runs: int
    seconds: float
    best_seconds: float
    kernel_seconds: float
    attributed_seconds: float
    on_core: float
    is_disturbed: bool
    sizes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """A native function; all its calls together. Texts are indices into the report's: the scheduled Func, the lowered
    one, the steps of the schedule, and the loop that its time goes to.
    """

    name: str
    what: str
    family: str
    knobs: tuple[tuple[str, int], ...]
    algorithm: str
    parts: int
    calls: int
    seconds: float
    flops: int | None
    nbytes: int | None
    layout: str
    params: tuple[TensorFacts, ...]
    outputs: tuple[str, ...]
    scheduled: int | None = None
    lowered: int | None = None
    steps: int | None = None
    assembly: int | None = None
    assembly_note: str = ""


@dataclass(frozen=True, slots=True)
class BoxFacts:
    """A box of the drawn graph: what runs together. `reads` are boxes. `layout` is that of what it makes."""

    name: str
    title: str
    placement: str
    layout: str
    nodes: tuple[int, ...]
    kernels: tuple[int, ...]
    reads: tuple[int, ...]
    makes: tuple[TensorFacts, ...]
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node of the model, by its own name. `box` is where most of its time is spent; None: it is not computed in a run
    (`note` says why).
    """

    name: str
    op: str
    shape: str
    seconds: float
    box: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """A call that the program has: how often it is made in a run, and the seconds of all of these. The box is None of a
    compiled program, which has no graph.
    """

    kernel: int
    box: int | None
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ArenaTensor:
    """A tensor between kernels: where it lies in the arena, and from which call to which it is needed."""

    name: str
    at: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PartSpan:
    """`parts` of a call that a thread ran without another in between; seconds from the start of the run."""

    thread: int
    begin: float
    end: float
    call: int
    parts: int


@dataclass(frozen=True, slots=True)
class TimelineFacts:
    """One run, as the threads lived it; `call` of a span is an index into the calls. Empty if there is no record."""

    seconds: float
    spans: tuple[PartSpan, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class TuningCurve:
    """The trials of a Func in order (None: it failed), the time without tuning, and what was taken."""

    func: str
    kernels: tuple[int, ...]
    default_seconds: float | None
    trials: tuple[float | None, ...]
    chosen: str


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine measured in turns with ours. `speedup`: how many times longer it takes than we do; and its interval."""

    name: str
    version: str
    seconds: float
    low: float
    high: float
    error: float | None
    speedup: tuple[float, float, float] | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReportData:
    """All of a report. `missing` says in words what is not known, and how to get it."""

    model: ModelFacts
    machine: MachineFacts
    run: RunFacts
    kernels: tuple[KernelFacts, ...] = ()
    boxes: tuple[BoxFacts, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    calls: tuple[CallFacts, ...] = ()
    arena: tuple[ArenaTensor, ...] = ()
    timeline: TimelineFacts = TimelineFacts(0.0, ())
    tuning: tuple[TuningCurve, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    missing: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    format: str = FORMAT

    @property
    def flops(self) -> int | None:
        known = [k.flops for k in self.kernels if k.flops is not None]
        return sum(known) if known else None

    @property
    def nbytes(self) -> int | None:
        known = [k.nbytes for k in self.kernels if k.nbytes is not None]
        return sum(known) if known else None

    @property
    def attributed(self) -> float:
        """The share of the time in kernels that nodes of the model account for."""
        return self.run.attributed_seconds / self.run.kernel_seconds if self.run.kernel_seconds else 1.0

    def share(self, seconds: float) -> float:
        """Of the time in kernels."""
        return seconds / self.run.kernel_seconds if self.run.kernel_seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


# ------------------------------------------------------------------------------------------------------------- reading


def report_from_json(value: object, where: str = "") -> ReportData:
    """UserError if it is no report, or one of another version."""
    hint = "make one with `tilewright report MODEL --data FILE.json`"
    given: object = cast("Mapping[str, object]", value).get("format") if isinstance(value, Mapping) else None
    if given != FORMAT:
        what = f"it is {given!r}" if isinstance(given, str) else "it is something else"
        raise UserError(f"this is not a {FORMAT.replace(',', ' of')}: {what}", where=where or None, hint=hint)
    try:
        found = _read(ReportData, value)
        _check_indices(found)
    except (TypeError, ValueError, KeyError) as e:
        raise UserError(f"the report is damaged: {e}", where=where or None, hint=hint) from e
    return found


def load_report(path: Path) -> ReportData:
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"cannot read the report: {e.strerror or e}", where=str(path)) from e
    except ValueError as e:
        raise UserError(
            f"the report is no JSON text: {e}",
            where=str(path),
            hint="make one with `tilewright report MODEL --data FILE.json`",
        ) from e
    return report_from_json(value, str(path))


@cache
def _types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(kind: Any, value: Any) -> Any:
    """The value of this type; TypeError if it is of another."""
    origin = get_origin(kind)
    if origin in (types.UnionType, Union):
        options = get_args(kind)
        if value is None and type(None) in options:
            return None
        return _read(next(o for o in options if o is not type(None)), value)
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise TypeError(f"{value!r} is no list")
        items, inside = cast("Sequence[Any]", value), get_args(kind)
        if len(inside) == 2 and inside[1] is Ellipsis:
            return tuple(_read(inside[0], v) for v in items)
        return tuple(_read(k, v) for k, v in zip(inside, items, strict=True))
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r} is no {getattr(kind, '__name__', '')}")
        given, hints = cast("Mapping[str, Any]", value), _types(cast(type, kind))
        return cast(Any, kind)(**{f.name: _read(hints[f.name], given[f.name]) for f in fields(kind)})
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _check_indices(report: ReportData) -> None:
    """ValueError if something refers to what is not there: pages follow these without looking."""
    counts = {
        "kernel": len(report.kernels),
        "box": len(report.boxes),
        "node": len(report.nodes),
        "text": len(report.texts),
        "call": len(report.calls),
    }
    used: dict[str, list[int | None]] = {
        "kernel": [c.kernel for c in report.calls],
        "box": [*(c.box for c in report.calls), *(n.box for n in report.nodes)],
        "node": [],
        "text": [t for k in report.kernels for t in (k.scheduled, k.lowered, k.steps, k.assembly)],
        "call": [s.call for s in report.timeline.spans],
    }
    for b in report.boxes:
        used["kernel"] += b.kernels
        used["box"] += b.reads
        used["node"] += b.nodes
    for t in report.tuning:
        used["kernel"] += t.kernels
    for what, indices in used.items():
        wrong = next((i for i in indices if i is not None and not 0 <= i < counts[what]), None)
        if wrong is not None:
            raise ValueError(f"there is no {what} {wrong}")
