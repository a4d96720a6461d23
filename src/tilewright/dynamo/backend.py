"""The backend of `torch.compile`.

AOTAutograd makes the graph functional first: what a model writes into its inputs, and results that are views of them,
are its business, and we see pure ATen operators. Gradients are not ours: a graph that will need them runs in eager
mode, and that is said.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from tilewright.dynamo.decompositions import backend_decompositions
from tilewright.dynamo.explain import GraphReport, record_graph, warn_once
from tilewright.dynamo.partition import compile_parts
from tilewright.dynamo.torch_module import torch_module

NAME = "tilewright"


def register() -> None:
    """Make the backend known by name, unless torch finds it by its entry point."""
    if not any(entry_points(group="torch_dynamo_backends", name=NAME)):
        registry = torch_module("torch._dynamo.backends.registry")
        if NAME not in registry._COMPILER_FNS:
            registry.register_backend(compile_fx_graph, name=NAME)


def compile_fx_graph(graph: Any, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """What torch.compile calls with a graph of its own operators and example inputs."""
    why = _why_eager(examples)
    if why:
        calls = sum(n.op.startswith("call_") for n in graph.graph.nodes)
        record_graph(GraphReport(calls, why_eager=why))
        warn_once(f"a graph of {calls} calls is left to PyTorch: {why}")
        return graph.forward
    return _aot()(graph, examples)


@cache
def _aot() -> Any:
    common = torch_module("torch._dynamo.backends.common")
    return common.aot_autograd(fw_compiler=_compile_inference, decompositions=backend_decompositions())


def _why_eager(examples: Sequence[Any]) -> str:
    torch = torch_module()
    tensors = [x for x in examples if isinstance(x, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return "gradients are asked for; run it under torch.no_grad() or torch.inference_mode()"
    elsewhere = {str(t.device) for t in tensors if t.device.type != "cpu"}
    if elsewhere:
        return f"tensors are on {', '.join(sorted(elsewhere))}"
    if any(t.layout is not torch.strided for t in tensors):
        return "tensors are sparse"
    return ""


def _compile_inference(graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
    run = compile_parts(graph, _constant_inputs(graph))

    def boxed(args: list[Any]) -> Any:
        return run(*args)

    boxed._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return boxed


def _constant_inputs(graph: Any) -> frozenset[int]:
    """Parameters and buffers that the graph does not write to."""
    context = torch_module("torch._guards").TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        parameter = torch_module("torch.nn").Parameter
        values = [n.meta.get("val") for n in graph.graph.nodes if n.op == "placeholder"]
        return frozenset(i for i, v in enumerate(values) if isinstance(v, parameter))
    written = {i for i, info in enumerate(metadata.input_info) if info.mutates_data}
    return frozenset(set(metadata.static_input_indices or ()) - written)
