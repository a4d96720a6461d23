"""ONNX models as graphs.

`load_graph` makes one graph of a model whose shapes are all known. `OnnxModel` is a model that was read and checked,
to be imported for one set of input types after the other, as a whole or stage by stage (`frontend.onnx.stage`).

Every complaint is a UserError that names the node, its types and the cause. Nodes that nothing can run are reported all
at once. How the file is read safely is in `frontend.onnx.file`, how names and types of inputs are settled in
`frontend.onnx.interface`.
"""

from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto

from tilewright.frontend.onnx.file import LIMITS, ModelLimits, read_model, type_name
from tilewright.frontend.onnx.held_model import HeldModel
from tilewright.frontend.onnx.importer import StageImporter
from tilewright.frontend.onnx.interface import input_spec, input_types
from tilewright.frontend.onnx.names import label
from tilewright.frontend.onnx.scope import model_scope
from tilewright.frontend.onnx.stage import OPAQUE, ModelStage
from tilewright.graph.external import Plugin
from tilewright.graph.graph import Graph
from tilewright.ops.opdef import ONNX_DTYPES, TensorType
from tilewright.support.arrays import Shapes
from tilewright.support.closing import Closing
from tilewright.support.errors import UserError


def load_graph(
    model: str | Path | bytes | ModelProto | HeldModel,
    shapes: Shapes | None = None,
    limits: ModelLimits = LIMITS,
    *,
    opened: list[str] | None = None,
    custom_ops: Sequence[Plugin] = (),
    check_indices: bool = False,
) -> Graph:
    """Import a model. `shapes` gives the shapes of inputs by name, where the model leaves dimensions open. `opened`
    gets the names of the files with external data. `custom_ops` are asked about operators that we do not know. With
    `check_indices`, indices that are out of range are errors.
    """
    with OnnxModel(model, limits, custom_ops, check_indices=check_indices) as found:
        try:
            return found.whole(shapes or {})
        finally:
            if opened is not None:
                opened.extend(found.opened)


class OnnxModel(Closing):
    """A model that was read. Its files stay open until it is closed."""

    def __init__(
        self,
        model: str | Path | bytes | ModelProto | HeldModel,
        limits: ModelLimits = LIMITS,
        custom_ops: Sequence[Plugin] = (),
        *,
        check_indices: bool = False,
    ) -> None:
        proto, self._reader = read_model(model, limits)
        self._limits = limits
        self._graph = proto.graph
        try:
            self.scope = model_scope(proto, self._reader, limits, custom_ops, check_indices=check_indices)
            if not self.scope.outputs:
                raise UserError("the model has no outputs")
        except BaseException:
            self._reader.close()
            raise
        names = set(self.scope.inputs)
        self._inputs = [i for i in self._graph.input if i.name in names]
        self.specs = tuple(input_spec(i) for i in self._inputs)

    def types(self, shapes: Shapes) -> dict[str, TensorType]:
        """The types of the inputs that native code can compute with. `OpenDims` if shapes are missing."""
        return input_types(self._inputs, shapes, self._limits)

    def whole(self, shapes: Shapes) -> Graph:
        """The model as one graph. `HostNodes` if there are nodes that the host has to run."""
        graph = self._imported(shapes).whole(self.scope.outputs)
        self._check_outputs(graph)
        return graph

    def first_stage(self, shapes: Shapes) -> ModelStage:
        """What comes before, and is, what the host runs first."""
        return self._imported(shapes).stage(self.scope.outputs)

    def _imported(self, shapes: Shapes) -> StageImporter:
        types = self.types(shapes)
        importer = StageImporter(self.scope, {n: types.get(n, OPAQUE) for n in self.scope.inputs})
        for name, type in types.items():
            importer.declare(name, type)
        importer.import_steps(self.scope.steps)
        return importer

    def _check_outputs(self, graph: Graph) -> None:
        for info, value in zip(self._graph.output, graph.outputs, strict=graph.checks is None):
            declared = info.type.tensor_type.elem_type
            if declared and ONNX_DTYPES.get(declared) is not value.type.dtype:
                raise UserError(
                    f"the model declares its output {label(info.name)} as {type_name(declared)}; it is {value.type}"
                )

    @property
    def opened(self) -> list[str]:
        """The files with external data that were read."""
        return self._reader.opened

    def close(self) -> None:
        self._reader.close()
