"""Open dimensions on the command line: the range that a program is made for, and the sizes that it is run at.

    NAME=128               this size
    NAME=1..512            all sizes from 1 to 512
    NAME=0..512            nothing, too: a cache that is empty
    NAME=32..512:32        in steps of 32
    NAME=1..512@16,128     all of them; run at these
    NAME=1,16,128          from the least of these to the largest; run at these

Nothing here imports the compiler, numpy or onnx.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import click

from tilewright.cli.options import parse_assignments

_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class DimOption:
    """`sizes` are those to run at; none: not said."""

    least: int
    most: int
    step: int = 1
    sizes: tuple[int, ...] = ()

    @property
    def range(self) -> tuple[int, int, int]:
        return self.least, self.most, self.step


def parse_dim(text: str) -> DimOption | None:
    """None if it is not written as a dimension is."""
    head, at, tail = text.partition("@")
    match = _RANGE.fullmatch(head)
    if match is None:
        sizes = _sizes(head)
        return DimOption(min(sizes), max(sizes), 1, sizes) if sizes and not at else None
    least, most, step = (int(n) if n else 1 for n in match.groups())
    sizes = _sizes(tail)
    if not 0 <= least <= most or not most or step < 1 or (at and not sizes):
        return None
    if any(not least <= n <= most or n % step for n in sizes):
        return None
    return DimOption(least, most, step, sizes)


def _sizes(text: str) -> tuple[int, ...]:
    words = [w.strip() for w in text.split(",")]
    if not all(w.isdecimal() and int(w) > 0 for w in words):
        return ()
    return tuple(dict.fromkeys(map(int, words)))


def dim_option(most_sizes: int | None, help: str) -> click.Option:
    """`--dim`, of a command that runs a program at up to this many sizes of each dimension (None: any number)."""

    def parse(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, DimOption]:
        found: dict[str, DimOption] = {}
        for name, text in parse_assignments(ctx, param, values).items():
            dim = parse_dim(text)
            if (
                dim is None
                and parse_dim(text.partition("@")[0]) is not None
                and _sizes(text.partition("@")[2])
            ):
                raise click.BadParameter(f"{text!r} has sizes to run at outside of its range.", ctx, param)
            if dim is None:
                raise click.BadParameter(
                    f"{text!r} is neither a size such as 128 nor a range such as 1..512 or 32..512:32.",
                    ctx,
                    param,
                )
            fixed = dim.least == dim.most
            if most_sizes is not None and len(dim.sizes) > most_sizes and not fixed:
                allowed = "one size" if most_sizes else "no sizes"
                raise click.BadParameter(
                    f"{text!r} has sizes to run at, and {ctx.info_name} takes {allowed}:"
                    f" write {name}={dim.least}..{dim.most}.",
                    ctx,
                    param,
                )
            found[name] = dim
        return found

    return click.Option(
        ["--dim", "dims"],
        multiple=True,
        callback=parse,
        metavar="NAME=LEAST..MOST[:STEP]"
        + ("" if most_sizes == 0 else "[@SIZE]" if most_sizes else "[@SIZE,…]"),
        help=f"{help}; may be repeated.",
    )


COMPILED_DIM = dim_option(0, "Make one program for all sizes of an open dimension in a range, or for a size")
RUN_DIM = dim_option(
    1, "Make one program for all sizes of an open dimension in a range, and run it at a size [default: MOST]"
)
BENCH_DIM = dim_option(
    None,
    "Make one program for all sizes of an open dimension in a range, and time it at each of some sizes;"
    " NAME=1,16,128 is the range of these, at each of them",
)


def ranges_of(dims: Mapping[str, DimOption]) -> dict[str, Any]:
    """As `load` and `compile` take them."""
    return {name: d.range for name, d in dims.items()}


def sizes_of(dims: Mapping[str, DimOption]) -> list[dict[str, int]]:
    """Every combination of the sizes to run at; one, of nothing, if none are said."""
    said = {name: d.sizes for name, d in dims.items() if d.sizes}
    return [dict(zip(said, values, strict=True)) for values in product(*said.values())]


def sizes_text(sizes: Mapping[str, int], before: str = "") -> str:
    return before * bool(sizes) + ", ".join(f"{name} {size}" for name, size in sizes.items())
