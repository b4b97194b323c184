"""Writes ``docs/rules-of-thumb.md``: what people plan by, each rule confirmed or refuted by estimates.

    python -m benchmarks.rules_of_thumb [--only NAME …]

No figure on the page is written by hand; with ``--only`` the named rules are printed and the page stays as it is.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping

from autopar.io.files import write_text

from .accuracy.tables import ROOT, markdown
from .folklore import layout, memory, pipeline
from .folklore.rule import Finding, Rule

PAGE = ROOT / "docs" / "rules-of-thumb.md"
RULES: tuple[Rule, ...] = (*pipeline.RULES, *layout.RULES, *memory.RULES)
HEAD = """\
# Rules of thumb

Written by `make docs` from estimates; do not edit. Each rule is judged by a measure with two bounds, one that confirms it and one that
refutes it; between them it holds in part. The figures are of the settings named, and as good as [the estimates](accuracy.md).
"""


def page(findings: Mapping[Rule, Finding]) -> str:
    """The Markdown of the rules and what was found about them."""
    summary = markdown(
        ("rule", "verdict"), ((f"[{rule.claim}](#{rule.name})", f"**{found.verdict}**") for rule, found in findings.items()), text=2
    )
    lines = [HEAD, *summary]
    for rule, found in findings.items():
        lines += [f'## <a id="{rule.name}"></a>{rule.claim}', "", f"**{found.verdict.capitalize()}.** {found.text}", ""]
        lines += markdown(found.columns, found.rows, text=found.text_columns)
        lines += [f"Setting: {found.setting}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def examine(rules: Iterable[Rule]) -> dict[Rule, Finding]:
    """Every rule with its finding."""
    return {rule: rule.examine() for rule in rules}


def main(arguments: list[str] | None = None) -> None:
    """Write the page, or print part of it."""
    parser = argparse.ArgumentParser(description="Folklore against estimates.")
    parser.add_argument("--only", nargs="+", choices=[rule.name for rule in RULES], help="print these rules, write nothing")
    only = parser.parse_args(arguments).only
    findings = examine(rule for rule in RULES if not only or rule.name in only)
    if only:
        print(page(findings))
        return
    write_text(PAGE, page(findings))
    counts = Counter(found.verdict.value for found in findings.values())
    print(f"docs/rules-of-thumb.md: {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}")


if __name__ == "__main__":
    main()
