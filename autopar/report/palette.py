"""The colours of every page and figure: named by what they stand for, one set for light paper and one for a dark screen.

Text has at least 4.5:1 against its ground and a mark at least 3:1 (WCAG 2.2 AA, 1.4.3 and 1.4.11); a test holds them to it.
"""

from __future__ import annotations

INK = {
    "ground": ("#ffffff", "#10151b"),
    "panel": ("#f4f6f8", "#1a212a"),
    "text": ("#1b2128", "#e4eaf0"),
    "muted": ("#55606c", "#a3b0bd"),
    "line": ("#d5dbe1", "#36414d"),
    "link": ("#0b5cad", "#6db3f2"),
    "good": ("#1a7f45", "#56c98a"),
    "bad": ("#b3261e", "#ff8a80"),
}
"""``(light, dark)`` of what a page is made of."""

MARKS = {
    "blue": ("#1f6fb4", "#5fa8e8"),
    "teal": ("#0d7d70", "#3cc4b1"),
    "purple": ("#7b54b8", "#b394ea"),
    "indigo": ("#4657c4", "#93a0ff"),
    "orange": ("#b45600", "#f0994a"),
    "red": ("#c4314b", "#f5768b"),
    "olive": ("#77730a", "#c9c04a"),
    "grey": ("#6b7480", "#9aa4b0"),
}
"""``(light, dark)`` of what is drawn."""

MEMORY = {
    "parameters": "blue",
    "gradients": "indigo",
    "master_weights": "purple",
    "optimizer_states": "teal",
    "activations": "orange",
    "logits_and_loss": "red",
    "communication_buffers": "olive",
    "framework_reserve": "grey",
}

COMPUTING, TALKING, WAITING = "computing", "waiting for communication", "idle and overhead"
GROUPS = {COMPUTING: "blue", TALKING: "orange", WAITING: "grey"}
_WAITING_TERMS = ("pipeline_bubble", "host_launch", "overhead")

PASSES = {"forward": "blue", "backward": "teal", "weight part": "purple", "gradients": "orange", "optimizer": "indigo", "overhead": "grey"}

SERIES = (
    "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22",
    "#0b3c5d", "#b5651d", "#006d5b", "#c71585", "#4b5320", "#5f9ea0",
)  # fmt: skip
"""Of many series on white paper, where colour can only tell neighbours apart."""


def time_group(term: str) -> str:
    """Which of the three groups a term of the step time belongs to."""
    if term.startswith("exposed_"):
        return TALKING
    return WAITING if term in _WAITING_TERMS else COMPUTING


def light(mark: str) -> str:
    """A mark's colour on paper."""
    return MARKS[mark][0]


def variables(dark: bool) -> str:
    """All colours as CSS custom properties."""
    return " ".join(f"--{name}:{pair[dark]};" for name, pair in {**INK, **MARKS}.items())
