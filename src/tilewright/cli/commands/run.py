"""`tilewright run`: its options."""

from tilewright.cli.command import Command
from tilewright.cli.dims import RUN_DIM
from tilewright.cli.options import (
    COMPILING,
    INPUT,
    JSON,
    MODEL,
    SEED,
    SHAPE,
    THREADS,
    by_name,
    tolerance_option,
)

COMMAND = Command(
    "run",
    "tilewright.cli.run:run",
    "Run MODEL (.onnx or .tw) once on files or random numbers.",
    [
        MODEL,
        SHAPE,
        RUN_DIM,
        INPUT,
        by_name("--output", "saves", "Write an output to a file"),
        by_name("--expect", "expected", "Compare an output with a file, and exit with 4 if it differs"),
        tolerance_option("Of --expect, relative to the largest magnitude."),
        THREADS,
        *COMPILING,
        SEED,
        JSON,
    ],
)
