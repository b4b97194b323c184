"""Options that several commands share, and how flags become the arguments of :mod:`autopar.api`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from autopar.api import Inputs

F = TypeVar("F", bound=Callable[..., object])

INPUT_NAMES = (
    "cluster", "gpus", "gpu", "global_batch_size", "sequence_length", "precision", "framework", "memory_reserve", "profile",
    "allow_other_device", "topology", "hosts",
)  # fmt: skip
STRATEGY_NAMES = (
    "tp", "pp", "vpp", "dp", "cp", "cp_kind", "ep", "etp", "mbs", "zero", "sp", "recompute", "recompute_layers", "schedule",
    "order",
)  # fmt: skip

_DIGITS = re.compile(r"\d+|\d{1,3}([,_]\d{3})+", re.ASCII)


class WholeNumber(click.IntRange):
    """A whole number from ``low`` to ``high``; digits may be grouped, as in "1,024" or "1_024"."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(low, high)
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises:
        click.BadParameter: ``value`` is no such number.
        """
        text = str(value).strip()
        number = int(re.sub("[,_]", "", text)) if _DIGITS.fullmatch(text) else None
        if number is None or not self._low <= number <= self._high:
            self.fail(f"{text!r} is not a whole number from {self._low:,} to {self._high:,}.", param, ctx)
        return number


COUNT = WholeNumber(1, 10**9)
GPUS = WholeNumber(1, 10_000_000)
RANK_ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp")
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "dualpipe")


def _complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Catalog names for a shell that asks what may follow."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's signature
        from autopar.catalog_view import names

        found = [CompletionItem(name) for name in names(kind) if name.startswith(incomplete)]
        return found or ([CompletionItem(incomplete, type="file")] if kind in ("models", "clusters") else [])

    return complete


def chain(options: list[Callable[[F], F]]) -> Callable[[F], F]:
    """One decorator of several, in the order in which --help shows them."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def input_options(*, required: bool, sized: bool = True) -> Callable[[F], F]:
    """The question: model, cluster, batch, precision, framework; without the number of GPUs where that is the answer."""
    number = [click.option("--gpus", "-n", type=GPUS, metavar="N", help="Number of GPUs.")] if sized else []
    return chain(
        [
            click.option(
                "--model", "-m", metavar="NAME|PATH", required=required, shell_complete=_complete("models"),
                help="Catalog name, or a Hugging Face config.json or the folder that holds it.",
            ),
            *number,
            click.option(
                "--gpu", metavar="DEVICE", shell_complete=_complete("devices"),
                help="Device, in the nodes it usually comes in.  [default: h100-sxm5-80gb]",
            ),
            click.option(
                "--cluster", "-c", metavar="ID|FILE", shell_complete=_complete("clusters"),
                help="Node type of the catalog, or a cluster file.",
            ),
            click.option("--global-batch-size", "--gbs", type=COUNT, metavar="N", help="Sequences a step.  [default: the model's usual]"),
            click.option("--sequence-length", "--seq", type=COUNT, metavar="N", help="Tokens a sequence.  [default: the model's usual]"),
            click.option("--precision", metavar="NAME", help="bf16, fp16, fp8, mxfp8, amp-bf16, pure-bf16, fp32, …  [default: bf16]"),
            click.option(
                "--framework", default="megatron-core", show_default=True, metavar="NAME", shell_complete=_complete("frameworks"),
                help="What runs the plan: its overlap, kernels and memory.",
            ),
            click.option("--memory-reserve", metavar="SIZE", help="Memory kept free on each GPU, e.g. 4GiB.  [default: the framework's]"),
            click.option(
                "--profile", metavar="FILE|NAME", help="What `autopar profile` measured or `autopar calibrate` found.",
            ),
            click.option(
                "--topology", metavar="FILE|NAME",
                help="Switches above the hosts: Slurm's topology.conf, TOML or JSON, or a fabric such as llama3-roce.",
            ),
            click.option("--hosts", metavar="LIST|FILE", help="Hosts of the job, e.g. node[001-032,040].  [default: all of --topology]"),
            click.option("--allow-other-device", is_flag=True, default=None, help="Take a profile that was measured on another device."),
        ]
    )  # fmt: skip


def strategy_options() -> Callable[[F], F]:
    """One strategy, field by field."""
    return chain(
        [
            click.option("--tp", type=COUNT, metavar="N", help="Tensor parallel size."),
            click.option("--pp", type=COUNT, metavar="N", help="Pipeline parallel size."),
            click.option("--vpp", type=COUNT, metavar="N", help="Virtual stages (chunks) per pipeline rank."),
            click.option("--dp", type=COUNT, metavar="N", help="Data parallel size.  [default: GPUs / (tp x pp x cp)]"),
            click.option("--cp", type=COUNT, metavar="N", help="Context parallel size."),
            click.option(
                "--cp-kind", type=click.Choice(("ring", "all_gather", "ulysses")),
                help="How context parallel ranks share attention.  [default: the framework's]",
            ),
            click.option("--ep", type=COUNT, metavar="N", help="Expert parallel size, folded over the ranks of a stage."),
            click.option("--etp", type=COUNT, metavar="N", help="Tensor parallel size inside an expert."),
            click.option("--mbs", type=COUNT, metavar="N", help="Micro-batch size."),
            click.option(
                "--zero-stage", "zero", type=WholeNumber(0, 3), metavar="0-3", help="What data parallel ranks share out.  [default: 1]",
            ),
            click.option(
                "--sequence-parallel/--no-sequence-parallel", "sp", default=None, help="Megatron's, on the TP group.  [default: with TP]",
            ),
            click.option(
                "--recompute", type=click.Choice(("none", "selective", "full")), help="Activations computed again in the backward pass.",
            ),
            click.option(
                "--num-recompute-layers", "recompute_layers", type=WholeNumber(0, 10**6), metavar="N",
                help="Layers of each pipeline rank that full recompute covers.  [default: all]",
            ),
            click.option("--schedule", type=click.Choice(SCHEDULES), help="Pipeline schedule.  [default: 1f1b, interleaved with --vpp]"),
            click.option(
                "--order", type=click.Choice(RANK_ORDERS), help="How ranks are numbered, fastest axis first.  [default: tp-cp-dp-pp]",
            ),
            click.option("--pipeline-layers", metavar="8,8,7,7", help="Decoder layers of each virtual stage, in model order."),
        ]
    )  # fmt: skip


def aims_options() -> Callable[[F], F]:
    """Prices, and how often nodes fail."""
    return chain(
        [
            click.option(
                "--price", multiple=True, metavar="[DEVICE=]AMOUNT",
                help="Price of a GPU-hour, e.g. 2.5, '2.5 USD' or h100-sxm5-80gb=2.5 (a device or a node type).",
            ),
            click.option("--mtbf-node", metavar="TIME", help="Mean time between failures of one node, e.g. 4000h: counts failures in."),
            click.option("--checkpoint-seconds", metavar="SECONDS", help="What training waits for while a checkpoint is written."),
            click.option("--restart-seconds", metavar="SECONDS", help="From a failure to the next step.  [default: as a checkpoint]"),
            click.option("--repair-time", metavar="TIME", help="Until a failed node is back, for the spares.  [default: 1d]"),
        ]
    )  # fmt: skip


def constraint_options() -> Callable[[F], F]:
    """What the user asks of the strategy besides being fast."""
    return chain(
        [
            click.option("--fix", multiple=True, metavar="NAME=VALUE", help="Keep to this value, e.g. tp=8."),
            click.option("--max", "maximum", multiple=True, metavar="NAME=N", help="No more than this, e.g. tp=8."),
            click.option("--min", "minimum", multiple=True, metavar="NAME=N", help="No less than this, e.g. pp=2."),
            click.option("--forbid", multiple=True, metavar="NAME", help="Leave this technique out, e.g. cp."),
        ]
    )


def given_constraints(options: dict[str, Any]) -> dict[str, Any]:
    """The bounds among ``options``, as the API takes them."""
    return {name: options[name] for name in ("fix", "maximum", "minimum", "forbid")}


def given_aims(options: dict[str, Any]) -> dict[str, Any]:
    """The prices and the failures among ``options`` that were given."""
    names = ("mtbf_node", "checkpoint_seconds", "restart_seconds", "repair_time")
    given = {name: options[name] for name in names if options.get(name) is not None}
    return {**given, "price": options["price"]} if options.get("price") else given


def json_option(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document with schema_version, for programs.")(function)


def given_inputs(options: dict[str, Any]) -> Inputs:
    """The inputs among ``options`` that were given."""
    return {name: options[name] for name in INPUT_NAMES if options.get(name) is not None}  # type: ignore[return-value]


def given_strategy(options: dict[str, Any]) -> dict[str, object]:
    """The strategy's fields among ``options`` that were given, by short name."""
    from autopar.io.flags import parse_layers

    values: dict[str, object] = {name: options[name] for name in STRATEGY_NAMES if options.get(name) is not None}
    if options.get("pipeline_layers") is not None:
        values["pipeline_layers"] = parse_layers(options["pipeline_layers"])
    return values


def world_size(options: dict[str, Any], strategy: dict[str, object]) -> int | None:
    """``--gpus``, or the product of the sizes where all of them are known because ``--dp`` was given."""
    if options.get("gpus") is not None or "dp" not in strategy:
        return options.get("gpus")
    product = 1
    for name in ("tp", "pp", "cp", "dp"):
        size = strategy.get(name, 1)
        product *= size if isinstance(size, int) else 1
    return product


stages_option = click.option(
    "--stages",
    type=click.Choice(("even", "uneven", "exact")),
    default="even",
    show_default=True,
    help="Place layers stage by stage too, with a bound on what is left; exact: proven by OR-Tools.",
)
