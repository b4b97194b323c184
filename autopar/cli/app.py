"""The command group and the one place where errors become messages and exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click
from click.shell_completion import shell_complete

import autopar

EXIT_BAD_INPUT, EXIT_ABSENT, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 3, 4, 130, 141

COMPLETE_VARIABLE = "_AUTOPAR_COMPLETE"
COMMANDS = (
    "plan", "estimate", "explain", "compare", "whatif", "size", "export", "import", "run", "profile", "calibrate", "accuracy",
    "catalog", "schema", "doctor", "completion",
)  # fmt: skip

MODULES = {"import": "import_"}
"""Commands whose module cannot have their name, which is a word of the language."""

EPILOG = """\b
Examples:
  autopar plan --model gpt-175b --gpus 256
  autopar plan --model ./config.json --gpus 64 --gpu a100-sxm4-80gb -o plan.json
  autopar explain plan.json
  autopar whatif plan.json
  autopar size --model llama3-70b --tokens 15T --deadline 60d --price 2.5
  autopar catalog list models

\b
Exit codes: 0 done, 1 the answer is no (nothing fits, refused), 2 bad input,
  3 hardware or data absent, 4 a bug in autopar, 130 interrupted.
"""


class LazyGroup(click.Group):
    """Loads a command's module when the command is named, so that each starts with its own imports alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"autopar.cli.{MODULES.get(cmd_name, cmd_name)}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            raise click.UsageError(f"{error.message}{f' Did you mean {close[0]!r}?' if close else ''}", ctx) from None


@click.group(
    cls=LazyGroup,
    name="autopar",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(autopar.__version__, prog_name="autopar", message="%(prog)s %(version)s")
def cli() -> None:
    """Plan how to train a large model on a cluster: the fastest tensor, pipeline, data, expert and
    context parallel configuration that fits, and why."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    # Arrays here are small: a second thread of numpy's linear algebra only spins, and starting it takes longer than the work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character shows another, and nothing fails
            stream.reconfigure(errors="replace" if stream is sys.stdout else "backslashreplace")
    sys.exit(run(arguments))


def _open_closed_streams() -> None:
    """Streams that the caller closed (``>&-``) take what is written, and lose it: Python has None in their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for as long as the process


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code, and lets no exception out."""
    try:
        code = _invoke(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        return _usage(error)
    except Exception as error:
        return _failure(error)
    return code


def _invoke(arguments: list[str]) -> int:
    """What ``click.Command.main`` does, without its own ways of ending: it exits with 1 on a broken pipe, which means "no" here."""
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        return shell_complete(cli, {}, "autopar", COMPLETE_VARIABLE, instruction)
    try:
        with cli.make_context("autopar", arguments) as context:
            cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    return 0


def _usage(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
        return EXIT_BAD_INPUT
    context = getattr(error, "ctx", None)
    hint = f" (`{context.command_path} --help` lists the options)" if context is not None else ""
    _say(f"{error.format_message()}{hint}")
    return EXIT_BAD_INPUT


def _failure(error: Exception) -> int:
    if os.environ.get("AUTOPAR_DEBUG"):
        import traceback

        traceback.print_exception(error)
    message, code = describe(error)
    _say(message)
    if isinstance(error, OSError):
        _silence_stdout()
    return code


def describe(error: Exception) -> tuple[str, int]:
    """What a person is told of ``error``, and the exit code it means."""
    from autopar.costmodel.spec.errors import AutoparError, InvalidInputError, UnknownNameError

    if isinstance(error, InvalidInputError) and not isinstance(error, UnknownNameError):
        return "\n".join(map(str, error.faults)), error.exit_code
    if isinstance(error, AutoparError) and error.exit_code != EXIT_INTERNAL:
        return str(error), error.exit_code
    if isinstance(error, OSError):  # a full disk, a data file that was removed: the machine's fault, not a bug
        named = error.filename is not None or not error.strerror
        return str(error) if named else f"the result cannot be written: {error.strerror}", EXIT_ABSENT
    detail = str(error).splitlines()
    hint = "" if os.environ.get("AUTOPAR_DEBUG") else "; set AUTOPAR_DEBUG=1 for the traceback"
    return f"internal error, a bug in autopar: {type(error).__name__}{': ' + detail[0] if detail else ''}{hint}", EXIT_INTERNAL


def _say(message: str) -> None:
    """One error message; the lines after the first are indented under it."""
    first, *rest = message.splitlines() or [""]
    try:
        click.echo("\n".join([f"error: {first}", *(f"       {line}" for line in rest)]), err=True)
    except OSError:
        return


def _silence_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush does not complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
