"""What a program says of itself: what it takes and gives, what it needs, and what was decided about it."""

from collections.abc import Sequence

from tilewright.codegen.objects import LLVM_VERSION
from tilewright.driver.assembly import interface_of
from tilewright.driver.passes import ProgramState
from tilewright.ops.accuracy import Accuracy
from tilewright.support.artifact import FORMAT_VERSION, Manifest
from tilewright.support.sizes import Guard
from tilewright.target.target import Target
from tilewright.version import __version__


def manifest_of(
    state: ProgramState, target: Target, accuracy: Accuracy, digest: str, guards: Sequence[Guard] = ()
) -> Manifest:
    """Of a program after all passes; `digest` is that of its model, `guards` are what its open sizes keep."""
    checks = state.graph.checks or ()
    face = interface_of(state.graph, state.current)
    return Manifest(
        FORMAT_VERSION,
        __version__,
        LLVM_VERSION,
        _options(state, accuracy),
        digest,
        target.triple,
        tuple(sorted(target.features)),
        face.inputs,
        face.written[: len(face.written) - 2 * len(checks)],
        checks,
        face.dims,
        tuple(guards),
        face.in_place,
        face.states,
    )


def _options(state: ProgramState, accuracy: Accuracy) -> dict[str, str]:
    """What to say of the program: how accurate it is, what became of that, and all that was decided."""
    made = state.trace
    found = {"accuracy": str(accuracy), "machine": made.machine, "trace": str(made)}
    if state.graph.checks is not None:
        found["check_indices"] = "on"
    assert state.lowered is not None
    algorithms = [f"{f.name}: {f.algorithm}" for f in state.lowered.funcs if f.algorithm]
    if algorithms:
        found["algorithms"] = "\n".join(algorithms)
    return found
