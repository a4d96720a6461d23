"""A model on larger batches: the same network with another first dimension.

    python -m benchmarks.batched resnet50.onnx --batch 8 --out FOLDER

writes `resnet50_batch8.onnx`, and beside it inputs and what ONNX Runtime makes of them, as the benchmark suite keeps
them.
"""

from pathlib import Path

import click
import numpy as np
from onnx import GraphProto, ModelProto, ValueInfoProto, numpy_helper, shape_inference

from benchmarks.onnx_runtime import BoundOnnxRuntime
from tilewright.cli.feeds import make_feeds


def with_batch(model: ModelProto, batch: int) -> ModelProto:
    """The model with first dimensions of `batch` instead of 1. A Reshape to a shape that begins with 1 is taken to keep
    the batch; shape inference must agree that every output then has it.
    """
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    weights = {t.name for t in graph.initializer}
    del graph.value_info[:]
    for value in (*(i for i in graph.input if i.name not in weights), *graph.output):
        dims = value.type.tensor_type.shape.dim
        if not dims or dims[0].dim_value != 1:
            raise click.ClickException(f"{value.name} has no first dimension of 1 that could be a batch")
        dims[0].dim_value = batch
    _reshape(graph, batch)
    wanted = {o.name: _shape(o) for o in graph.output}
    bare = ModelProto()
    bare.CopyFrom(made)
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = shape_inference.infer_shapes(bare, check_type=True, strict_mode=True, data_prop=True)
    for output in inferred.graph.output:
        if _shape(output) != wanted[output.name]:
            raise click.ClickException(
                f"{output.name} would be {_shape(output)} instead of {wanted[output.name]}: the model mixes its batch"
            )
    return made


def write_batched(source: Path, batch: int, target: Path) -> None:
    """From file to file; weights must be inside of it."""
    target.write_bytes(with_batch(ModelProto.FromString(source.read_bytes()), batch).SerializeToString())


def _shape(value: ValueInfoProto) -> list[int]:
    return [d.dim_value for d in value.type.tensor_type.shape.dim]


def _reshape(graph: GraphProto, batch: int) -> None:
    shapes = {n.input[1] for n in graph.node if n.op_type == "Reshape"}
    for tensor in graph.initializer:
        if tensor.name in shapes:
            shape = numpy_helper.to_array(tensor).copy()
            if shape.size and shape[0] == 1:
                shape[0] = batch
                tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))


@click.command()
@click.argument(
    "models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--batch", default=8, show_default=True, type=click.IntRange(2))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path))
def main(models: tuple[Path, ...], batch: int, out: Path) -> None:
    """Write MODELS with a larger batch to a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for path in models:
        target = out / f"{path.stem}_batch{batch}.onnx"
        write_batched(path, batch, target)
        engine = BoundOnnxRuntime(str(target), threads=1)
        feeds = make_feeds(engine.inputs, {})
        results = engine(feeds)
        arrays = {f"in{n}": v for n, v in enumerate(feeds.values())}
        arrays |= {f"out{n}": v for n, v in enumerate(results.values())}
        np.savez(target.with_suffix(".npz"), allow_pickle=False, **arrays)
        click.echo(str(target.name))


if __name__ == "__main__":
    main()
