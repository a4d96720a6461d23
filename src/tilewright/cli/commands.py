"""The commands: name, options, help, and where the work is. What is shared between them is in `options`.

Nothing here imports the compiler, numpy or onnx (`command` says why); a test holds parameters of the functions to the
options.
"""

import re
from pathlib import Path

import click

from tilewright.cli.catalogue import PEERS, find_peers
from tilewright.cli.command import Command
from tilewright.cli.defaults import TIMEOUT, TOLERANCE
from tilewright.cli.options import (
    ACCURACY,
    CHECK_INDICES,
    INPUT,
    JSON,
    MODEL,
    PLUGINS,
    SEED,
    SHAPE,
    TARGET,
    THREADS,
    parse_assignments,
)
from tilewright.support.budget import DEFAULT_BUDGET
from tilewright.support.errors import UserError

STAGES = ("graph", "tir", "scheduled", "lowered", "llvm", "asm")

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


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


def parse_bytes(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """`512MB`, `1GB`, `2GiB`, or a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmg]?i?)b?", value.strip().lower())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise click.BadParameter(f"{value!r} is not an amount of memory such as 512MB.", ctx, param)
    return int(float(match[1]) * _UNITS[match[2]])


RUN = Command(
    "run",
    "run:run",
    "Run MODEL (.onnx or .tw) once on files or random numbers.",
    [
        MODEL,
        SHAPE,
        INPUT,
        click.Option(
            ["--output", "saves"],
            multiple=True,
            callback=parse_assignments,
            metavar="NAME=FILE.npy",
            help="Write an output to a file; may be repeated.",
        ),
        click.Option(
            ["--expect", "expected"],
            multiple=True,
            callback=parse_assignments,
            metavar="NAME=FILE.npy",
            help="Compare an output with a file, and exit with 4 if it differs; may be repeated.",
        ),
        click.Option(
            ["--tolerance"],
            default=TOLERANCE,
            show_default=True,
            help="Of --expect, relative to the largest magnitude.",
        ),
        THREADS,
        TARGET,
        ACCURACY,
        CHECK_INDICES,
        *PLUGINS,
        SEED,
        JSON,
    ],
)

COMPILE = Command(
    "compile",
    "compile:compile_model",
    """Compile MODEL (.onnx) to a program (.tw).

    The program is native code: run it only if you trust where it came from.
    """,
    [
        MODEL,
        click.Option(
            ["-o", "--output"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Where to write the program [default: MODEL's name, ending in .tw].",
        ),
        click.Option(
            ["--trace"],
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            help="Take the decisions in this file, and decide only what it leaves open.",
        ),
        click.Option(
            ["--trace-out"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write all decisions to a file, to look at, change and compile with again.",
        ),
        SHAPE,
        TARGET,
        ACCURACY,
        CHECK_INDICES,
        *PLUGINS,
        JSON,
    ],
)

INSPECT = Command(
    "inspect",
    "inspect:inspect",
    """Show what MODEL becomes: a summary (.onnx or .tw), its text at one stage (.onnx), or its profile (.onnx or .tw).

    \b
    graph      operators, after import
    tir        loops and blocks, as lowered from the graph
    scheduled  the same after layouts and loops were chosen
    lowered    kernels as plain loops
    llvm, asm  kernels as LLVM IR and as machine code
    """,
    [
        MODEL,
        click.Option(
            ["--ir"],
            type=click.Choice(STAGES),
            help="Print the program at this stage instead of a summary.",
        ),
        click.Option(
            ["--kernel"], metavar="NAME", help="Only this kernel of the stage, by its name or a part of it."
        ),
        click.Option(
            ["--trace"], is_flag=True, help="Print all decisions that make the program (.onnx or .tw)."
        ),
        click.Option(
            ["--placement"],
            is_flag=True,
            help="Show what plugins (--plugin) were asked, and what they run.",
        ),
        click.Option(
            ["--svg"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Draw the placement: the graph, coloured by who runs what.",
        ),
        click.Option(["--profile"], is_flag=True, help="Run the model, and show where its time goes."),
        click.Option(
            ["--seconds"],
            default=1.0,
            show_default=True,
            type=click.FloatRange(0),
            help="How long --profile runs it.",
        ),
        THREADS,
        INPUT,
        SEED,
        SHAPE,
        TARGET,
        ACCURACY,
        CHECK_INDICES,
        *PLUGINS,
        JSON,
    ],
)

BENCH = Command(
    "bench",
    "bench:bench",
    """Time MODEL (.onnx or .tw), alone or in turns with other engines.

    Every engine has a process of its own, pinned to as many cores as there are threads. One that is not installed, or
    cannot run the model, is told and left out. Results are compared with ONNX Runtime's, or those of the first other
    engine; if ours differ, the exit status is 4.
    """,
    [
        MODEL,
        SHAPE,
        INPUT,
        click.Option(
            ["--against"],
            multiple=True,
            callback=parse_engines,
            metavar="ENGINE[,…]",
            help=f"Other engines to take turns with: {', '.join(PEERS)}, or classes of your own as module:Class"
            " (found in PYTHONPATH; docs/cli.md says what they must have).",
        ),
        click.Option(
            ["--python", "pythons"],
            multiple=True,
            callback=parse_assignments,
            metavar="ENGINE=PATH",
            help="Interpreter that an engine is installed in [default: this one]; may be repeated.",
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
        click.Option(
            ["--tolerance"],
            default=TOLERANCE,
            show_default=True,
            help="Allowed error against the reference.",
        ),
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

COMPARE = Command(
    "compare",
    "compare:compare",
    """Run MODEL (.onnx) here and in another engine, on files or random numbers, and compare the results.

    The exit status is 4 if they differ. An error is the largest difference over the largest magnitude of the
    reference; NaN and infinities must be in the same places, integers and strings equal.
    """,
    [
        MODEL,
        click.Option(
            ["--against"],
            type=click.Choice(["ort", "onnx", "reference"]),
            default="ort",
            show_default=True,
            help="ONNX Runtime, the reference of the onnx package, or our own operators in numpy.",
        ),
        SHAPE,
        INPUT,
        click.Option(
            ["--tolerance"],
            default=TOLERANCE,
            show_default=True,
            help="Allowed error of floats, relative to the largest magnitude of an output.",
        ),
        click.Option(
            ["--steps"],
            default=0,
            show_default=True,
            type=click.IntRange(0),
            help="Allowed difference of integers.",
        ),
        click.Option(["--bisect"], is_flag=True, help="Find the first node whose result differs."),
        click.Option(
            ["--memory"],
            default="1GB",
            show_default=True,
            callback=parse_bytes,
            help="For intermediate results while bisecting.",
        ),
        click.Option(
            ["--write", "folder"],
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Bisect, and write the smallest part of the model that differs, with its inputs.",
        ),
        THREADS,
        TARGET,
        ACCURACY,
        SEED,
        JSON,
    ],
)

TUNE = Command(
    "tune",
    "tune:tune",
    """Measure schedules for the kernels of MODEL (.onnx). What is found is used whenever it is compiled again.

    Every measurement goes to the database of the user at once. Ctrl-C ends the search and keeps what was found.
    """,
    [
        MODEL,
        click.Option(
            ["--budget"], default=DEFAULT_BUDGET, show_default=True, help="How long: 60s, 5m, 1.5h."
        ),
        click.Option(["--trials"], type=click.IntRange(1), help="At most so many candidates."),
        click.Option(
            ["--threads"],
            default=1,
            show_default=True,
            type=click.IntRange(1),
            help="That a candidate runs on.",
        ),
        click.Option(
            ["--seed"], default=0, show_default=True, help="Of the search and of the random tensors."
        ),
        SHAPE,
        TARGET,
        ACCURACY,
        JSON,
    ],
)

DOCTOR = Command(
    "doctor",
    "doctor:doctor",
    """Check the installation and describe the machine.

    Exits with 1 if something that the compiler needs does not work.
    """,
    [
        click.Option(["--peak"], is_flag=True, help="Also measure arithmetic and memory speed of one core."),
        JSON,
    ],
)

COMMANDS = (RUN, COMPILE, INSPECT, BENCH, COMPARE, TUNE, DOCTOR)
