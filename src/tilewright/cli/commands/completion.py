"""`tilewright completion`: its options."""

import click

from tilewright.cli.command import Command
from tilewright.cli.options import JSON

COMMAND = Command(
    "completion",
    "tilewright.cli.completion:print_completion",
    """Print what makes SHELL complete commands and options of `tilewright`.

    bash: add to ~/.bashrc: eval "$(tilewright completion bash)". zsh: the same in ~/.zshrc. fish: tilewright completion
    fish > ~/.config/fish/completions/tilewright.fish
    """,
    [click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"])), JSON],
)
