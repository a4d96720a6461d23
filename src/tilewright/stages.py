"""What each stage of a compilation has made, for people to look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.codegen.objects import compile_assembly
from tilewright.compiler import CompiledModel, Model, compilation
from tilewright.driver.assembly import Assembly
from tilewright.driver.kernels import Compiled, NativeKernel
from tilewright.driver.keys import model_digest
from tilewright.driver.passes import ProgramState, task_key
from tilewright.driver.trace import ProgramTrace
from tilewright.driver.tuned import as_tuned
from tilewright.driver.workers import Workers
from tilewright.frontend.onnx.dim_ranges import DimRange, check_ranges_alone, dims_of
from tilewright.frontend.onnx.load import OnnxModel
from tilewright.frontend.onnx.stage import HostCall, HostNodes
from tilewright.graph.graph import Graph
from tilewright.graph.passes.group import Grouped
from tilewright.ir.expr import Buffer
from tilewright.ops.accuracy import Accuracy, AccuracyLike
from tilewright.placement.options import NATIVE, PluginOptions
from tilewright.placement.place import NOTHING_PLACED, Placement
from tilewright.plugins.registry import find_plugins
from tilewright.runtime.cache import default_cache
from tilewright.search.layout_choice import Component
from tilewright.search.narrower import narrowed_dims
from tilewright.support.arrays import Shapes
from tilewright.support.artifact import Artifact, SizeBox, Slot
from tilewright.support.compiling import compiling
from tilewright.support.indices import are_checked
from tilewright.target.names import resolve_target
from tilewright.target.target import Target
from tilewright.tir.func import Module


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Every stage of a compilation, for people to look at. If the host has a part in the model, they are of what comes
    before the nodes that it runs first; `later` nodes come after those.
    """

    graph: Graph
    tir: Module
    scheduled: Module
    kernels: tuple[NativeKernel, ...]
    compiled: tuple[Compiled, ...]  # what the kernels were made from
    calls: dict[str, int]  # how often each kernel is called in a run
    target: Target
    artifact: Artifact
    hosts: tuple[HostCall, ...] = ()
    later: int = 0
    imported: Graph | None = None
    placement: Placement = NOTHING_PLACED
    trace: ProgramTrace = field(default_factory=ProgramTrace)
    layouts: tuple[Component, ...] = ()  # why they were chosen
    tuned: int = 0  # kernels
    external_files: tuple[str, ...] = ()  # of the model, from its folder
    narrower: tuple[SizeBox, ...] = ()  # for which sizes there are programs of their own
    program: Assembly = ()  # the calls of kernels, in the order of the artifact's
    slots: Mapping[Buffer, Slot] = field(default_factory=dict[Buffer, Slot])  # of what the calls touch
    groups: Grouped = ()
    owners: Mapping[str, int] = field(default_factory=dict[str, int])  # Funcs as lowered, to their group
    tasks: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # Funcs, to what the database knows them by

    def asm(self, kernel: str) -> str:
        return compile_assembly(next(k.llvm for k in self.kernels if k.name == kernel), self.target)


@compiling()
def stages(
    model: Model,
    *,
    shapes: Shapes | None = None,
    target: str | Target = "native",
    accuracy: AccuracyLike | None = None,
    plugin_options: PluginOptions = NATIVE,
    check_indices: bool | None = None,
    dims: Mapping[str, DimRange] | None = None,
    sizes: Mapping[str, int] | None = None,
    with_narrower: bool = False,
) -> Stages:
    """Compile, and keep what each stage has made. Where dimensions are open, it is the program that runs at these
    sizes; at the largest unless given. Its trace is that of all programs if it is asked for `with_narrower` ones.
    """
    machine, cache = resolve_target(target), default_cache()
    digest, hosts, later = model_digest(model, cache), (), 0
    boxes: tuple[SizeBox, ...] = ()
    others, checked = find_plugins(plugin_options.plugins), are_checked(check_indices)
    with OnnxModel(model, custom_ops=others, check_indices=checked) as found, Workers(machine) as pool:
        c = compilation(machine, Accuracy.of(accuracy), cache, pool, None, plugin_options)
        if dims:
            check_ranges_alone(shapes)
            ranges = dims_of(found.specs, dims)
            c.read_open(found, ranges)
            boxes = tuple(b.box for b, _ in c.narrower(ranges))
            box = next((b for b in boxes if sizes and all(sizes.get(n, m + 1) <= m for n, m in b)), None)
            if box is not None:
                c.read_open(found, narrowed_dims(ranges, box))
            made, graph = c.run_read(found, digest), c.imported
            if with_narrower:
                made = c.with_narrower(made, found, ranges, digest)
        else:
            try:
                graph = found.whole(shapes or {})
            except HostNodes:
                first = found.first_stage(shapes or {})
                graph, hosts, later = first.graph, first.hosts, len(first.rest)

            def run(trace: ProgramTrace | None) -> CompiledModel:
                c.given = trace
                return c.run_graph(graph, digest)

            bound = Accuracy.of(accuracy)
            made = (
                run(None)
                if others or hosts or checked
                else as_tuned(machine, digest, shapes, bound, None, run)
            )
        files = tuple(sorted(found.opened))
    state, scheduled = c.state, c.scheduled
    assert state is not None and state.lowered is not None and scheduled is not None
    return Stages(
        *(state.graph, state.lowered, scheduled, c.compiler.kernels, c.compiler.compiled),
        *(c.items.counts, machine),
        *(made.artifact, hosts, later, graph, c.placement, made.trace, state.layouts),
        sum(k.is_tuned for k in state.kernels),
        files,
        boxes,
        *(c.nodes, c.slots, state.groups, state.owners, _tasks(state)),
    )


def _tasks(state: ProgramState) -> dict[str, str]:
    constants = frozenset(c.buffer for c in state.current.constants)
    return {f.name: task_key(f, constants) for f in state.current.funcs}
