"""A model as a function from traces to programs: what tuning compiles again and again."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.compiler import Compilation, CompiledModel, compilation, runner
from tilewright.driver.passes import PassContext, ProgramState, run_passes
from tilewright.driver.trace import ProgramTrace
from tilewright.driver.tuned import Tuned
from tilewright.driver.workers import Workers
from tilewright.graph.graph import Graph
from tilewright.ops.accuracy import Accuracy
from tilewright.runtime.cache import Cache, default_cache
from tilewright.search.database import Choice, Database
from tilewright.search.default import Refine, as_stated
from tilewright.support.closing import Closing
from tilewright.support.compiling import compiling
from tilewright.support.program import is_sequence
from tilewright.target.target import Target
from tilewright.tir.func import Call


class KnownChoices(Tuned):
    """The best schedule of each task so far, as if it was in the database."""

    def __init__(self, target: Target, known: Mapping[str, Choice]) -> None:
        super().__init__(target, Database(None))
        self._known = known

    def choice(self, task: str) -> Choice | None:
        return self._known.get(task)


@dataclass(slots=True)
class ProgramSource(Closing):
    """Use it as a context manager: the processes that compile for it end with it."""

    graph: Graph
    target: Target
    accuracy: Accuracy
    cache: Cache = field(default_factory=default_cache)
    _pool: Workers | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def is_one_segment(self) -> bool:
        """Does native code run all of it, without choosing what runs?"""
        program = self.until("groups", ProgramTrace()).current.program
        return is_sequence(program) and all(isinstance(c, Call) for c in program)

    @property
    def pool(self) -> Workers:
        if self._pool is None:
            self._pool = Workers(self.target)
        return self._pool

    def compile(self, trace: ProgramTrace, known: Mapping[str, Choice]) -> tuple[Compilation, CompiledModel]:
        """The program with the decisions of the trace, and for kernels that it does not name those that are known."""
        with compiling():
            made = compilation(self.target, self.accuracy, self.cache, self.pool, None)
            made.given, made.tuned = trace, KnownChoices(self.target, known)
            return made, made.run_graph(self.graph, "")

    def until(
        self, name: str, trace: ProgramTrace, eagerness: float = 1.0, refine_fusion: Refine = as_stated
    ) -> ProgramState:
        """The program after a pass, with the decisions of the trace. Groups that it does not name are made with this
        eagerness to fuse, by these seconds of kernels.
        """
        with compiling():
            fold = runner(self.target, self.accuracy, self.cache, self.pool)
            allows = self.accuracy.allows
            context = PassContext(
                self.target, allows, run_constants=fold, eagerness=eagerness, refine_fusion=refine_fusion
            )
            return run_passes(ProgramState(self.graph), context, trace, until=name)
