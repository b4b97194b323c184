"""Reads what a shell script would run, without running anything.

Assignments, arrays, quotes, ``$X``, ``${X:-default}``, ``"${X[@]}"`` and ``$((…))`` are followed; conditions and loops are
read straight through, and what only a shell could know (``$(date)``, a variable of the environment) stays empty.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from autopar.costmodel.spec.errors import Fault, InvalidInputError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_KEYWORDS = frozenset({"export", "local", "declare", "readonly", "then", "else", "do", "time", "exec", "env", "command", "{"})
_BREAKS = frozenset("\n;&|()")
MAX_WORDS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: its words, and the variables that were exported or set for it."""

    words: tuple[str, ...]
    environment: dict[str, str]


@dataclass(slots=True)
class _Reader:
    """Walks over a script; ``variables`` are what it has set so far."""

    text: str
    at: int = 0
    variables: dict[str, list[str]] = field(default_factory=dict)

    # -- words ------------------------------------------------------------------------------------------------------------

    def peek(self, ahead: int = 0) -> str:
        return self.text[self.at + ahead : self.at + ahead + 1]

    def take(self) -> str:
        char = self.peek()
        self.at += 1
        return char

    def word(self) -> list[str]:
        """The words that one word of the script becomes: none or several where a variable is spread."""
        done: list[str] = []
        current, quoted = "", False
        while (char := self.peek()) and not char.isspace() and (char not in _BREAKS):
            self.at += 1
            if char == "'":
                current, quoted = current + self._until("'"), True
            elif char == '"':
                spread = self._double_quoted()
                quoted = quoted or spread != []
                if spread:
                    current, done = self._joined(current, done, spread)
            elif char == "\\":
                current, quoted = current + self.take(), True
            elif char in "$`":
                pieces = [piece for value in self._expansion(char) for piece in value.split()]
                if pieces:
                    current, done = self._joined(current, done, pieces)
            else:
                current += char
        return [*done, current] if current or quoted else done

    @staticmethod
    def _joined(current: str, done: list[str], pieces: list[str]) -> tuple[str, list[str]]:
        first, *rest = pieces
        return (rest[-1], [*done, current + first, *rest[:-1]]) if rest else (current + first, done)

    def _until(self, end: str) -> str:
        stop = self.text.find(end, self.at)
        if stop < 0:
            line = self.text.count("\n", 0, self.at) + 1
            raise InvalidInputError(Fault(field="shell", given=f"line {line}", required=f"a quotation that ends in {end} is needed"))
        found = self.text[self.at : stop]
        self.at = stop + 1
        return found

    def _double_quoted(self) -> list[str]:
        """The pieces of a quoted word: one, or as many as an array in it has."""
        pieces = [""]
        spread = False
        while (char := self.take()) != '"':
            if not char:
                self.at -= 1
                self._until('"')
            if char == "\\" and self.peek() in '"\\$`\n':
                following = self.take()
                pieces[-1] += "" if following == "\n" else following
            elif char in "$`":
                is_array = self.text.startswith("@", self.at) or re.match(r"\{[A-Za-z_]\w*\[@\]", self.text[self.at : self.at + 80])
                values = self._expansion(char)
                spread = spread or bool(is_array)
                first, *rest = (values if is_array else [" ".join(values)]) or [""]
                pieces[-1] += first
                pieces += rest
            else:
                pieces[-1] += char
        return [] if spread and pieces == [""] else pieces

    # -- expansions -------------------------------------------------------------------------------------------------------

    def _expansion(self, opened: str) -> list[str]:
        """What ``$…`` or a backquoted command stands for, as a list; empty where only a shell could know."""
        if opened == "`":
            self._until("`")
            return [""]
        if self.text.startswith("((", self.at):
            self.at += 2
            inner = self._until("))")
            named = _NAME.sub(lambda match: " ".join(self.variables.get(match[0], ["0"])), self._substituted(inner))
            return [_arithmetic(named)]
        if self.peek() == "(":
            self._skip_brackets()
            return [""]
        if self.peek() == "{":
            self.at += 1
            return self._braced(self._until("}"))
        match = _NAME.match(self.text, self.at)
        if match is None:
            self.at += 1
            return []
        self.at = match.end()
        return self.variables.get(match[0], [])

    def _skip_brackets(self) -> None:
        depth = 0
        while char := self.take():
            depth += (char == "(") - (char == ")")
            if depth == 0:
                return

    def _braced(self, inner: str) -> list[str]:
        match = _NAME.match(inner)
        if match is None:
            return []
        value, rest = self.variables.get(match[0], []), inner[match.end() :]
        if rest.startswith("["):
            return value
        if rest.startswith((":-", "-", ":=", "=")) and not "".join(value):
            return [self._substituted(rest.lstrip(":").removeprefix("-").removeprefix("=").strip("\"'"))]
        return value

    def _substituted(self, text: str) -> str:
        """``text`` with its variables filled in."""
        inner = _Reader(text, variables=self.variables)
        out = ""
        while char := inner.take():
            out += " ".join(inner._expansion(char)) if char == "$" else char
        return out

    # -- statements -------------------------------------------------------------------------------------------------------

    def commands(self) -> Iterator[Command]:
        """Every command of the script, in order."""
        exported: dict[str, str] = {}
        while self.at < len(self.text):
            words, own = self._statement(exported)
            if words:
                yield Command(words=tuple(words[:MAX_WORDS]), environment={**exported, **own})

    def _statement(self, exported: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        words: list[str] = []
        own: dict[str, str] = {}
        exports = False
        while (char := self.peek()) and char not in "\n;&|":
            if char.isspace() or char in "()":
                self.at += 1
            elif char == "#":
                self._skip_line()
            elif not words and (match := _ASSIGNMENT.match(self.text, self.at)):
                own[match[1]] = self._assign(match)
            else:
                found = self.word()
                exports = exports or (not words and found == ["export"])
                words += [] if not words and found and found[0] in _KEYWORDS else found
        self.at += 1
        if exports or not words:
            exported.update(own)
        return words, own

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _assign(self, match: re.Match[str]) -> str:
        self.at = match.end()
        value = self._array() if self.peek() == "(" else [" ".join(self.word())]
        before = self.variables.get(match[1], []) if match[2] else []
        is_text = len(value) == 1 and len(before) == 1 and self.text[match.end() : match.end() + 1] != "("
        self.variables[match[1]] = [before[0] + value[0]] if is_text else [*before, *value]
        return " ".join(self.variables[match[1]])

    def _array(self) -> list[str]:
        self.at += 1
        words: list[str] = []
        while (char := self.peek()) and char != ")":
            if char == "#":
                self._skip_line()
            elif char.isspace() or char in _BREAKS:
                self.at += 1
            else:
                words += self.word()
        self.at += 1
        return words


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


def _arithmetic(text: str) -> str:
    """The value of a whole-number expression; nothing where it is another."""
    try:
        return str(_value(ast.parse(text.strip()[:200], mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return ""


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
    raise ValueError


def read_commands(text: str) -> list[Command]:
    """The commands of a script or of one command line.

    Raises:
        InvalidInputError: a quotation does not end.
    """
    plain = text.replace("\r\n", "\n").replace("\\\n", " ")
    return list(_Reader(plain).commands())


def batch_directives(text: str) -> dict[str, str]:
    """``#SBATCH --name=value`` lines."""
    return dict(re.findall(r"^#SBATCH\s+--([\w-]+)(?:[= ]\s*(\S+))?", text, re.MULTILINE))
