"""What became of the graphs that PyTorch handed over: which parts are native, and what is left to PyTorch, and why."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.dynamo.torch_module import torch_module
from tilewright.frontend.torch.convert import UnsupportedCall

_log = logging.getLogger("tilewright")


@dataclass(slots=True, eq=False)
class GraphReport:
    """One graph. `left` are calls that PyTorch runs; `why_eager` says why all of it does, if so."""

    calls: int
    programs: int = 0
    left: tuple[UnsupportedCall, ...] = ()
    why_eager: str = ""
    builds: list[str] = field(default_factory=list[str])  # why each program was compiled

    def __str__(self) -> str:
        if self.why_eager:
            return f"{self.calls} calls, all by PyTorch: {self.why_eager}"
        lines = [f"{self.calls} calls, of which {len(self.left)} by PyTorch; {self.programs} native programs"]
        lines += [f"  PyTorch runs {c.node}: {c}" for c in self.left]
        lines += [f"  compiled: {why}" for why in self.builds]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of a model with given arguments: one report for each graph that PyTorch made of it."""

    graphs: tuple[GraphReport, ...]

    def __str__(self) -> str:
        return "\n".join(f"graph {i}: {g}" for i, g in enumerate(self.graphs)) or "no graphs"


_reports: list[GraphReport] = []
_said: set[str] = set()


def reports() -> Sequence[GraphReport]:
    """Of all graphs since the last `reset`."""
    return tuple(_reports)


def reset() -> None:
    """Forget reports, and what was said already."""
    _reports.clear()
    _said.clear()


def record_graph(report: GraphReport) -> GraphReport:
    _reports.append(report)
    return report


def warn_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log.warning("%s", text)


def say_left(left: Sequence[UnsupportedCall]) -> None:
    """Name operators that PyTorch runs; each only once."""
    counts = Counter(f"{c.operator} ({c.reason})" for c in left)
    new = [f"{name} × {n}" if n > 1 else name for name, n in counts.items() if name not in _said]
    if new:
        _said.update(counts)
        _log.warning("PyTorch runs %s; tilewright.dynamo.explain says where", ", ".join(new))


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Run a model once with the backend, without gradients, and say what became of it."""
    torch = torch_module()
    torch_module("torch._dynamo").reset()
    start = len(_reports)
    with torch.no_grad():
        torch.compile(model, backend="tilewright")(*args, **kwargs)
    return Explanation(tuple(_reports[start:]))
