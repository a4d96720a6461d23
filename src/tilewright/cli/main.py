"""The `tilewright` command: what goes where, and which status a run ends with.

Results go to stdout, messages to stderr. The exit status is part of the interface:

    0    done
    1    the input is at fault (model, file, option value): a message without a traceback
    2    the command line is at fault
    3    we are at fault: a traceback worth reporting
    4    the model ran, and its result is not what was asked for
    130  interrupted
"""

import os
import sys
import traceback
from typing import Any, NoReturn

import click

from tilewright.cli import commands
from tilewright.cli.interrupts import is_interrupt
from tilewright.cli.status import ExitStatus
from tilewright.cli.verbosity import QUIET, VERBOSE, reset_verbosity
from tilewright.support.errors import UserError
from tilewright.support.extensions import load_extensions
from tilewright.version import __version__


class CommandGroup(click.Group):
    """Our commands and those of other packages; failures end in the documented exit statuses, whoever calls it."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        sys.exit(
            self._status(*args, **{**extra, "standalone_mode": False})
        )  # click gives every failure status 1

    def list_commands(self, ctx: click.Context) -> list[str]:
        load_extensions()
        return [*commands.COMMANDS, *sorted(commands.ADDED.items)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in commands.COMMANDS:
            load_extensions()
        return commands.COMMANDS.get(cmd_name) or commands.ADDED.items.get(cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitStatus.OK

    def _status(self, *args: Any, **extra: Any) -> int:
        try:
            reset_verbosity()
            return super().main(*args, **extra) or ExitStatus.OK
        except click.ClickException as e:
            e.show()
            return ExitStatus.USAGE if isinstance(e, click.UsageError) else ExitStatus.USER_ERROR
        except UserError as e:
            click.echo(f"error: {e.for_command()}", err=True)
            return ExitStatus.USER_ERROR
        except (Exception, KeyboardInterrupt) as e:
            if is_interrupt(e):
                click.echo("interrupted", err=True)
                return ExitStatus.INTERRUPTED
            click.echo(traceback.format_exc(), err=True)
            click.echo("This is a mistake of Tilewright's. Please report it with the text above.", err=True)
            return ExitStatus.INTERNAL_ERROR


@click.group(
    cls=CommandGroup,
    params=[VERBOSE, QUIET],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="tilewright")
def main() -> None:
    """Compile models to native programs, run them, look inside, measure and tune."""
