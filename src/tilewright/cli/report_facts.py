"""What a report says of a model that was compiled and timed: boxes, kernels, nodes, calls and memory, put together from
the stages of a compilation and a profile of its program.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.cli.hot_loop import hot_loop
from tilewright.cli.profile import Profile, algorithm_of, layout_of
from tilewright.cost.traffic import must_move
from tilewright.driver.decisions import BufferLayout, ChannelsLast, Kernel
from tilewright.driver.kernels import Compiled, Item, NativeKernel
from tilewright.graph.graph import Graph, Node
from tilewright.ir.expr import Buffer
from tilewright.profiling.attribution import Attribution, attribute_time
from tilewright.profiling.boxes import box_of, final_nodes, joined_boxes, made_steps
from tilewright.profiling.call_times import kernel_calls
from tilewright.profiling.flops import count_flops
from tilewright.report.data import (
    AS_STATED,
    HOST,
    NATIVE,
    ArenaTensor,
    BoxFacts,
    CallFacts,
    KernelFacts,
    NodeFacts,
    TensorFacts,
)
from tilewright.stages import Stages
from tilewright.support.artifact import KernelCall, Place
from tilewright.support.progress import OnProgress
from tilewright.tir.func import External
from tilewright.tir.printer import print_func

_LONGEST_TEXT = 14_000  # characters: what a person still reads
_MOST_ASSEMBLED = 48  # kernels: LLVM takes its time for each
_COVERED = 0.995  # of the time in kernels: others have no assembly


@dataclass(slots=True)
class ReportFacts:
    """The lists of a report, as far as the compiler knows of them. `attributed`: the seconds of nodes of the model."""

    kernels: tuple[KernelFacts, ...] = ()
    boxes: tuple[BoxFacts, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    calls: tuple[CallFacts, ...] = ()
    arena: tuple[ArenaTensor, ...] = ()
    texts: tuple[str, ...] = ()
    attributed: float = 0.0
    missing: list[str] = field(default_factory=list[str])


def facts_of(
    found: Stages,
    profile: Profile,
    sizes: Mapping[str, int],
    external_seconds: Mapping[str, float],
    *,
    is_whole: bool = True,
    progress: OnProgress | None = None,
) -> ReportFacts:
    """`is_whole`: open dimensions are as large as may be, so that operations and bytes are known."""
    return _Collection(found, profile, sizes, external_seconds, is_whole, progress).facts()


class _Collection:
    def __init__(
        self,
        found: Stages,
        profile: Profile,
        sizes: Mapping[str, int],
        external_seconds: Mapping[str, float],
        is_whole: bool,
        progress: OnProgress | None,
    ) -> None:
        assert found.imported is not None
        self._found, self._profile, self._is_whole = found, profile, is_whole
        self._imported: Graph = found.imported
        self._external_seconds = external_seconds
        self._progress = progress
        self._steps = [*made_steps(found, sizes)]
        self._texts: dict[str, int] = {}
        self._node_at = {n: i for i, n in enumerate(self._imported.nodes)}
        self._attribution: Attribution = attribute_time(self._imported, found.graph)
        self._joined = joined_boxes(found)
        self._missing: list[str] = []

    def facts(self) -> ReportFacts:
        names = list(dict.fromkeys(s.kernel.name for s in self._steps if isinstance(s, Item)))
        kernel_at = {name: n for n, name in enumerate(names)}
        box_names = list(dict.fromkeys(box_of(s) for s in self._steps))
        box_at = {name: n for n, name in enumerate(box_names)}
        times = iter(self._profile.calls)
        calls: list[CallFacts] = []
        spent = [0.0] * len(box_names)
        for step in self._steps:
            box = box_at[box_of(step)]
            if isinstance(step, Item):
                t = next(times)
                calls.append(CallFacts(kernel_at[step.kernel.name], box, t.count, t.seconds))
                spent[box] += t.seconds
            else:
                spent[box] += self._external_seconds.get(step.key, 0.0)
        boxes = self._boxes(box_names, box_at, kernel_at, spent)
        nodes, attributed = self._nodes(box_names, spent, len(boxes))
        boxes += [*self._host_boxes(len(nodes))]
        nodes += [
            NodeFacts(h.step.name, h.step.node.op_type, "", 0.0, len(box_names) + i, "runs on the host")
            for i, h in enumerate(self._found.hosts)
        ]
        boxes = self._with_nodes(boxes, nodes)
        kernels = self._kernels(names, calls)
        arena = tuple(_arena(self._steps, self._found))
        return ReportFacts(
            *(tuple(kernels), tuple(boxes), tuple(nodes), tuple(calls), arena),
            tuple(self._texts),
            attributed,
            self._missing,
        )

    # ------------------------------------------------------------------------------------------------- boxes and nodes

    def _final_nodes(self, box: str) -> list[Node]:
        return final_nodes(self._found, self._joined.get(box, ()))

    def _boxes(
        self,
        names: Sequence[str],
        box_at: Mapping[str, int],
        kernel_at: Mapping[str, int],
        spent: Sequence[float],
    ) -> list[BoxFacts]:
        makers = _makers(self._steps, box_at)
        reads: list[dict[int, None]] = [{} for _ in names]
        kernels: list[dict[int, None]] = [{} for _ in names]
        needed: set[Buffer] = {b for b in makers if self._is_output(b)}
        for step in self._steps:
            box = box_at[box_of(step)]
            for b in _touched(step)[0]:
                for maker in makers.get(b, ()):
                    if maker != box:
                        reads[box][maker] = None
                        needed.add(b)
            if isinstance(step, Item):
                kernels[box][kernel_at[step.kernel.name]] = None
        makes: list[list[Buffer]] = [[] for _ in names]
        for b, own in makers.items():
            for box in own if b in needed else ():
                makes[box].append(b)
        owners = {p.region.key: p.plugin.name for p in self._found.placement.regions}
        layouts = self._layouts()
        return [
            BoxFacts(
                name,
                self._title(name),
                owners.get(name, NATIVE),
                layouts.get(name, AS_STATED),
                (),
                tuple(kernels[n]),
                tuple(reads[n]),
                tuple(map(_tensor, makes[n])),
                spent[n],
            )
            for n, name in enumerate(names)
        ]

    def _is_output(self, b: Buffer) -> bool:
        slot = self._found.slots.get(b)
        return slot is not None and slot.place is Place.OUTPUT

    def _title(self, box: str) -> str:
        """The operators in it, as the model calls them; views and the like only if there is nothing else."""
        nodes = self._model_nodes(box)
        if not nodes:
            return "copy"
        ops = Counter(self._operator(n) for n in nodes)
        heavy = [self._operator(n) for n in sorted(nodes, key=lambda n: -nodes[n])]
        first = list(dict.fromkeys(heavy))[:3]
        rest = sum(ops.values()) - sum(ops[o] for o in first)
        words = [o if ops[o] == 1 else f"{ops[o]} {o}" for o in first]
        return " + ".join(words) + (f" + {rest} more" if rest else "")

    def _model_nodes(self, box: str) -> dict[Node, float]:
        """Nodes of the imported graph that a box computes, with their shares of its time."""
        region = next((p for p in self._found.placement.regions if p.region.key == box), None)
        if region is not None:
            inside = [n for n in region.region.graph.nodes if n in self._node_at]
            return self._attribution.shares_among(inside)
        return self._attribution.shares(self._final_nodes(box))

    def _operator(self, n: Node) -> str:
        origin = self._imported.origins.get(n)
        return type(n.op).__name__ if origin is None else origin.op_type

    def _layouts(self) -> dict[str, str]:
        """Of what Funcs make, where it is another than the model states."""
        found: dict[str, str] = {}
        for d in self._found.trace.sections.get("layouts", ()):
            match d:
                case ChannelsLast(group=group):
                    found[group] = "channels last"
                case BufferLayout():
                    found.setdefault(d.group, "padded or blocked")
                case _:
                    pass
        return {
            name: next((found[f] for f in reversed(funcs) if f in found), AS_STATED)
            for name, funcs in self._joined.items()
        }

    def _nodes(
        self, box_names: Sequence[str], spent: Sequence[float], count: int
    ) -> tuple[list[NodeFacts], float]:
        seconds = dict.fromkeys(self._imported.nodes, 0.0)
        most: dict[Node, tuple[float, int]] = {}
        attributed = 0.0
        for at, name in enumerate(box_names):
            shares = self._model_nodes(name)
            if shares:
                attributed += spent[at]
            for n, share in shares.items():
                seconds[n] += share * spent[at]
                if n not in most or share * spent[at] > most[n][0]:
                    most[n] = share * spent[at], at
        facts = [
            NodeFacts(
                n.name,
                self._operator(n),
                _shape(n.outputs[0].shape) if n.outputs else "",
                seconds[n],
                most[n][1] if n in most else None,
                self._attribution.absent.get(n, "") if n not in most else "",
            )
            for n in self._imported.nodes
        ]
        return facts, attributed

    def _host_boxes(self, first_node: int) -> Iterator[BoxFacts]:
        for h in self._found.hosts:
            yield BoxFacts(
                *(h.step.name, h.step.node.op_type, HOST, AS_STATED, (), (), (), (), 0.0),
                note=f"runs on the host: {h.why}; it was not timed",
            )

    @staticmethod
    def _with_nodes(boxes: list[BoxFacts], nodes: Sequence[NodeFacts]) -> list[BoxFacts]:
        inside: list[list[int]] = [[] for _ in boxes]
        for i, n in enumerate(nodes):
            if n.box is not None:
                inside[n.box].append(i)
        return [replace(b, nodes=tuple(own)) for b, own in zip(boxes, inside, strict=True)]

    # --------------------------------------------------------------------------------------------------------- kernels

    def _kernels(self, names: Sequence[str], calls: Sequence[CallFacts]) -> list[KernelFacts]:
        origins = {k.name: (k, c) for c in self._found.compiled for k in c.kernels}
        sites = {c.kernel: c for c in kernel_calls(self._found.artifact.program)}
        items = {s.kernel.name: s for s in self._steps if isinstance(s, Item)}
        decided = {
            name: d
            for d in self._found.trace.sections.get("kernels", ())
            if isinstance(d, Kernel)
            for name in d.calls
        }
        spent = [sum(c.seconds for c in calls if c.kernel == n) for n in range(len(names))]
        made = [sum(c.count for c in calls if c.kernel == n) for n in range(len(names))]
        assembled = set(self._worth_assembly(spent))
        found: list[KernelFacts] = []
        for n, name in enumerate(names):
            if self._progress is not None:
                self._progress("describe", n, len(names))
            kernel, compiled = origins[name]
            d = decided.get(items[name].func)
            one = self._kernel(kernel, compiled, sites[name], d, made[n], spent[n])
            found.append(self._with_assembly(one) if n in assembled else one)
        if self._progress is not None and names:
            self._progress("describe", len(names), len(names))
        if len(assembled) < len(names):
            self._missing.append(
                f"Assembly is shown of the {len(assembled)} kernels with {_COVERED:.1%} of the time;"
                " `tilewright inspect MODEL --ir asm --kernel NAME` prints that of others."
            )
        return found

    def _kernel(
        self,
        kernel: NativeKernel,
        compiled: Compiled,
        call: KernelCall,
        decision: Kernel | None,
        count: int,
        seconds: float,
    ) -> KernelFacts:
        func = kernel.func
        return KernelFacts(
            kernel.name,
            algorithm_of(kernel, replace(compiled, func=replace(compiled.func, algorithm=""))),
            "" if decision is None else decision.family,
            () if decision is None else decision.knobs,
            compiled.func.algorithm,
            kernel.parts,
            count,
            seconds,
            count * count_flops(func.body) if self._is_whole else None,
            count * must_move(func) if self._is_whole else None,
            layout_of(kernel, call),
            tuple(map(_tensor, func.params)),
            tuple(b.name for b in func.outputs),
            self._text(print_func(compiled.scheduled)),
            self._text(print_func(func)),
            self._text(_steps_text(compiled, decision)),
        )

    def _worth_assembly(self, spent: Sequence[float]) -> Iterator[int]:
        total, seen = sum(spent), 0.0
        for n in sorted(range(len(spent)), key=lambda n: -spent[n])[:_MOST_ASSEMBLED]:
            if seen > _COVERED * total:
                return
            seen += spent[n]
            yield n

    def _with_assembly(self, k: KernelFacts) -> KernelFacts:
        text, note = hot_loop(self._found.asm(k.name))
        return replace(k, assembly=self._text(text), assembly_note=note)

    def _text(self, text: str) -> int:
        """Its number. What is equal is kept once, and what is long is cut."""
        if len(text) > _LONGEST_TEXT:
            kept = text[:_LONGEST_TEXT].rpartition("\n")[0]
            left = text.count("\n") - kept.count("\n")
            text = f"{kept}\n… {left} more lines: `tilewright inspect MODEL --ir …` prints all of them"
        return self._texts.setdefault(text, len(self._texts))


# ------------------------------------------------------------------------------------------------ steps of the program


def _touched(step: Item | External) -> tuple[list[Buffer], list[Buffer]]:
    """What it reads, and what it writes."""
    if isinstance(step, External):
        return [*step.inputs], [*step.outputs]
    func = step.kernel.func
    pairs = [*zip(func.params, step.buffers, strict=True)]
    return [b for p, b in pairs if p not in func.outputs], [b for p, b in pairs if p in func.outputs]


def _makers(steps: Sequence[Item | External], box_at: Mapping[str, int]) -> dict[Buffer, list[int]]:
    """The boxes that make each buffer. One that reads what another has made, and writes to it, fills its border: it is
    no maker.
    """
    reads: dict[Buffer, set[int]] = {}
    writes: dict[Buffer, dict[int, None]] = {}
    for step in steps:
        box = box_at[box_of(step)]
        for b in _touched(step)[0]:
            reads.setdefault(b, set()).add(box)
        for b in _touched(step)[1]:
            writes.setdefault(b, {})[box] = None
    return {b: [n for n in own if n not in reads.get(b, ())] or [*own][:1] for b, own in writes.items()}


def _arena(steps: Sequence[Item | External], found: Stages) -> Iterator[ArenaTensor]:
    """Times are calls: what external code does between two of them is at the time of the next."""
    lives: dict[Buffer, tuple[int, int]] = {}
    now = 0
    for step in steps:
        for b in (b for side in _touched(step) for b in side):
            slot = found.slots.get(b)
            if slot is not None and slot.place is Place.ARENA:
                lives[b] = (lives.get(b, (now, now))[0], now)
        now += isinstance(step, Item)
    for b, (first, last) in lives.items():
        yield ArenaTensor(b.name, found.slots[b].at, b.bytes, first, last)


def _tensor(b: Buffer) -> TensorFacts:
    return TensorFacts(b.name, str(b.dtype), _shape(b.shape))


def _shape(shape: Sequence[int]) -> str:
    return "x".join(str(int(n)) for n in shape) or "scalar"


def _steps_text(compiled: Compiled, decision: Kernel | None) -> str:
    head = "" if decision is None else f"# {decision}\n"
    return f"{head}{compiled.trace}"
