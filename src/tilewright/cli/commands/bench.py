"""`tilewright bench`: its options."""

import click

from tilewright.cli.catalogue import PEERS, find_peers
from tilewright.cli.command import Command
from tilewright.cli.defaults import TIMEOUT
from tilewright.cli.dims import BENCH_DIM
from tilewright.cli.options import (
    ACCURACY,
    INPUT,
    JSON,
    MODEL,
    PLUGINS,
    SEED,
    SHAPE,
    TARGET,
    by_name,
    tolerance_option,
)
from tilewright.support.errors import UserError


def parse_engines(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """`ort,native`; the option may be repeated, and an engine counts once."""
    names = tuple(dict.fromkeys(n.strip() for v in values for n in v.split(",") if n.strip()))
    try:
        find_peers(names)
    except UserError as e:
        raise click.BadParameter(f"{e.message}.", ctx, param) from e
    return names


def parse_thread_counts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """`1` or `1,2`; none unless given."""
    if value is None:
        return ()
    words = [w.strip() for w in value.split(",")]
    if not all(w.isdecimal() and int(w) > 0 for w in words):
        raise click.BadParameter(
            f"{value!r} is not a number of threads, nor several such as 1,2.", ctx, param
        )
    return tuple(dict.fromkeys(map(int, words)))


COMMAND = Command(
    "bench",
    "tilewright.cli.bench:bench",
    """Time MODEL (.onnx or .tw), alone or in turns with other engines.

    Every engine has a process of its own, pinned to as many cores as there are threads. One that is not installed, or
    cannot run the model, is reported and left out. Results are compared with ONNX Runtime's, or those of the first
    other engine; if ours differ, the exit status is 4.
    """,
    [
        MODEL,
        SHAPE,
        BENCH_DIM,
        INPUT,
        click.Option(
            ["--against"],
            multiple=True,
            callback=parse_engines,
            metavar="ENGINE[,…]",
            help=f"Other engines to take turns with: {', '.join(PEERS)}, or classes of your own as module:Class"
            " (found in PYTHONPATH; docs/cli.md says what they must have).",
        ),
        by_name(
            "--python",
            "pythons",
            "Interpreter that an engine is installed in [default: this one]",
            "ENGINE=PATH",
        ),
        click.Option(
            ["--threads", "thread_counts"],
            callback=parse_thread_counts,
            metavar="N[,M]",
            help="Worker threads of every engine, each count by itself [default: cores this process may use].",
        ),
        click.Option(
            ["--rounds"],
            default=7,
            show_default=True,
            type=click.IntRange(1),
            help="Turns of each engine.",
        ),
        click.Option(
            ["--seconds"], default=0.5, show_default=True, type=click.FloatRange(0), help="Of each turn."
        ),
        tolerance_option("Allowed error against the reference."),
        click.Option(
            ["--timeout"],
            default=TIMEOUT,
            show_default=True,
            type=click.FloatRange(0, min_open=True),
            help="Seconds in which an engine must load the model, or end a turn.",
        ),
        TARGET,
        ACCURACY,
        *PLUGINS,
        SEED,
        JSON,
    ],
)
