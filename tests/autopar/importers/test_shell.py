"""Scripts are read as a shell would run them, and never run."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.importers.launcher import flag_values, read_launch
from autopar.importers.shell import read_commands

WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)


@given(st.lists(WORDS, min_size=1, max_size=6))
def test_quoted_words_come_back(words: list[str]) -> None:
    line = " ".join(map(shlex.quote, ["run", *words]))
    (command,) = read_commands(line)
    assert list(command.words) == ["run", *words]


SCRIPTS = [
    "A=1\nprintf '%s\\0' --a $A ${B:-2} \"$A b\"",
    "X=(--a 1 --b 'c d')\nprintf '%s\\0' \"${X[@]}\" --e",
    "OPTS=\" --a 1 \\\n --b 2 \"\nprintf '%s\\0' $OPTS",
    "TP=4; PP=2\nprintf '%s\\0' --gpus $((TP * PP * 2)) --x=$TP",
    "X=(--a)\nX+=(--b 1)\nprintf '%s\\0' ${X[@]} # a remark",
    "export A=1 B='x y'\nprintf '%s\\0' \"$B\" \"it's $A\" \\$A",
    "E=()\nprintf '%s\\0' \"${E[@]}\" end",
    'A="a" && printf \'%s\\0\' pre"$A"post',
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", SCRIPTS)
def test_bash_sees_the_same_words(script: str) -> None:
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=20)
    words = next(command.words for command in read_commands(script) if command.words and command.words[0] == "printf")
    assert list(words[2:]) == done.stdout.split("\0")[:-1]


def test_an_open_quotation_is_one_clear_message() -> None:
    with pytest.raises(InvalidInputError, match="line 2: a quotation that ends in '"):
        read_commands("a\nb 'c")


@settings(max_examples=200)
@given(st.text(st.sampled_from("ab $'\"{}()[]\\#\n;|&`*=-@:+0"), max_size=40))
def test_no_text_is_run_or_crashes(text: str) -> None:
    with contextlib.suppress(InvalidInputError):
        read_commands(text)


def test_what_a_shell_alone_could_know_is_empty() -> None:
    (command,) = read_commands('python train.py --date "$(date)" --home `pwd` --x "$UNSET"')
    assert command.words == ("python", "train.py", "--date", "", "--home", "--x", "")


@pytest.mark.parametrize(
    ("line", "world"),
    [
        ("torchrun --nproc-per-node 8 --nnodes=4 pretrain_gpt.py --a", 32),
        ("torchrun --nproc_per_node=8 --nnodes 1:4 pretrain_gpt.py --a", 32),
        ("python -m torch.distributed.run --nproc-per-node=4 train.py --a", 4),
        ("deepspeed --num_gpus 8 --num_nodes 2 train.py --a", 16),
        ("accelerate launch --num_processes 16 --num_machines 2 train.py --a", 16),
        ("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun python pretrain_gpt.py --a", 32),
        ("NGPU=8 ./run_train.sh --a", 0),
        ("python pretrain_gpt.py --a", 0),
        ("--num-layers 2", 0),
    ],
)
def test_launchers_say_how_many_processes_there_are(line: str, world: int) -> None:
    assert read_launch(line).world_size == world


def test_flags_take_as_many_words_as_they_are_known_to() -> None:
    values, stray, faults = flag_values(["a", "--one", "1", "x", "--off", "y", "--many", "p", "q", "--new", "3", "--equal=4"],
                                        {"one": "1", "off": "0", "many": "+", "equal": "1"})  # fmt: skip
    assert values == {"one": "1", "off": True, "many": ("p", "q"), "new": "3", "equal": "4"}
    assert stray == ["a", "x", "y"]
    assert not faults
    _, _, faults = flag_values(["--one", "1", "--one", "2", "--two"], {"one": "1", "two": "1"})
    assert [fault.field for fault in faults] == ["--one", "--two"]
