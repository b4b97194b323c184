"""Exit codes, streams and help: what holds for every command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import autopar as package
from autopar.cli import app
from autopar.cli.app import COMMANDS, cli
from autopar.cli.options import WholeNumber
from autopar.costmodel.spec.errors import Fault, InvalidInputError, NoPlanError, UnavailableError

ROOT = Path(__file__).parents[3]


def test_version(autopar) -> None:
    outcome = autopar("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"autopar {package.__version__}\n", "")


@pytest.mark.parametrize("path", [[], *([name] for name in COMMANDS), ["catalog", "list"], ["catalog", "show"]])
def test_help_shows_examples(autopar, path: list[str]) -> None:
    outcome = autopar(*path, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    assert "autopar" in outcome.out
    assert path == ["catalog"] or path == ["doctor"] or "xample" in outcome.out


def test_commands_are_the_modules_of_the_folder() -> None:
    context = click.Context(cli)
    assert all(isinstance(cli.get_command(context, name), click.Command) for name in COMMANDS)
    assert cli.get_command(context, "app") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plna"], "No such command 'plna'. Did you mean 'plan'?"),
        (["plan"], "Missing option '--model'"),
        (["plan", "--model", "gpt-175b", "--gpus", "many"], "'many' is not a whole number from 1 to 10,000,000"),
        (["plan", "--model", "gpt-175b", "--gpus", "0"], "'0' is not a whole number from 1 to"),
        (["plan", "--model", "gpt-175b", "--gpus", "1,5"], "'1,5' is not a whole number"),
        (["plan", "--model", "gpt-175b", "--gppus", "8"], "No such option"),
        (["estimate"], "give --model, or a plan file"),
        (["estimate", "p.json", "--tp", "8"], "leave out --tp"),
        (["schema", "plot"], "'plot' is not one of"),
    ],
)
def test_bad_usage_is_one_message_and_code_2(autopar, arguments: list[str], message: str) -> None:
    outcome = autopar(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(("text", "number"), [("8", 8), ("1,024", 1024), ("1_000_000", 1_000_000), (8, 8)])
def test_whole_numbers_may_be_grouped(text: str | int, number: int) -> None:
    assert WholeNumber(1, 10**6).convert(text, None, None) == number


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            InvalidInputError([Fault(field="a", given="1", required="no"), Fault(field="b", given="", required="gone")]),
            2,
            "a=1: no\n       b: gone",
        ),
        (NoPlanError("nothing fits"), 1, "nothing fits"),
        (UnavailableError("no GPU"), 3, "no GPU"),
        (
            ZeroDivisionError("division by zero"),
            4,
            "internal error, a bug in autopar: ZeroDivisionError: division by zero; set AUTOPAR_DEBUG=1",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_its_message_and_its_code(
    autopar, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("autopar.io.codec.json_schema", fail)
    monkeypatch.delenv("AUTOPAR_DEBUG", raising=False)
    outcome = autopar("schema", "plan")
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.err.startswith(f"error: {message}")


def test_debug_shows_where_a_bug_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("here")

    monkeypatch.setattr("autopar.io.codec.json_schema", fail)
    monkeypatch.setenv("AUTOPAR_DEBUG", "1")
    assert app.run(["schema", "plan"]) == 4
    assert "Traceback" in capsys.readouterr().err


def start(*arguments: str, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "autopar", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def test_a_reader_that_leaves_early_is_no_error() -> None:
    process = start("schema", "plan")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_an_interrupt_is_code_130() -> None:
    code = "import os, signal; from autopar.cli import app; import autopar.io.codec as c; "
    code += "c.json_schema = lambda kind: os.kill(os.getpid(), signal.SIGINT); app.main(['schema', 'plan'])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 128 + signal.SIGINT
    assert result.stderr == "error: interrupted\n"


def test_an_interrupt_while_modules_load_is_code_130() -> None:
    code = "import sys; from autopar.cli import main\nclass Interrupting:\n  def find_spec(self, name, path=None, target=None):\n"
    code += "    if name == 'click': raise KeyboardInterrupt\nsys.meta_path.insert(0, Interrupting()); main(['schema', 'plan'])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 128 + signal.SIGINT
    assert result.stderr == "error: interrupted\n"


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_closed_streams_lose_what_is_written(closed: str) -> None:
    command = f'"$0" -m autopar catalog list frameworks {closed}'
    result = subprocess.run(["sh", "-c", command, sys.executable], cwd=ROOT, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(autopar, shell: str) -> None:
    outcome = autopar("completion", shell)
    assert outcome.code == 0
    assert "_AUTOPAR_COMPLETE" in outcome.out


def test_completion_knows_the_catalog() -> None:
    words = "autopar plan --gpu h100-s"
    environment = {**os.environ, "_AUTOPAR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
    process = start(env=environment)
    out, _ = process.communicate(timeout=60)
    assert "plain,h100-sxm5-80gb" in out.decode().splitlines()


def test_a_full_disk_is_no_bug() -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "autopar", "schema", "plan"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert result.returncode == 3
    assert b"the result cannot be written: No space left on device" in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_a_terminal_of_another_alphabet_is_written_to() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    out, err = start("plan", "--help", env=environment).communicate(timeout=60)
    assert b"--fix" in out
    assert err == b""
