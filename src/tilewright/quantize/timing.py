"""What each layer costs in each form: measured, call by call, in programs that have the form wherever it can be.

A node that is no layer belongs to the one that its operands come from: activations and residuals are a layer's
epilogue. What makes bytes of a tensor is shared among the layers that read these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from onnx import ModelProto

from tilewright.profiling.call_times import patient_workers, time_calls
from tilewright.profiling.node_times import measured_node_seconds
from tilewright.quantize.forms import LayerForm
from tilewright.quantize.layers import Layer
from tilewright.quantize.quantizer import Quantizer
from tilewright.quantize.session import InputSample
from tilewright.quantize.write import quantize_of, write_forms
from tilewright.stages import stages
from tilewright.support.affinity import pinned
from tilewright.support.errors import UserError
from tilewright.support.progress import OnProgress

_SECONDS = 1.0  # of each program


@dataclass(frozen=True, slots=True)
class FormTimes:
    """Seconds of layers by their names, in programs of one form; `total` is a run of it."""

    total: float
    layers: Mapping[str, float]


def time_forms(
    model: ModelProto,
    layers: Sequence[Layer],
    forms: Sequence[LayerForm],
    quantizer: Quantizer,
    sample: InputSample,
    *,
    threads: int,
    target: str,
    progress: OnProgress | None = None,
) -> dict[LayerForm, FormTimes]:
    owners = _owners(model, layers)
    found: dict[LayerForm, FormTimes] = {}
    for n, form in enumerate(forms):
        if progress is not None:
            progress(f"timing {form}", n, len(forms))
        own = [layer for layer in layers if layer.can_be(form)]
        if own:
            made = write_forms(model, own, {layer.name: form for layer in own}, quantizer)
            found[form] = _times(made, layers, owners, sample, threads, target)
    return found


def _times(
    model: ModelProto,
    layers: Sequence[Layer],
    owners: Mapping[str, str],
    sample: InputSample,
    threads: int,
    target: str,
) -> FormTimes:
    compiled = stages(model, shapes={n: a.shape for n, a in sample.items()}, target=target)
    if compiled.hosts:
        raise UserError(
            f"{compiled.hosts[0].step.name} runs on the host: layers after it cannot be timed",
            hint="quantise the parts of the model before and after it",
        )
    with pinned(threads), patient_workers():
        times = time_calls(compiled.artifact, sample, threads, _SECONDS)
    seconds = dict.fromkeys((layer.name for layer in layers), 0.0)
    readers: dict[str, list[str]] = {}
    for layer in layers:
        readers.setdefault(quantize_of(layer.reads), []).append(layer.name)
    for node, taken in measured_node_seconds(compiled, times.calls).items():
        if node in readers:
            for name in readers[node]:
                seconds[name] += taken / len(readers[node])
            continue
        owner = owners.get(node) or node.rpartition("/")[0]
        if owner in seconds:
            seconds[owner] += taken
    return FormTimes(median(times.totals), seconds)


def _owners(model: ModelProto, layers: Sequence[Layer]) -> dict[str, str]:
    """The layer that each node of the model belongs to, by their names."""
    names = {layer.node: layer.name for layer in layers}
    made: dict[str, str] = {}  # values, to the layers that they come from
    owners: dict[str, str] = {}
    for at, node in enumerate(model.graph.node):  # in order, as ONNX says
        owner = names.get(at) or next((made[i] for i in node.input if i in made), "")
        if owner:
            owners[node.name] = owner
            made.update(dict.fromkeys(node.output, owner))
    return owners
