"""``autopar compare``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from .options import given_inputs, input_options, json_option
from .plan import SeveralValues
from .reporting import check_targets, write_comparison

if TYPE_CHECKING:
    from autopar.comparison import Comparison
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.strategy import Strategy

EPILOG = """\b
Examples:
  autopar compare old.json new.json
  autopar compare old.json new.json --price 2.50 --tokens 15T
  autopar compare plan.json --strategies "tp=8 pp=4" "tp=4 pp=8 vpp=2"
  autopar compare --model llama3-70b --gpus 128 --strategies "tp=8 pp=2" "tp=4 pp=4"
  autopar compare main.json branch.json --fail-if-slower 2% --markdown

\b
The first plan is what the others are measured against; of --strategies the first, where
no file is named. Strategies are for --model and its flags, or for the first file's question.
Every plan is estimated anew, so that all figures are of this release.

\b
Exit code 1: with --fail-if-slower, another plan takes longer for a token by more than
  that, or does not fit; or a rule refuses one of the strategies.
"""


class Strategies(SeveralValues):
    """Lets ``--strategies "tp=8 pp=4" "tp=4"`` take every word up to the next flag."""

    repeated = ("--strategies",)


@click.command("compare", cls=Strategies, epilog=EPILOG)
@click.argument("plan_files", metavar="[PLAN]...", nargs=-1)
@click.option("--strategies", multiple=True, metavar="TEXT...", help='Strategies, e.g. "tp=8 pp=4 mbs=2" "tp=4 pp=8".')
@input_options(required=False)
@click.option("--price", "prices", multiple=True, metavar="P", help="Price of a GPU for an hour, e.g. 2.5; one, or one for each plan.")
@click.option("--tokens", metavar="N", help="Tokens of the whole training run, e.g. 15T: for days and total cost.")
@click.option("--fail-if-slower", metavar="X%", help="Exit with 1 where a plan is slower than the first by more.")
@click.option("--markdown", is_flag=True, help="Print tables in Markdown, for a pull request or an issue.")
@click.option("--html", "--report", "html", metavar="FILE", help="Write a page here, one file that stands alone.")
@click.option("--figures", metavar="DIR", help="Write the figures as SVG and PNG here.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, plan_files: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Put plans side by side: what differs, where time and memory went, what a token costs."""
    from autopar.api import compare

    from .output import answering, note, print_json, print_report

    if as_json and options["markdown"]:
        raise click.UsageError("give --json or --markdown, not both", ctx)
    limit, prices, tokens = _figures(options)
    check_targets(options)
    with answering(as_json):
        asked: list[str | tuple[Problem, Strategy]] = [*plan_files, *_strategies(ctx, plan_files, options)]
        comparison = compare(asked, price_per_gpu_hour=prices or None, tokens=tokens)
    write_comparison(options, comparison)
    if as_json:
        print_json(comparison)
    elif options["markdown"]:
        from autopar.report.markdown import comparison_markdown

        click.echo(comparison_markdown(comparison), nl=False)
    else:
        from autopar.report.compare import comparison_report

        print_report(comparison_report(comparison))
    if limit is not None and comparison.slower_than(limit):
        note(f"error: {slower_text(comparison, limit)}")
        ctx.exit(1)


def _figures(options: dict[str, Any]) -> tuple[float | None, list[float], float | None]:
    """The share that is allowed, the prices and the tokens.

    Raises:
        InvalidInputError: with every one that is no such figure.
    """
    from autopar.costmodel.spec.errors import Fault, raise_if
    from autopar.io.quantities import parse_percent, parse_price, parse_tokens
    from autopar.request import gather

    faults: list[Fault] = []
    share, total = options["fail_if_slower"], options["tokens"]
    limit = None if share is None else gather(faults, lambda: parse_percent(share, field="--fail-if-slower"))
    tokens = None if total is None else gather(faults, lambda: parse_tokens(total))
    prices = [gather(faults, lambda given=text: parse_price(given)) for text in options["prices"]]  # type: ignore[misc]
    raise_if(faults)
    return limit, [price.per_gpu_hour for price in prices if price is not None], tokens


def slower_text(comparison: Comparison, limit: float) -> str:
    """Which plans are slower than allowed, in one sentence each."""
    first = comparison.plans[0]
    parts = []
    for plan in comparison.slower_than(limit):
        if not plan.estimate.fits:
            parts.append(f"{plan.name} does not fit")
        else:
            parts.append(f"{plan.name} takes {plan.slower_than_first:.1%} more time for a token than {first.name}, over {limit:.1%}")
    return "; ".join(parts)


def _strategies(ctx: click.Context, plan_files: tuple[str, ...], options: dict[str, Any]) -> list[tuple[Problem, Strategy]]:
    """The strategies that were written out, each with the question it answers.

    Raises:
        click.UsageError: flags of a question without strategies or without a model.
        InvalidInputError: what is wrong with all of the strategies.
    """
    from autopar.api import build_problem, problem_of, read_plan
    from autopar.costmodel.spec.errors import Fault, raise_if
    from autopar.request import gather

    given = [parameter for parameter in given_inputs(options) if parameter != "framework" or _is_given(ctx, "framework")]
    asked, texts = options["model"] is not None, options["strategies"]
    if (asked or given) and not texts:
        raise click.UsageError("--model and its flags are for --strategies; plan files bring their own question", ctx)
    if given and not asked:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is for --model; plan files bring their own question", ctx)
    if not texts:
        return []
    if not asked and not plan_files:
        raise click.UsageError("give --model, or a plan file, for --strategies", ctx)
    problem = build_problem(options["model"], **given_inputs(options))[0] if asked else problem_of(read_plan(plan_files[0]))
    faults: list[Fault] = []
    found = []
    for text in texts:
        made = gather(faults, lambda words=text: _strategy(words, problem))  # type: ignore[misc]
        found += [] if made is None else [(problem, made)]
    raise_if(faults)
    return found


def _strategy(text: str, problem: Problem) -> Strategy:
    """The strategy that ``text`` writes out; its faults name the text, since there are several."""
    from autopar.costmodel.spec.errors import InvalidInputError
    from autopar.io.flags import make_strategy, parse_assignments

    values = parse_assignments([text], flag="--strategies")
    try:
        return make_strategy(values, world_size=problem.cluster.num_gpus, framework=problem.framework)
    except InvalidInputError as error:
        named = (replace(fault, field=f"--strategies {text!r}: {fault.field}") for fault in error.faults)
        raise InvalidInputError(tuple(named)) from None


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
