"""``autopar schema``."""

from __future__ import annotations

import click

EPILOG = """\b
Examples:
  autopar schema plan > plan.schema.json
"""


@click.command("schema", epilog=EPILOG)
@click.argument("kind", type=click.Choice(("plan", "estimate", "profile", "measured-profile", "no-plan")))
def command(kind: str) -> None:
    """Print the JSON Schema of a plan file, of the result of estimate, of the two kinds of
    profile file (what calibrate found, what profile measured), or of what --json prints
    where no strategy fits.
    """
    from autopar.costmodel.spec.calibration import Calibration
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.measured import MeasuredProfile
    from autopar.costmodel.spec.plan import Plan
    from autopar.io.codec import json_schema
    from autopar.no_plan import NoPlan

    from .output import print_json

    kinds = {"plan": Plan, "estimate": Estimate, "profile": Calibration, "measured-profile": MeasuredProfile, "no-plan": NoPlan}
    print_json(json_schema(kinds[kind]))
