"""Estimates beside figures that papers and deployments quote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import autopar
from autopar.accuracy.cases import Case, case_of
from autopar.accuracy.runs import Run
from autopar.accuracy.score import Accuracy
from autopar.accuracy.view import percent
from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.estimate import Estimate
from autopar.costmodel.spec.units import PETA, TERA, format_seconds

QUOTED_SAMPLES_PER_SECOND = 120.0
"""What is quoted for GPT-3 175B on 32 servers of eight A100, TP 8, PP 4, DP 8, at 2,048 tokens a sample."""
A100_PEAK_FLOPS = 312e12
DEPLOYMENT_GPUS, DEPLOYMENT_BATCH, DEPLOYMENT_TOKENS = 256, 1536, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One published figure and the estimate of it, as text with units; ``error`` is estimate over published, minus 1."""

    what: str
    published: str
    estimated: str
    error: float | None
    remark: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.what, self.published, self.estimated, percent(self.error, signed=True), self.remark)


def samples_per_second_bound() -> float:
    """What 256 A100 could at most do at their rated peak: peak FLOP/s over 6 x parameters x tokens FLOP a sample."""
    return DEPLOYMENT_GPUS * A100_PEAK_FLOPS / (6 * 175e9 * DEPLOYMENT_TOKENS)


def deployment_estimate() -> Estimate:
    """The quoted deployment, with full recomputation and micro-batches of one sample: the setting that fits most easily."""
    return autopar.estimate(
        "gpt-175b",
        cluster="dgx-a100",
        gpus=DEPLOYMENT_GPUS,
        global_batch_size=DEPLOYMENT_BATCH,
        sequence_length=DEPLOYMENT_TOKENS,
        strategy={"tp": 8, "pp": 4, "dp": 8, "mbs": 1, "recompute": "full"},
    )


def comparisons(runs: Sequence[Run], accuracy: Accuracy) -> tuple[Comparison, ...]:
    """All of them, in the order of the papers."""
    return (*_megatron_2019(runs), *_measured_steps(accuracy), _deployment())


def _megatron_2019(runs: Sequence[Run]) -> Iterator[Comparison]:
    """Aggregate and single-GPU rates of Megatron-LM 2019, and their ratio, which no convention of counting FLOPs changes."""
    chosen = {run.run_id: run for run in runs if run.run_id in ("paper-meg19-000", "paper-meg19-007")}
    # The table gives rates and no step time, and names the GPU by its sheet; the text says that it is the SXM3 part of a DGX-2H.
    told = [replace(run, step_time_seconds=1.0, device="v100-sxm3-32gb", cluster="dgx-2h") for _, run in sorted(chosen.items())]
    cases = [case_of(run) for run in told]
    known = [case for case in cases if isinstance(case, Case)]
    if len(known) != 2:
        return
    one, many = (estimate(case.problem, case.strategy).model_flops_per_second_per_gpu for case in known)
    gpus = known[1].problem.cluster.num_gpus
    remark = "the paper's count of FLOPs is not stated in full; ours leaves recomputation out"
    yield _rate("Megatron-LM 2019, 1.2B on one V100", 39 * TERA, one, TERA, "TFLOP/s", remark)
    yield _rate("Megatron-LM 2019, 8.3B on 512 V100 (DGX-2H)", 15.1 * PETA, many * gpus, PETA, "PFLOP/s", remark)
    share = many / one
    yield Comparison(
        what="the same, per GPU, over the single GPU's rate", published="76 %", estimated=percent(share), error=share / 0.76 - 1
    )


def _rate(what: str, published: float, estimated: float, unit: float, name: str, remark: str) -> Comparison:
    return Comparison(
        what=what,
        published=f"{published / unit:.1f} {name}",
        estimated=f"{estimated / unit:.1f} {name}",
        error=estimated / published - 1,
        remark=remark,
    )


_TABLES = {"paper-meg21_T1": "Narayanan 2021, table 1", "paper-kort": "Korthikanti 2022, table 5"}


def _measured_steps(accuracy: Accuracy) -> Iterator[Comparison]:
    """Rows of the two papers' tables with a measured step time."""
    for family, title in _TABLES.items():
        for case, prediction in zip(accuracy.cases, accuracy.predictions, strict=True):
            if case.run.family == family and prediction.measured_seconds is not None:
                recompute = f", recompute {case.strategy.recompute.value}" if family == "paper-kort" else ""
                yield Comparison(
                    what=f"{title}: {case.run.model_name} on {case.run.num_gpus:,} A100{recompute}",
                    published=format_seconds(prediction.measured_seconds),
                    estimated=format_seconds(prediction.predicted_seconds),
                    error=prediction.time_error,
                )


def _deployment() -> Comparison:
    found = DEPLOYMENT_BATCH / deployment_estimate().step_time_seconds
    return Comparison(
        what="GPT-3 175B on 32 servers of eight A100, TP 8, PP 4, DP 8",
        published=f"{QUOTED_SAMPLES_PER_SECOND:.0f} samples/s",
        estimated=f"{found:.1f} samples/s",
        error=None,
        remark=f"**impossible as quoted**: 6 x 175e9 x {DEPLOYMENT_TOKENS:,} FLOP a sample leave at most"
        f" {samples_per_second_bound():.0f} samples/s at the rated peak",
    )
