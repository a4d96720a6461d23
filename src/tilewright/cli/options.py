"""Options that several commands share, and how their values are read.

Nothing here imports the compiler, numpy or onnx: `--help` and a mistake on the command line need none of them.
"""

from pathlib import Path

import click

from tilewright.cli.defaults import TOLERANCE
from tilewright.ops.accuracy import DEFAULT, Accuracy
from tilewright.support.policy import Policy

PROGRAM = ".tw"  # what a compiled program's name ends in


def parse_assignments(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE`, repeatable. The last `=` separates, because names of tensors may contain one."""
    found: dict[str, str] = {}
    for value in values:
        name, _, rest = value.rpartition("=")
        if not (name and rest):
            raise click.BadParameter(f"{value!r} is not NAME=VALUE.", ctx, param)
        if name in found:
            raise click.BadParameter(f"{name!r} was given twice.", ctx, param)
        found[name] = rest
    return found


def parse_shapes(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """`NAME=1x3x224x224`, or `NAME=scalar`."""
    found: dict[str, tuple[int, ...]] = {}
    for name, text in parse_assignments(ctx, param, values).items():
        parts = [] if text == "scalar" else text.split("x")
        if not all(p.isdecimal() and int(p) > 0 for p in parts):
            raise click.BadParameter(f"{text!r} is not a shape such as 1x3x224x224.", ctx, param)
        found[name] = tuple(map(int, parts))
    return found


def parse_accuracy(ctx: click.Context, param: click.Parameter, value: str | None) -> Accuracy | None:
    """None if it was not given: a compiled program is taken as it is."""
    return None if value is None else Accuracy.of(value)


MODEL = click.Argument(["model"], type=click.Path(path_type=Path))

SHAPE = click.Option(
    ["--shape", "shapes"],
    multiple=True,
    callback=parse_shapes,
    metavar="NAME=1x3x224x224",
    help="Shape of an input whose file leaves it open; may be repeated.",
)


def by_name(flag: str, variable: str, help: str, metavar: str = "NAME=FILE.npy") -> click.Option:
    """An option that is given once for each name."""
    return click.Option(
        [flag, variable],
        multiple=True,
        callback=parse_assignments,
        metavar=metavar,
        help=f"{help}; may be repeated.",
    )


def tolerance_option(help: str) -> click.Option:
    return click.Option(["--tolerance"], default=TOLERANCE, show_default=True, help=help)


INPUT = by_name("--input", "files", "Value of an input, where others get random numbers")

SEED = click.Option(["--seed"], default=0, show_default=True, help="Of the random inputs.")

THREADS = click.Option(
    ["--threads"],
    type=click.IntRange(min=1),
    help="Worker threads [default: cores this process may use].",
)

TARGET = click.Option(
    ["--target"],
    default="native",
    show_default=True,
    help="Machine to compile for: native, x86-64, x86-64-v3 or x86-64-v4.",
)

ACCURACY = click.Option(
    ["--accuracy"],
    callback=parse_accuracy,
    metavar="BOUND|exact",
    help="Error that a quicker algorithm may add to a layer, relative to its largest output; exact: plain sums only"
    f" [default: TILEWRIGHT_ACCURACY, or {DEFAULT}].",
)

CHECK_INDICES = click.Option(
    ["--check-indices/--no-check-indices", "check_indices"],
    default=None,
    help="Indices out of range (of Gather, Scatter, …) are errors; otherwise the nearest element is taken"
    " [default: TILEWRIGHT_CHECK_INDICES, or no].",
)

PLUGINS = (  # `plugins`, `policy`, `strict` and `calibration`
    click.Option(
        ["--plugin", "plugins"],
        multiple=True,
        metavar="NAME",
        help="Let a plugin run parts of the model; may be repeated, in order of preference.",
    ),
    click.Option(
        ["--policy"],
        type=click.Choice([p.value for p in Policy]),
        default=Policy.MEASURED.value,
        show_default=True,
        help="How to decide what plugins run: by time, measured or estimated (model), or whatever they take.",
    ),
    click.Option(
        ["--strict"],
        is_flag=True,
        help="A plugin that fails is an error; otherwise native code takes over.",
    ),
    click.Option(
        ["--calibrate", "calibration"],
        multiple=True,
        metavar="FILE.npz",
        help="A sample of the model's inputs, by name, for plugins that quantize; may be repeated.",
    ),
)

COMPILING = (TARGET, ACCURACY, CHECK_INDICES, *PLUGINS)

DB = click.Option(
    ["--db"],
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The tuning database [default: TILEWRIGHT_DB, or tuning.db in the user's data folder].",
)

JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object on stdout.")
