"""`tilewright doctor`: its options."""

import click

from tilewright.cli.command import Command
from tilewright.cli.options import JSON

COMMAND = Command(
    "doctor",
    "tilewright.cli.doctor:doctor",
    """Check the installation and describe the machine.

    Exits with 1 if something that the compiler needs does not work.
    """,
    [
        click.Option(["--peak"], is_flag=True, help="Also measure arithmetic and memory speed of one core."),
        click.Option(
            ["--calibrate"],
            is_flag=True,
            help="Measure clock, ports, bandwidths and meetings, and keep them: later programs are compiled for them.",
        ),
        JSON,
    ],
)
