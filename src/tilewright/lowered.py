"""The Funcs of a model as they are before they are scheduled: what is tuned, and what costs are predicted of."""

from collections.abc import Mapping

from tilewright.compiler import Model, runner
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.frontend.onnx.dim_ranges import DimRange, check_ranges_alone, dims_of
from tilewright.frontend.onnx.load import OnnxModel, load_graph
from tilewright.frontend.onnx.open_import import following, import_open
from tilewright.ops.accuracy import DEFAULT, Accuracy
from tilewright.runtime.cache import default_cache
from tilewright.runtime.machine import runs_here
from tilewright.support.arrays import Shapes
from tilewright.target.names import resolve_target
from tilewright.target.target import Target
from tilewright.tir.func import Module


def lowered(
    model: Model,
    shapes: Shapes | None = None,
    accuracy: Accuracy = DEFAULT,
    target: str | Target = "native",
    dims: Mapping[str, DimRange] | None = None,
) -> Module:
    """With algorithms and the layouts of buffers chosen; for all sizes of `dims`, if there are any."""
    machine = resolve_target(target)
    fold = runner(machine, accuracy, default_cache()) if runs_here(machine.triple, machine.features) else None
    context = PassContext(machine, accuracy.allows, run_constants=fold)
    if not dims:
        return run_passes(ProgramState(load_graph(model, shapes)), context, until="layouts").current
    check_ranges_alone(shapes)
    with OnnxModel(model) as found:
        opened = import_open(found, dims_of(found.specs, dims))
    with following(opened.guards):
        return run_passes(ProgramState(opened.graph), context, until="layouts").current
