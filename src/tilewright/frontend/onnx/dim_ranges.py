"""Ranges of open dimensions, as a user gives them."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tilewright.frontend.onnx.open_import import open_dims
from tilewright.support.arrays import Shapes
from tilewright.support.errors import Hint, UserError
from tilewright.support.input_spec import InputSpec
from tilewright.support.sizes import Dim

DimRange: TypeAlias = int | Sequence[int]  # a size, or (least, most), or (least, most, step)


def check_ranges_alone(shapes: Shapes | None) -> None:
    if shapes:
        raise UserError(
            "ranges of dimensions and shapes of inputs are given",
            hint="leave one of them out; a range may be one size",
        )


def dims_of(specs: Sequence[InputSpec], given: Mapping[str, DimRange]) -> dict[str, Dim]:
    """The open dimensions of a model that takes these inputs, with the ranges that are given for them."""
    names = open_dims(specs)
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
    if not 0 <= least <= most or step < 1 or most < step or -(-least // step) > most // step:
        raise UserError(
            f"{given} is no range of sizes, for the dimension {name!r}",
            hint=Hint(
                "write it as (least, most), or (least, most, step)",
                command=f"write it as --dim {name}=LEAST..MOST, or {name}=LEAST..MOST:STEP",
            ),
        )
    return Dim(name, -(-least // step) * step, most // step * step, step)
