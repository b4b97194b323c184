"""autopar: an automatic parallelism planner and cost model for training large models.

>>> import autopar
>>> plan = autopar.plan(model="gpt-175b", gpus=256)
>>> plan.strategy.tensor_parallel_size, plan.estimate.step_time_seconds

Names are loaded on first use, so that ``import autopar`` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autopar.api import compare, estimate, explain, pareto, plan, read_plan, size, whatif, write_plan
    from autopar.frames import frame
    from autopar.interchange import diagnose, export, import_plan
    from autopar.training import parallelize

__version__ = "0.1.0"

__all__ = [
    "__version__", "compare", "diagnose", "estimate", "explain", "export", "frame", "import_plan", "parallelize", "pareto", "plan",
    "read_plan", "size", "whatif", "write_plan",
]  # fmt: skip

_HOMES = {
    "frame": "autopar.frames",
    "parallelize": "autopar.training",
    **dict.fromkeys(("diagnose", "export", "import_plan"), "autopar.interchange"),
}

_folder = Path(__file__).parent
if not (_folder / "costmodel").is_dir() and (_folder.parent / "costmodel").is_dir() and (_folder.parent / "pyproject.toml").is_file():
    # A clone without symbolic links (core.symlinks=false): find costmodel, search and runtime beside this folder.
    __path__.append(str(_folder.parent))
del _folder


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'autopar' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES.get(name, "autopar.api")), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from autopar.costmodel.spec.errors import UnavailableError

        raise UnavailableError(f"autopar.{name} needs torch: pip install 'autopar[runtime]'") from None


def __dir__() -> list[str]:
    return sorted(__all__)
