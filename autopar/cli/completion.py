"""``autopar completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

EPILOG = """\b
Examples:
  bash:  autopar completion bash > ~/.local/share/bash-completion/completions/autopar
  zsh:   autopar completion zsh > ~/.zfunc/_autopar     (with ~/.zfunc in fpath)
  fish:  autopar completion fish > ~/.config/fish/completions/autopar.fish
"""


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Print the completion script of a shell."""
    from .app import COMPLETE_VARIABLE, cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(cli, {}, "autopar", COMPLETE_VARIABLE).source())
