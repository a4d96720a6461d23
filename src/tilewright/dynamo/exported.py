"""`from_torch`: an exported program, or a module with example arguments, as a session that takes and gives tensors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from onnx import ModelProto

from tilewright.api import load
from tilewright.dynamo.decompositions import export_decompositions
from tilewright.dynamo.torch_module import as_tensor, tensor_array, torch_module
from tilewright.frontend.onnx.held_model import HeldModel
from tilewright.frontend.torch.convert import ConvertedGraph, Fixed, FromInput, FromModel, convert_graph
from tilewright.support.errors import UserError

if TYPE_CHECKING:
    from tilewright.frontend.onnx.dim_ranges import DimRange


class TorchSession:
    """Call it as the module was called: tensors in and out, in the memory where they are.

    `session` is the session of the ONNX model, with numpy's arrays by name; `model` is that model, for `tw.load` and
    `tw.compile`; `onnx` is it with all weights in it.
    """

    def __init__(self, model: HeldModel, session: Any, graph: ConvertedGraph, program: Any) -> None:
        self.model, self.session = model, session
        self._graph, self._program = graph, program
        spec = program.call_spec
        self._in_spec, self._out_spec = spec.in_spec, spec.out_spec
        self._tree = torch_module("torch.utils._pytree")
        self._user = _user_inputs(program)

    @property
    def onnx(self) -> ModelProto:
        """UserError if it is larger than a protobuf can be."""
        return self.model.whole()

    def __repr__(self) -> str:
        return f"<TorchSession of {self.session!r}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat, spec = self._tree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            ordered = self._reordered(kwargs)
            flat, spec = self._tree.tree_flatten((args, ordered))
            if spec != self._in_spec:
                raise UserError(
                    f"arguments are {spec}, and the program was exported for {self._in_spec}",
                    hint="call it as the module was called when it was exported",
                )
        by_place = dict(zip(self._user, flat, strict=True))
        feeds = {
            n: tensor_array(by_place[i]) for i, n in zip(self._graph.inputs, self._graph.names, strict=True)
        }
        arrays = list(self.session.run(feeds).values())
        tensors = [as_tensor(np.ascontiguousarray(a).reshape(a.shape)) for a in arrays]
        made: list[Any] = []
        for place in self._graph.results:
            match place:
                case FromModel(index, is_size):
                    made.append(int(arrays[index].item()) if is_size else tensors[index])
                case FromInput(index):
                    made.append(by_place[index])
                case Fixed(value):
                    made.append(value)
        return self._tree.tree_unflatten(made, self._out_spec)

    def _reordered(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Keywords in the order that they were exported in."""
        names = self._in_spec.children_specs[1].context
        return {n: kwargs[n] for n in names if n in kwargs} if set(names) == set(kwargs) else dict(kwargs)


def from_torch(
    model: Any,
    example_args: Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    dims: "Mapping[str, DimRange] | None" = None,
    threads: int | None = None,
    **options: Any,
) -> TorchSession:
    """A compiled program of a torch.export.ExportedProgram; or of a torch.nn.Module, exported with example arguments.

    `dynamic_shapes` is torch.export's: which dimensions are open. `dims` gives ranges to them by name, and `options`
    are those of `tw.load`. `threads` are torch's, unless given.
    """
    torch, export = torch_module(), torch_module("torch.export")
    if isinstance(model, export.ExportedProgram):
        program = model
    elif isinstance(model, torch.nn.Module):
        if isinstance(example_args, torch.Tensor):
            example_args = (example_args,)
        with torch.no_grad():
            program = export.export(
                model.eval() if not model.training else model,
                tuple(example_args),
                dict(kwargs or {}),
                dynamic_shapes=dynamic_shapes,
            )
    else:
        raise UserError(
            f"this is a {type(model).__name__}, not a torch.nn.Module or an ExportedProgram",
            hint="wrap a function into a module, or compile it with torch.compile(backend='tilewright')",
        )
    program = program.run_decompositions(export_decompositions())
    graph = _converted(program)
    held = cast(HeldModel, graph.model)
    session = load(
        held, threads=threads or torch.get_num_threads(), dims=dims or _known_ranges(graph), **options
    )
    return TorchSession(held, session, graph, program)


def _converted(program: Any) -> ConvertedGraph:
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise UserError(
            f"the program writes to {', '.join(changed)}, and a session keeps nothing between calls",
            hint="call eval() before exporting, or use torch.compile(backend='tilewright')",
        )
    names = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    weights: dict[int, Any] = {}
    titles: dict[int, str] = {}
    for i, name in enumerate(names):
        title = (
            signature.inputs_to_parameters.get(name)
            or signature.inputs_to_buffers.get(name)
            or signature.inputs_to_lifted_tensor_constants.get(name)
        )
        if title is not None:
            found = program.state_dict.get(title)
            weights[i] = found if found is not None else program.constants[title]
            titles[i] = title
    graph = convert_graph(
        program.graph,
        lambda name: getattr(program.graph_module, name),
        tensor_array,
        weights=weights,
        weight_names=titles,
    )
    if graph.unsupported:
        listed = "".join(f"\n  {c.node}: {c}" for c in graph.unsupported[:8])
        more = len(graph.unsupported) - 8
        raise UserError(
            f"the program has operators that are not supported:{listed}"
            + (f"\n  and {more} more" if more > 0 else ""),
            hint="torch.compile(model, backend='tilewright') leaves such operators to PyTorch",
        )
    return graph


def _known_ranges(graph: ConvertedGraph) -> "dict[str, DimRange] | None":
    """Where export was told an upper end for every open dimension."""
    ranges = {n: (max(1, least), most) for n, (least, most) in graph.dims.items() if most is not None}
    return cast("dict[str, DimRange]", ranges) if ranges and len(ranges) == len(graph.dims) else None


def _user_inputs(program: Any) -> list[int]:
    """The placeholders that arguments go to."""
    kinds = torch_module("torch.export.graph_signature").InputKind
    return [i for i, s in enumerate(program.graph_signature.input_specs) if s.kind == kinds.USER_INPUT]
