"""ONNX files that are almost right: the official suite's models and random ones, each changed in a few places.

A file is a function of its number: `mutated(n)` is the same bytes on every machine with the same onnx.
"""

import random
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, defs, helper
from onnx.backend.test.loader import load_model_tests

from tests.fuzz.rules import random_model

ABSURD = (0, 1, -1, 2, 7, 63, 64, 255, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
_LARGEST_SEED = 20_000  # bytes: larger models only make the campaign slower


@cache
def seeds() -> tuple[bytes, ...]:
    """Models to start from, smallest first."""
    with warnings.catch_warnings(action="ignore"):  # of numpy, when the suite computes what it expects
        suite = [t.model.SerializeToString() for t in load_model_tests(kind="node") if t.model is not None]
    networks = [random_model(seed).SerializeToString() for seed in range(60)]
    return tuple(
        sorted((s for s in {*suite, *networks} if len(s) <= _LARGEST_SEED), key=lambda s: (len(s), s))
    )


def mutated(number: int) -> bytes:
    rng = random.Random(number)
    data = rng.choice(seeds())
    if rng.random() < 0.75:
        model = ModelProto.FromString(data)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            rng.choice(_CHANGES)(rng, model)
        data = model.SerializeToString()
    if rng.random() < 0.4:
        data = _bytes_changed(rng, data)
    return data


def _bytes_changed(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        at = rng.randrange(len(out))
        match rng.randrange(6):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del out[at : at + rng.choice((1, 2, 8, 64))]
            case 3:
                out[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
            case 4:
                piece = out[at : at + rng.choice((4, 16, 64))]
                to = rng.randrange(len(out))
                out[to:to] = piece
            case _:
                del out[at:]
    return bytes(out)


# ----------------------------------------------------------------------------------------------- changes of a model


def _graphs(model: ModelProto) -> list[GraphProto]:
    found = [model.graph]
    for graph in found:
        found += [a.g for n in graph.node for a in n.attribute if a.type == AttributeProto.GRAPH]
    return found


def _graph(rng: random.Random, model: ModelProto) -> GraphProto:
    return rng.choice(_graphs(model))


def _node(rng: random.Random, model: ModelProto) -> NodeProto:
    graph = _graph(rng, model)
    return rng.choice(graph.node) if graph.node else model.graph.node.add()


def _names(graph: GraphProto) -> list[str]:
    made = [o for n in graph.node for o in n.output]
    return ["", "nowhere", *made, *(i.name for i in graph.input), *(t.name for t in graph.initializer)]


def _rename_input(rng: random.Random, model: ModelProto) -> None:
    graph, node = model.graph, _node(rng, model)
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(_names(graph))
    else:
        node.input.append(rng.choice(_names(graph)))


def _rename_output(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice(_names(model.graph))


def _operands(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    names = node.input if rng.random() < 0.5 else node.output
    if names and rng.random() < 0.5:
        del names[rng.randrange(len(names))]
    else:
        names.extend([rng.choice(_names(model.graph))] * rng.choice((1, 2, 100)))


@cache
def _operators() -> tuple[tuple[str, str], ...]:
    return tuple(sorted({(s.name, s.domain) for s in defs.get_all_schemas()} | {("Gelu", "com.microsoft")}))


def _operator(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    node.op_type, node.domain = rng.choice(_operators())
    if rng.random() < 0.5:
        del node.attribute[:]


def _attribute(rng: random.Random, model: ModelProto) -> None:
    node = _node(rng, model)
    if not node.attribute:
        node.attribute.append(
            helper.make_attribute(rng.choice(("axis", "to", "axes", "pads")), rng.choice(ABSURD))
        )
        return
    at = rng.randrange(len(node.attribute))
    a = node.attribute[at]
    match rng.randrange(5):
        case 0:
            del node.attribute[at]
        case 1:
            node.attribute.append(a)
        case 2:
            a.type = rng.choice(list(AttributeProto.AttributeType.values()))
        case _:
            _absurd_value(rng, a)


def _absurd_value(rng: random.Random, a: AttributeProto) -> None:
    number = rng.choice(ABSURD)
    match a.type:
        case AttributeProto.INT:
            a.i = number
        case AttributeProto.FLOAT:
            a.f = rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-40))
        case AttributeProto.STRING:
            a.s = rng.choice((b"", b"\xff\xfe", b"SAME_UPPER", b"linear", b"x" * 1000, b"%s", b"..."))
        case AttributeProto.INTS:
            if a.ints and rng.random() < 0.7:
                a.ints[rng.randrange(len(a.ints))] = number
            else:
                a.ints.extend([number] * rng.choice((1, 3, 40)))
        case AttributeProto.FLOATS:
            a.floats.extend([rng.choice((0.0, float("nan"), 1e38))] * rng.choice((1, 3)))
        case AttributeProto.TENSOR:
            _absurd_tensor(rng, a.t)
        case _:
            a.ref_attr_name = "nowhere"


def _absurd_tensor(rng: random.Random, t: TensorProto) -> None:
    match rng.randrange(6):
        case 0:
            t.data_type = rng.choice((*TensorProto.DataType.values(), 99, -1))
        case 1 if t.dims:
            t.dims[rng.randrange(len(t.dims))] = rng.choice(ABSURD)
        case 2:
            t.dims.append(rng.choice(ABSURD))
        case 3:
            t.raw_data = t.raw_data[: rng.randrange(len(t.raw_data) + 1)] if t.raw_data else b"\x01"
        case 4:
            t.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", rng.choice(("../x", "/etc/passwd", "weights", "a\0b"))),
                ("offset", "-1"),
            ):
                t.external_data.add(key=key, value=value)
        case _:
            values: Any = {7: t.int64_data, 6: t.int32_data, 1: t.float_data}.get(t.data_type)
            if values is not None:
                values.append(rng.choice((0, 1, -1, 2**31 - 1)))
            elif t.raw_data:
                t.raw_data = rng.randbytes(len(t.raw_data))


def _tensor(rng: random.Random, model: ModelProto) -> None:
    graph = _graph(rng, model)
    if graph.initializer:
        _absurd_tensor(rng, rng.choice(graph.initializer))
    else:
        _absurd_tensor(rng, graph.initializer.add(name=rng.choice(_names(graph)), data_type=1, dims=[1]))


def _interface(rng: random.Random, model: ModelProto) -> None:
    graph = _graph(rng, model)
    infos = graph.input if rng.random() < 0.7 else graph.output
    if not infos:
        return
    info = rng.choice(infos)
    match rng.randrange(6):
        case 0:
            info.type.tensor_type.elem_type = rng.choice((*TensorProto.DataType.values(), 99))
        case 1:
            info.name = rng.choice(_names(graph))
        case 2:
            info.ClearField("type")
        case 3:
            info.type.sequence_type.elem_type.tensor_type.elem_type = 1
        case 4:
            info.type.tensor_type.shape.dim.add().dim_value = rng.choice(ABSURD)
        case _:
            for d in info.type.tensor_type.shape.dim:
                d.dim_value = rng.choice(ABSURD)


def _nodes(rng: random.Random, model: ModelProto) -> None:
    graph = _graph(rng, model)
    if not graph.node:
        return
    at = rng.randrange(len(graph.node))
    match rng.randrange(3):
        case 0:
            del graph.node[at]
        case 1:
            graph.node.append(graph.node[at])
        case _:  # a cycle, if anything uses the node
            node = graph.node[at]
            if node.output:
                node.input.append(node.output[0])


def _opset(rng: random.Random, model: ModelProto) -> None:
    if model.opset_import:
        chosen = rng.choice(model.opset_import)
        chosen.version = rng.choice((0, 1, 6, 7, 9, 11, 13, 18, 22, 28, 29, 2**40, -1))
        if rng.random() < 0.2:
            chosen.domain = rng.choice(("", "ai.onnx", "com.microsoft", "mine"))


def _function(rng: random.Random, model: ModelProto) -> None:
    """A function, of which a node may be a call; it may call itself."""
    node = _node(rng, model)
    f = model.functions.add(name=node.op_type, domain=node.domain)
    f.input.extend(f"i{i}" for i in range(len(node.input) + rng.choice((-1, 0, 0, 1))))
    f.output.extend(f"o{i}" for i in range(len(node.output)))
    inner = f.node.add(
        op_type=rng.choice((node.op_type, "Relu", "Identity")), domain=rng.choice((node.domain, ""))
    )
    inner.input.extend(f.input[:1])
    inner.output.extend(f.output[:1])
    f.opset_import.extend(model.opset_import)


def _nest(rng: random.Random, model: ModelProto) -> None:
    """A branch, or many in each other."""
    graph = _graph(rng, model)
    for _ in range(rng.choice((1, 2, 20))):
        body = GraphProto()
        body.CopyFrom(graph)
        if body.ByteSize() > 200_000:
            return
        node = NodeProto(op_type="If", input=["c"], output=[o.name for o in graph.output])
        node.attribute.append(helper.make_attribute("then_branch", body))
        node.attribute.append(helper.make_attribute("else_branch", body))
        del graph.node[:]
        graph.node.append(node)


_CHANGES: tuple[Callable[[random.Random, ModelProto], None], ...] = (
    _rename_input,
    _rename_output,
    _operands,
    _operator,
    _attribute,
    _attribute,
    _attribute,
    _tensor,
    _tensor,
    _interface,
    _nodes,
    _opset,
    _function,
    _nest,
)
