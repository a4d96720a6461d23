"""What each stage of a compilation has made, for people to look at."""

from dataclasses import dataclass, field

from tilewright.codegen.objects import compile_assembly
from tilewright.driver.kernels import Compiled, NativeKernel
from tilewright.driver.trace import ProgramTrace
from tilewright.frontend.onnx.stage import HostCall
from tilewright.graph.graph import Graph
from tilewright.placement.place import NOTHING_PLACED, Placement
from tilewright.search.layout_choice import Component
from tilewright.support.artifact import Artifact
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

    def asm(self, kernel: str) -> str:
        return compile_assembly(next(k.llvm for k in self.kernels if k.name == kernel), self.target)
