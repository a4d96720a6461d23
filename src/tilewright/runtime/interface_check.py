"""Shapes and ranges that are asked of a program which is compiled already: they are what it has, or an error."""

from collections.abc import Mapping, Sequence

from tilewright.runtime.open_sizes import OutOfRange
from tilewright.support.artifact import Manifest
from tilewright.support.errors import Hint, UserError


def check_interface(
    manifest: Manifest,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int | Sequence[int]],
    where: str,
) -> None:
    """UserError if the program does not take inputs of these shapes, or sizes of dimensions in these ranges."""
    inputs = {s.name: s for s in manifest.given}
    for name, shape in shapes.items():
        spec = inputs.get(name)
        if spec is None:
            raise UserError(
                f"the program has no input {name!r}", where=where, hint=f"it has {', '.join(inputs)}"
            )
        if spec.sizes:
            raise UserError(
                f"shapes are given, and the program is made for {', '.join(map(str, manifest.dims))}",
                where=where,
                hint=Hint("leave them out: a run takes any size", command="give sizes: --dim NAME=SIZE"),
            )
        if tuple(shape) != spec.shape:
            raise UserError(
                f"{name} is {list(shape)}, and the program is made for {list(spec.shape)}",
                where=where,
                hint="compile the model for these shapes",
            )
    ranges = {d.name: d for d in manifest.dims}
    for name, asked in dims.items():
        least, most = (asked, asked) if isinstance(asked, int) else (asked[0], asked[1])
        dim = ranges.get(name)
        if dim is not None and not dim.least <= least <= most <= dim.most:
            wanted = str(least) if least == most else f"from {least} to {most}"
            raise OutOfRange(
                f"{name} is {wanted}, and the program is made for {dim}",
                where=where,
                hint=Hint(
                    f"compile the model with a wider range: dims={{{name!r}: (…, …)}}",
                    command=f"compile the model with a wider range: --dim {name}=LEAST..MOST",
                ),
            )
