"""Makes a model that fails smaller: fewer outputs, and nodes replaced by inputs that have their values."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from onnx import ModelProto, NodeProto, helper

from tests.onnx_cases import Array, run_onnxruntime

Fails = Callable[[ModelProto, Mapping[str, Array]], bool]


def minimize(
    model: ModelProto, feeds: Mapping[str, Array], fails: Fails, tries: int = 200
) -> tuple[ModelProto, dict[str, Array]]:
    """A smaller model, and feeds with which it still fails."""
    nodes = list(model.graph.node)
    everything = _part(model, nodes, [o for n in nodes for o in n.output if o], {})
    # An input that nothing reads is none of `everything`.
    values = {**feeds, **run_onnxruntime(everything, {v.name: feeds[v.name] for v in everything.graph.input})}

    def fed(m: ModelProto) -> dict[str, Array]:
        return {v.name: values[v.name] for v in m.graph.input}

    best, found = model, True
    while found:
        found = False
        for candidate in _smaller(best, values):
            tries -= 1
            if tries < 0:
                break
            if fails(candidate, fed(candidate)):
                best, found = candidate, True
                break
    return best, fed(best)


def _smaller(model: ModelProto, values: Mapping[str, Array]) -> Iterator[ModelProto]:
    nodes, outputs = list(model.graph.node), [o.name for o in model.graph.output]
    for name in (o for n in nodes for o in n.output if o):  # one value with what it needs, the shortest first
        part = _part(model, nodes, [name], values)
        if len(part.graph.node) < len(nodes) or len(outputs) > 1:
            yield part
    for n in nodes:  # its values are given instead of computed
        if not any(o in outputs for o in n.output):
            yield _part(model, [m for m in nodes if m is not n], outputs, values)


def _part(
    model: ModelProto, nodes: Sequence[NodeProto], outputs: list[str], values: Mapping[str, Array]
) -> ModelProto:
    """Those of the nodes that `outputs` need; what they miss is an input."""
    needed, kept = set(outputs), list[NodeProto]()
    for n in reversed(nodes):
        if needed & set(n.output):
            kept.insert(0, n)
            needed |= set(n.input)
    constants = [w for w in model.graph.initializer if w.name in needed]
    known = {"", *(o for n in kept for o in n.output), *(w.name for w in constants)}
    missing = dict.fromkeys(i for n in kept for i in n.input if i not in known)
    given = {v.name: v for v in model.graph.input}

    def info(name: str) -> object:
        if name in given:
            return given[name]
        dtype = helper.np_dtype_to_tensor_dtype(values[name].dtype)
        return helper.make_tensor_value_info(name, dtype, list(values[name].shape))

    results = [helper.make_empty_tensor_value_info(o) for o in outputs]
    graph = helper.make_graph(kept, "part", [info(n) for n in missing], results, initializer=constants)
    return helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
