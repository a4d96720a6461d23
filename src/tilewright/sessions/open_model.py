"""A model with open dimensions as one program for all of their sizes, where its shapes can be followed."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tilewright.compiler import CompiledModel
from tilewright.frontend.onnx.load import OnnxModel as OnnxModel
from tilewright.frontend.onnx.open_import import NotFollowed as NotFollowed
from tilewright.frontend.onnx.open_import import import_open, open_dims
from tilewright.graph.graph import Graph
from tilewright.support.errors import Hint, UserError
from tilewright.support.sizes import Dim, Guard, SizeError, assuming

DimRange: TypeAlias = "int | Sequence[int]"  # a size, or (least, most), or (least, most, step)
CompileGraph: TypeAlias = Callable[[Graph, tuple[Guard, ...]], CompiledModel]


def dims_of(model: OnnxModel, given: Mapping[str, DimRange]) -> dict[str, Dim]:
    """The open dimensions of a model with the ranges that are given for them."""
    names = open_dims(model.specs)
    for name in given:
        if name not in names:
            known = ", ".join(names) or "none"
            raise UserError(
                f"a range is given, and the model has no open dimension {name!r}",
                hint=f"its open ones are: {known}",
            )
    missing = [n for n in names if n not in given]
    if missing:
        raise UserError(
            f"the range of the open dimension {missing[0]!r} is not given",
            hint=Hint(
                f"give one to each: dims={{{', '.join(f'{n!r}: (1, 512)' for n in missing)}}}",
                command=f"give one to each: {' '.join(f'--dim {n}=1..512' for n in missing)}",
            ),
        )
    return {n: _dim(n, given[n]) for n in names}


def _dim(name: str, given: DimRange) -> Dim:
    least, most, step = (given, given, 1) if isinstance(given, int) else (*given, 1)[:3]
    if not 1 <= least <= most or step < 1 or most < step:
        raise UserError(
            f"{given} is no range of sizes, for the dimension {name!r}", hint="write it as (least, most)"
        )
    return Dim(name, -(-least // step) * step, most // step * step, step)


def compile_open(model: OnnxModel, dims: Mapping[str, Dim], compile: CompileGraph) -> CompiledModel:
    """One program for all sizes in these ranges. UserError if shapes cannot be followed."""
    found = import_open(model, dims)
    try:
        with assuming(found.guards):
            return compile(found.graph, found.guards)
    except SizeError as e:
        raise NotFollowed(f"an operator of the model does not take open dimensions: {e}") from e
