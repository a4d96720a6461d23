"""The kernels of a network as the tuner sees them: tasks with their design spaces, and their shares of a run."""

from dataclasses import dataclass
from pathlib import Path

from tilewright.compiler import SPACES
from tilewright.driver.decisions import Kernel
from tilewright.driver.trace import ProgramTrace
from tilewright.frontend.onnx.load import load_graph
from tilewright.ops.accuracy import Accuracy
from tilewright.support.errors import MultipleProgramsError
from tilewright.target.target import native
from tilewright.tir.stmt import IterKind, blocks
from tilewright.tuning.candidate import Task
from tilewright.tuning.program_source import ProgramSource
from tilewright.tuning.sites import sited
from tilewright.tuning.workplace import workplace

_RUNS = 5


@dataclass(frozen=True, slots=True, eq=False)
class NetworkKernel:
    """A Func that is called at `calls` places, with the family of its schedule and its share of a run's time."""

    name: str
    family: str
    calls: int
    share: float
    task: Task

    @property
    def kind(self) -> str:
        """The family, and where that is told by it, the dimensions of sums: `gemm, sum over 3` is a window."""
        if self.family not in ("gemm", "tensor"):
            return self.family
        sums = [
            sum(i.kind is IterKind.REDUCE and i.extent > 1 for i in b.iters)
            for b in blocks(self.task.func.body)
        ]
        return f"{self.family}, sum over {max(sums, default=0)}"


def network_kernels(model: Path, threads: int = 1) -> list[NetworkKernel]:
    """The slowest first; none if the model does not become one program of native code."""
    target = native()
    try:
        source = ProgramSource(load_graph(model, None), target, Accuracy.of(None))
    except MultipleProgramsError:
        return []
    with source, workplace(None, None, threads, 0) as place:
        if not source.is_one_segment():
            return []
        program = sited(*source.compile(ProgramTrace({"beside": ()}), {}))
        place.runner.prepare(program, _RUNS)
        seconds = list(place.runner.seconds)
    decided = [k for k in program.trace.sections["kernels"] if isinstance(k, Kernel)]
    families = {call: k.family for k in decided for call in k.calls}
    found: list[NetworkKernel] = []
    for key, (func, constants) in program.funcs.items():
        sites = program.calls_of(key)
        if not sites:
            continue
        names = [program.sites[n].func for n in sites]
        family = next((families[n] for n in names if n in families), "")
        share = sum(seconds[n] for n in sites) / sum(seconds)
        task = Task(key, func, constants, target, SPACES, None, threads)
        found.append(NetworkKernel(func.name, family, len(sites), share, task))
    return sorted(found, key=lambda k: -k.share)
