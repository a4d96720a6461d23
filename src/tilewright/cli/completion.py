"""`tilewright completion`: click's scripts for shells. They call `tilewright` itself, with a variable that says what is
to be completed; it answers from the options of commands, without the compiler.
"""

import json

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

PROGRAM_NAME, VARIABLE = "tilewright", "_TILEWRIGHT_COMPLETE"
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


def print_completion(shell: str, as_json: bool) -> None:
    script = SHELLS[shell](click.Group(PROGRAM_NAME), {}, PROGRAM_NAME, VARIABLE)
    # Not `source()`, which starts a bash to find out whether it is recent enough.
    text = script.source_template % script.source_vars()
    click.echo(json.dumps({"shell": shell, "script": text}, indent=2) if as_json else text)
