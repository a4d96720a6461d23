"""A model compiled as `bench` times it: without a cache, which would hide the compiler."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.compiler import CompiledModel, compile_for, compile_open
from tilewright.frontend.onnx.dim_ranges import dims_of
from tilewright.frontend.onnx.load import OnnxModel
from tilewright.ops.accuracy import Accuracy
from tilewright.placement.options import PluginOptions
from tilewright.plugins.registry import find_plugins
from tilewright.support.arrays import Shapes
from tilewright.support.indices import are_checked
from tilewright.support.progress import OnProgress
from tilewright.target.names import resolve_target


def compile_uncached(
    model: Path,
    shapes: Shapes,
    dims: Mapping[str, Sequence[int]],
    target: str,
    accuracy: Accuracy,
    progress: OnProgress,
    plugin_options: PluginOptions,
) -> CompiledModel:
    machine, is_checked = resolve_target(target), are_checked(None)
    if dims:
        others = find_plugins(plugin_options.plugins)
        with OnnxModel(model, custom_ops=others, check_indices=is_checked) as found:
            ranges = dims_of(found.specs, dims)
            return compile_open(
                machine, found, ranges, "", accuracy, progress=progress, plugin_options=plugin_options
            )
    return compile_for(
        machine,
        model,
        "",
        shapes,
        accuracy,
        progress=progress,
        plugin_options=plugin_options,
        check_indices=is_checked,
    )
