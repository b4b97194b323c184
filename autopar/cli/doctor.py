"""``autopar doctor``."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .app import EXIT_ABSENT
from .options import json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCTOR_SCHEMA_VERSION = "1.1"

REQUIRED = ("numpy", "click", "rich", "pydantic")
OPTIONAL = {
    "ortools": "stage partition by CP-SAT (autopar[search])",
    "networkx": "placement (autopar[search])",
    "deap": "genetic search of mixed clusters (autopar[search])",
    "scipy": "the fits of benchmarks/calibration (autopar[report])",
    "matplotlib": "figures (autopar[report])",
    "pyyaml": "reading nanotron's and Accelerate's YAML (autopar[yaml])",
    "torch": "running a plan (autopar[runtime])",
    "cupy": "profiling a GPU (autopar[profile])",
}


@click.command("doctor")
@json_option
@click.pass_context
def command(ctx: click.Context, /, as_json: bool) -> None:
    """Say what is installed, what this machine can profile and run, and what would add the rest.

    Planning needs no GPU and no torch. Exit code 3: something that planning needs is absent.
    """
    import autopar
    from autopar.capabilities import CUPY, capabilities

    from .output import print_json, print_report

    required = {name: installed(name) for name in REQUIRED}
    optional = {name: installed(*(CUPY if name == "cupy" else (name,))) for name in OPTIONAL}
    gpus = visible_gpus()
    able = capabilities(gpus, installed)
    catalog = catalog_sizes()
    ready = all(required.values()) and all(catalog.values())
    if as_json:
        print_json(
            {
                "schema_version": DOCTOR_SCHEMA_VERSION,
                "ready": ready,
                "autopar": autopar.__version__,
                "python": platform.python_version(),
                "platform": platform.platform(terse=True),
                "required": required,
                "optional": optional,
                "catalog": catalog,
                "gpus": gpus,
                "profiles": able.profiles,
                "runs": able.runs,
                "missing": able.missing,
            }
        )
    else:
        from rich.text import Text

        from autopar.report.tables import field_table

        table = field_table(f"autopar {autopar.__version__}")
        table.add_row("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
        for name, version in required.items():
            table.add_row(name, version or Text("absent, and needed for planning", style="red"))
        for name, version in optional.items():
            table.add_row(name, version or Text(f"absent; adds {OPTIONAL[name]}", style="dim"))
        table.add_row("catalog", ", ".join(f"{count} {kind}" for kind, count in catalog.items()))
        table.add_row("GPUs", ", ".join(gpus) or "none visible; planning needs none")
        table.add_row("can profile", "\n".join(able.profiles) or "nothing")
        table.add_row("can run", "\n".join(able.runs) or "nothing; it plans")
        for lack in able.missing:
            table.add_row("missing", Text(f"{lack.name}, for {lack.adds}: {lack.command}", style="dim"))
        table.add_row("verdict", "ready to plan" if ready else Text("not ready to plan", style="red"))
        print_report([table])
    if not ready:
        ctx.exit(EXIT_ABSENT)


def installed(*distributions: str) -> str | None:
    """Version of the first distribution that is installed, read from its metadata and never imported."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def catalog_sizes() -> dict[str, int]:
    """Entries of each kind; 0 where the data files are not there."""
    from autopar.catalog_view import KINDS, names

    sizes = {}
    for kind in KINDS:
        try:
            sizes[kind] = len(names(kind))
        except (ImportError, OSError):
            sizes[kind] = 0
    return sizes


def visible_gpus(
    driver_folder: Path = Path("/proc/driver/nvidia/gpus"), tools: Sequence[tuple[str, ...]] = (("nvidia-smi", "-L"),)
) -> list[str]:
    """Names of the GPUs that the driver shows, without loading CUDA or torch."""
    found = []
    for file in sorted(driver_folder.glob("*/information")) if driver_folder.is_dir() else []:
        text = file.read_text(encoding="utf-8", errors="replace")
        found += [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Model:")]
    for tool in tools if not found else ():
        if shutil.which(tool[0]):
            try:
                result = subprocess.run(tool, capture_output=True, text=True, timeout=10, check=False)
            except (OSError, subprocess.TimeoutExpired):
                continue
            found += [line.strip() for line in result.stdout.splitlines() if line.startswith("GPU ")]
    return found
