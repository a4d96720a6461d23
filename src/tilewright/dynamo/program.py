"""A graph that runs as a native program.

The program is compiled by the first call, when parameters are at hand: they become constants, packed for the kernels
that read them. Each call compares where they lie and their version counters with what was compiled, so that changed
weights make another program instead of stale answers; weights that change time and again become inputs.

Open dimensions make one program for a range of sizes; a size beyond it, a wider one.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.api import load
from tilewright.dynamo.explain import GraphReport, warn_once
from tilewright.dynamo.torch_module import as_tensor, tensor_array, torch_module
from tilewright.frontend.onnx.held_model import HeldModel
from tilewright.frontend.torch.convert import ConvertedGraph, Fixed, FromInput, FromModel, convert_graph
from tilewright.runtime.session import Session
from tilewright.support.arrays import OpaqueArray
from tilewright.support.errors import InternalError, UserError

_log = logging.getLogger("tilewright")

_CHANGES = 3  # of weights, after which they are inputs
_VARIANTS = 8  # programs for values of numbers, or for shapes
_LEAST_CAPACITY = 64


class GraphProgram:
    """Callable as the graph is. `constants` are the placeholders whose tensors may become a part of the program."""

    def __init__(self, module: Any, constants: frozenset[int], report: GraphReport) -> None:
        self._module, self._report = module, report
        self._constants = constants
        self._changes = 0
        self._eager = False
        self._lock = threading.Lock()
        self._builds: dict[tuple[Any, ...], _Build] = {}
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._numbers = _lonely_numbers(placeholders)
        given = module.graph.output_node().args[0]
        self._is_single = not isinstance(given, list | tuple)
        self._threads: Callable[[], int] = torch_module().get_num_threads

    def __call__(self, *args: Any) -> Any:
        if self._eager:
            return self._module(*args)
        build = self._builds.get(tuple(args[i] for i in self._numbers) if self._numbers else ())
        if build is None or build.threads != self._threads() or not build.is_current(args):
            with self._lock:
                build = self._built(args)
        if build is None:
            return self._module(*args)
        made = build.run(args)
        return made[0] if self._is_single else made

    def _built(self, args: Sequence[Any]) -> "_Build | None":
        """The program for these arguments, compiled anew if need be; None if PyTorch has to run them."""
        key = tuple(args[i] for i in self._numbers)
        threads = self._threads()
        old = self._builds.get(key)
        if old is not None and old.threads == threads and old.is_current(args):
            return old  # another thread was quicker
        if old is None and len(self._builds) >= _VARIANTS:
            warn_once(f"a graph has got more than {_VARIANTS} values of numbers: PyTorch runs further ones")
            return None
        why = "the first call" if old is None else old.why_not(args, threads)
        if old is not None and old.has_changed_weights(args):
            self._changes += 1
            if self._changes > _CHANGES:
                self._constants = frozenset[int]()
                why = f"{why}, time and again: they are inputs from now on"
        self._report.builds.append(why)
        try:
            made = _Build.of(self._module, args, self._constants, self._numbers, threads, old)
        except Exception as e:
            # PyTorch can run it in any case: a fault of ours must not take that away.
            is_ours = not isinstance(e, UserError)
            text = f"a mistake of Tilewright's, please report it: {e!r}" if is_ours else str(e)
            if is_ours:
                _log.debug("compiling a graph failed", exc_info=True)
            warn_once(f"a graph of {self._report.calls} calls is left to PyTorch: {text}")
            self._report.why_eager = text
            self._eager = True
            return None
        self._builds[key] = made
        return made


def _lonely_numbers(placeholders: Sequence[Any]) -> tuple[int, ...]:
    """Placeholders that are numbers which no shape of a tensor tells: a program is made for each value."""
    shapes: set[str] = set()
    for node in placeholders:
        shapes.update(str(n) for n in getattr(node.meta.get("val"), "shape", ()))
    values = [n.meta.get("val") for n in placeholders]
    return tuple(
        i
        for i, v in enumerate(values)
        if v is not None and not hasattr(v, "shape") and (isinstance(v, int | float) or str(v) not in shapes)
    )


@dataclass(slots=True, eq=False)
class _Build:
    """A program, and what it was made for. `weights` are the constants in it: number, tensor, address and version."""

    graph: ConvertedGraph
    model: HeldModel
    threads: int
    weights: list[tuple[int, Any, int, int]]
    session: Any
    ranges: Mapping[str, tuple[int, int]]
    places: Mapping[str, tuple[int, int]]  # where the size of each dimension is: placeholder and axis
    variants: dict[tuple[tuple[int, ...], ...], Any] = field(
        default_factory=dict[tuple[tuple[int, ...], ...], Any]
    )

    @classmethod
    def of(
        cls,
        module: Any,
        args: Sequence[Any],
        constants: frozenset[int],
        numbers: Sequence[int],
        threads: int,
        old: "_Build | None",
    ) -> "_Build":
        weights = [(i, args[i], args[i].data_ptr(), _version(args[i])) for i in sorted(constants)]
        graph = convert_graph(
            module.graph,
            lambda name: module.get_parameter(name) if "." in name else getattr(module, name),
            tensor_array,
            weights={i: t for i, t, _, _ in weights},
            numbers={i: args[i] for i in numbers},
        )
        if graph.model is None:
            raise InternalError(f"cannot be written in ONNX: {'; '.join(map(str, graph.unsupported))}")
        places = _places(graph)
        ranges: dict[str, tuple[int, int]] = {}
        for name, (least, most) in graph.dims.items():
            i, axis = places[name]
            size = int(args[i].shape[axis])
            before = 0 if old is None else old.ranges.get(name, (0, 0))[1]
            capacity = max(_LEAST_CAPACITY, 1 << (2 * size - 1).bit_length(), before)
            ranges[name] = (max(1, least), capacity if most is None else min(max(most, size), capacity))
        session = load(graph.model, threads=threads, dims=ranges or None)
        return cls(graph, graph.model, threads, weights, session, ranges, places)

    def is_current(self, args: Sequence[Any]) -> bool:
        for i, _, address, version in self.weights:
            t = args[i]
            if t.data_ptr() != address or (version >= 0 and t._version != version):
                return False
        for name, (least, most) in self.ranges.items():
            i, axis = self.places[name]
            if not least <= args[i].shape[axis] <= most:
                return False
        return True

    def has_changed_weights(self, args: Sequence[Any]) -> bool:
        return any(
            args[i].data_ptr() != address or (version >= 0 and args[i]._version != version)
            for i, _, address, version in self.weights
        )

    def why_not(self, args: Sequence[Any], threads: int) -> str:
        if self.has_changed_weights(args):
            return "weights have changed"
        if threads != self.threads:
            return f"{threads} threads instead of {self.threads}"
        for name, (least, most) in self.ranges.items():
            i, axis = self.places[name]
            if not least <= args[i].shape[axis] <= most:
                return f"{name} is {args[i].shape[axis]}, outside of {least} to {most}"
        return "other arguments"

    def run(self, args: Sequence[Any]) -> list[Any]:
        arrays = [tensor_array(args[i]) for i in self.graph.inputs]
        is_plain = isinstance(self.session, Session)
        results = self.session.call(arrays) if is_plain else self._run_open(arrays)
        tensors = [as_tensor(r) for r in results]
        made: list[Any] = []
        for place in self.graph.results:
            match place:
                case FromModel(index, is_size):
                    made.append(int(results[index].item()) if is_size else tensors[index])
                case FromInput(index):
                    made.append(args[index])
                case Fixed(value):
                    made.append(value)
        return made

    def _run_open(self, arrays: Sequence[OpaqueArray]) -> list[OpaqueArray]:
        feeds = dict(zip(self.graph.names, arrays, strict=True))
        key = tuple(a.shape for a in arrays)
        session = self.variants.get(key, self.session)
        try:
            made = session.run(feeds)
        except UserError as e:
            if session is not self.session or len(self.variants) >= _VARIANTS:
                raise
            # Sizes that the program for the range leaves out.
            _log.info("compiling for %s: %s", key, e.message)
            shapes = {n: a.shape for n, a in feeds.items()}
            session = self.variants[key] = load(self.model, threads=self.threads, shapes=shapes)
            made = session.run(feeds)
        return [np.ascontiguousarray(a).reshape(a.shape) for a in made.values()]


def _version(tensor: Any) -> int:
    """Grows with each write; -1 for tensors of inference mode, which have none, and cannot be written outside of it."""
    return -1 if tensor.is_inference() else tensor._version


def _places(graph: ConvertedGraph) -> dict[str, tuple[int, int]]:
    if graph.model is None:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for i, info in zip(graph.inputs, graph.model.proto.graph.input, strict=True):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_param:
                found.setdefault(dim.dim_param, (i, axis))
    return found
