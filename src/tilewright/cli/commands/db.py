"""`tilewright db`: its commands and their options."""

from pathlib import Path

import click

from tilewright.cli.command import Command, SubCommands
from tilewright.cli.options import DB, JSON

_FILE = click.Argument(["file"], type=click.Path(path_type=Path))
_FILES = click.Argument(
    ["files"], nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)

COMMAND = SubCommands(
    "db",
    "Look into the tuning database, merge others into it, and carry it from one machine to another.",
    [
        Command(
            "show",
            "tilewright.cli.db:show_database",
            """Show what was tuned: for which machines and threads, what was chosen, and what of it is stale.

            Stale is what was chosen with other scheduling rules than today's. It is used where it still fits; the next
            tuning times it again.
            """,
            [DB, JSON],
        ),
        Command(
            "merge",
            "tilewright.cli.db:merge_databases",
            """Add the rows of other databases, each FILE of them. Rows that are there already are not added again.""",
            [_FILES, DB, JSON],
        ),
        Command(
            "export",
            "tilewright.cli.db:export_database",
            """Write all rows to FILE as text: a JSON object a line.""",
            [_FILE, DB, click.Option(["--force"], is_flag=True, help="Replace FILE, if there is one."), JSON],
        ),
        Command(
            "import",
            "tilewright.cli.db:import_rows",
            """Add the rows of a text that `export` has written: all of them, or none if a line is at fault.""",
            [_FILE, DB, JSON],
        ),
    ],
)
