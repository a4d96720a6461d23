"""The Funcs of a model as they are before they are scheduled: what is tuned, and what costs are predicted of."""

from tilewright.compiler import Model, runner
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.frontend.onnx.load import load_graph
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
) -> Module:
    """With algorithms and the layouts of buffers chosen."""
    machine = resolve_target(target)
    fold = runner(machine, accuracy, default_cache()) if runs_here(machine.triple, machine.features) else None
    context = PassContext(machine, accuracy.allows, run_constants=fold)
    return run_passes(ProgramState(load_graph(model, shapes)), context, until="layouts").current
