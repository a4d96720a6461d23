"""PyTorch, eager and compiled by Inductor, as engines of the benchmarks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilewright.cli.guest.job import EngineJob, Progress

Array = NDArray[Any]


class Torch:
    """PyTorch, eager, on a module that onnx2torch makes of the file."""

    def __init__(self, job: EngineJob, progress: Progress) -> None:
        torch: Any = import_module("torch")
        onnx2torch: Any = import_module("onnx2torch")
        self.version = torch.__version__
        self._torch = torch
        torch.set_num_threads(job.threads)
        self._module = self._prepared(onnx2torch.convert(_readable(job.model)).eval(), job)

    def _prepared(self, module: Any, job: EngineJob) -> Any:
        return module

    def bind(self, feeds: dict[str, Array]) -> None:
        self._inputs = [self._torch.from_numpy(np.ascontiguousarray(v)) for v in feeds.values()]

    def run(self) -> None:
        with self._torch.inference_mode():
            found: Any = self._module(*self._inputs)
        # Eager PyTorch answers a transpose with a view: other engines have moved the elements when they are done.
        values: list[Any] = [found] if hasattr(found, "numpy") else list(found)
        self._outputs: list[Any] = [value.contiguous() for value in values]

    def results(self) -> list[Array]:
        return [value.detach().numpy() for value in self._outputs]


def _readable(path: str) -> Any:
    """onnx2torch refuses shapes that may have an extent of zero, which PyTorch's exporter allows always. It is taken
    back where a shape is constant and has none.
    """
    model: Any = import_module("onnx").load(path)
    to_array: Any = import_module("onnx.numpy_helper").to_array
    shapes = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        shape = shapes.get(node.input[1]) if node.op_type == "Reshape" else None
        if shape is not None and to_array(shape).all():
            left = [a for a in node.attribute if a.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend(left)
    return model


class Inductor(Torch):
    """torch.compile with Inductor and frozen weights; compiled in the first run."""

    def _prepared(self, module: Any, job: EngineJob) -> Any:
        config: Any = import_module("torch._inductor.config")
        config.freezing = True
        self._fix_shapes(module, job)
        return self._torch.compile(module, backend="inductor")

    def _fix_shapes(self, module: Any, job: EngineJob) -> None:
        """Dynamo cannot follow shapes that are tensors, even constant ones. A run on the inputs tells them."""
        shapes: Any = import_module("torch.fx.passes.shape_prop")
        inputs = [self._torch.from_numpy(np.ascontiguousarray(v)) for v in job.read_feeds().values()]
        with self._torch.no_grad():
            shapes.ShapeProp(module).propagate(*inputs)
        takes_shape = {"OnnxReshape": self._torch.reshape, "OnnxExpand": self._torch.broadcast_to}
        for node in list(module.graph.nodes):
            kind = type(module.get_submodule(node.target)).__name__ if node.op == "call_module" else ""
            if kind in takes_shape:
                with module.graph.inserting_after(node):
                    shape = tuple(node.meta["tensor_meta"].shape)
                    fixed = module.graph.call_function(takes_shape[kind], (node.args[0], shape))
                node.replace_all_uses_with(fixed)
                module.graph.erase_node(node)
        module.graph.eliminate_dead_code()
        module.recompile()

    def run(self) -> None:
        with self._torch.no_grad():  # freezing does not work in inference mode
            found: Any = self._module(*self._inputs)
        # Eager PyTorch answers a transpose with a view: other engines have moved the elements when they are done.
        values: list[Any] = [found] if hasattr(found, "numpy") else list(found)
        self._outputs: list[Any] = [value.contiguous() for value in values]
