"""``autopar schema``."""

from __future__ import annotations

import click

EPILOG = """\b
Examples:
  autopar schema plan > plan.schema.json
"""


KINDS = (
    "plan", "estimate", "explain", "explain-mixed", "comparison", "whatif", "size", "pareto", "profile", "measured-profile", "no-plan",
    "cluster",
)  # fmt: skip


@click.command("schema", epilog=EPILOG)
@click.argument("kind", type=click.Choice(KINDS))
def command(kind: str) -> None:
    """Print the JSON Schema of a plan file, of a cluster file (of one cluster or of pools), of the two
    kinds of profile file (what calibrate found, what profile measured), of what --json prints for
    estimate, explain, compare, whatif, size and plan --pareto, or of what it prints where no strategy
    fits.
    """
    from .output import print_json

    if kind == "cluster":
        from autopar.catalog.cluster_file import json_schema as cluster_schema

        print_json(cluster_schema())
        return
    from autopar.comparison import Comparison
    from autopar.costmodel.spec.calibration import Calibration
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.measured import MeasuredProfile
    from autopar.costmodel.spec.plan import Plan
    from autopar.explanation import Explanation
    from autopar.frontier import ParetoFront
    from autopar.io.codec import json_schema
    from autopar.mixed_explanation import MixedExplanation
    from autopar.no_plan import NoPlan
    from autopar.perturbation import WhatIf
    from autopar.sizing import Sizing

    kinds = {
        "plan": Plan,
        "estimate": Estimate,
        "explain": Explanation,
        "comparison": Comparison,
        "whatif": WhatIf,
        "size": Sizing,
        "pareto": ParetoFront,
        "profile": Calibration,
        "measured-profile": MeasuredProfile,
        "no-plan": NoPlan,
        "explain-mixed": MixedExplanation,
    }
    print_json(json_schema(kinds[kind]))
