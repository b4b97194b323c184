"""What this machine can profile and run by what is installed, and the command that adds each thing it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

CUPY = ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-rocm-7-0")
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
Installed = Callable[..., str | None]
"""Version of the first of some distributions that is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Something that is not there, what it would add, and how to add it."""

    name: str
    adds: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """``profiles`` and ``runs`` have one line a thing that works, with what it goes through."""

    profiles: tuple[str, ...]
    runs: tuple[str, ...]
    missing: tuple[Missing, ...]


def capabilities(gpus: Sequence[str], installed: Installed) -> Capabilities:
    """From the GPUs that the driver shows and the distributions that are installed; nothing is imported."""
    torch, cupy, nccl = installed("torch"), installed(*CUPY), installed(*NCCL)
    profiles, runs = [], []
    if torch:
        profiles.append(f"the processor and its gloo collectives (torch {torch})")
        runs.append(f"plans on processes of this machine over gloo (torch {torch})")
    if gpus and cupy:
        profiles.append(f"GPU products, memory bandwidth, launches and host copies (cupy {cupy})")
    if gpus and torch:
        profiles.append(f"GPU attention, FP8 products, norms and optimizer{'' if cupy else ', and products'} (torch {torch})")
        runs.append(f"plans on the GPUs over NCCL (torch {torch})")
    if gpus and (torch or (cupy and nccl)):
        through = f"cupy's NCCL {nccl}" if cupy and nccl else "torch.distributed's NCCL"
        profiles.append(f"GPU collectives, under torchrun ({through})")
    return Capabilities(profiles=tuple(profiles), runs=tuple(runs), missing=tuple(_missing(bool(gpus), torch, cupy, nccl, installed)))


def _missing(has_gpu: bool, torch: str | None, cupy: str | None, nccl: str | None, installed: Installed) -> list[Missing]:
    found = []
    if not torch:
        adds = "profiling the processor, attention and collectives, and running plans"
        found.append(Missing(name="torch", adds=adds, command="pip install 'autopar[runtime]'"))
    if not has_gpu:
        found.append(Missing(name="a GPU", adds="profiling GPUs; plans need none", command="nvidia-smi -L  # lists what the driver sees"))
        return found
    if not cupy:
        adds = "GPU microbenchmarks by CuPy; torch measures the same products without it"
        found.append(Missing(name="cupy", adds=adds, command="pip install 'autopar[profile]'"))
    elif not installed("ml_dtypes", "ml-dtypes"):
        found.append(Missing(name="ml_dtypes", adds="bf16 products by CuPy", command="pip install ml_dtypes"))
    if cupy and not nccl:
        found.append(
            Missing(name="NCCL for cupy", adds="collectives by CuPy; torch's are taken without it", command=f"pip install {NCCL[0]}")
        )
    return found
