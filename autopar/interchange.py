"""Plans to and from the configurations of training frameworks, and what is wrong with one that runs.

>>> plan = autopar.import_plan("train.sh", "megatron-lm", gpus=256, gpu="a100-sxm4-80gb")
>>> autopar.diagnose(plan, measured="14.2s")
>>> autopar.export(plan, "torchtitan")
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from autopar import __version__
from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.costmodel.spec.plan import Plan
from autopar.costmodel.spec.strategy import Strategy
from autopar.request import problem_of

if TYPE_CHECKING:
    from autopar.diagnosis import Diagnosis
    from autopar.exporters.export import Export
    from autopar.io.pools import Pools

__all__ = ["changed_plan", "diagnose", "export", "import_plan"]


class ImportInputs(TypedDict, total=False):
    """What ``import_plan`` takes besides the configuration."""

    model: str | None
    cluster: str | None
    gpus: int | None
    gpu: str | None
    global_batch_size: int | None
    sequence_length: int | None
    micro_batch_size: int | None
    precision: str | None
    profile: str | None


MIXED = "Hosts start in this order: "
"""How a configuration that was exported for a mixed cluster says so."""


def diagnose(plan: Plan, *, measured: str | float | None = None) -> Diagnosis:
    """What a plan costs, what explains a measured step, and the best changes of one knob and of two.

    Args:
        plan: searched, or imported from a framework's configuration.
        measured: seconds of a step, ``14.2`` or ``"14.2s"``; None where it was not measured.

    Raises:
        InvalidInputError: ``measured`` is no time.
    """
    from autopar.diagnosis import diagnose as diagnosis_of
    from autopar.io.quantities import parse_duration

    seconds = None if measured is None else parse_duration(measured, field="measured", bare=True)
    return diagnosis_of(problem_of(plan), plan.strategy, measured_seconds=seconds)


def changed_plan(plan: Plan, strategy: Strategy) -> Plan:
    """``plan`` with another strategy for the same inputs, and its estimate."""
    return replace(plan, strategy=strategy, estimate=estimate(problem_of(plan), strategy), alternatives=(), autopar_version=__version__)


def export(plan: Plan, to: str, *, nearest: bool = False) -> Export:
    """The files of a plan for a framework: ``megatron-lm``, ``torchtitan``, …; see :func:`autopar.exporters.exporter_names`.

    Raises:
        NoPlanError: the framework does not take the plan; names its rules, and the nearest plan, which ``nearest`` exports.
        UnknownNameError: there is no such exporter.
    """
    from autopar.exporters.export import export as exported

    return exported(plan, to, take_nearest=nearest)


def import_plan(
    configuration: str | Path,
    framework: str,
    *,
    pools: Pools | None = None,
    between: str | float | None = None,
    **given: Unpack[ImportInputs],
) -> Plan:
    """The plan that a framework's configuration runs today.

    Args:
        configuration: path of a file, or a command line.
        framework: whose it is, see :func:`autopar.importers.importer_names`.
        pools: where it runs on several kinds of GPU, as :func:`autopar.plan` takes them, in the order in which their hosts start; or
            ``cluster`` is a file with ``[[pools]]``.
        between: of pools, as for :func:`autopar.plan`.
        given: what the configuration leaves unsaid, or what to take in place of it.

    Raises:
        InvalidInputError: it cannot be read, contradicts itself, or leaves something unsaid; all faults at once.
    """
    from autopar.api import pools_of_file
    from autopar.importers import import_configuration
    from autopar.importers.complete import Given

    asked = Given(**given)
    on = pools if pools is not None else pools_of_file(asked.cluster)
    if on is not None:
        from autopar.mixed_import import as_pools_say, on_pools, over_pools

        as_one, sizes = on_pools(asked, on)
        try:
            read = import_configuration(str(configuration), framework, as_one)
        except InvalidInputError as error:
            raise as_pools_say(error) from None
        return over_pools(read, on, sizes, between)
    if between is not None:
        fix = "for example pools={'h100': 64, 'a100': 64}"
        required = "is the network between pools, and none are given"
        raise InvalidInputError(Fault(field="between", given=str(between), required=required, fix=fix))
    return _with_remark(import_configuration(str(configuration), framework, asked), str(configuration))


def _with_remark(plan: Plan, configuration: str) -> Plan:
    """``plan`` with a remark where the configuration was exported for a mixed cluster, which its settings do not say."""
    from autopar.importers import source_of

    _, found, rest = source_of(configuration).text.partition(MIXED)
    if not found:
        return plan
    order = rest.partition("\n")[0].rstrip(".")
    said = f"exported for a mixed cluster ({order}), read as one of {plan.inputs.cluster.device.name} alone: --pool in that order prices it"
    return replace(plan, inputs=replace(plan.inputs, assumptions=(*plan.inputs.assumptions, said)))
