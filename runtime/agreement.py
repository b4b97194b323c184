"""Small Python values that ranks exchange, so that all of them know, and fail, alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

from autopar.costmodel.spec.errors import AutoparError, InvalidInputError

T = TypeVar("T")


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gather(value: T) -> list[T]:
    """``value`` of every rank, in rank order, on every rank."""
    _, size = rank_and_size()
    if size == 1:
        return [value]
    values: list[T | None] = [None] * size
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]


def from_first_rank(action: Callable[[], T]) -> T:
    """What ``action`` returns on rank 0, on every rank; there alone it runs.

    Raises:
        AutoparError: what it raised, on every rank; an OSError becomes an InvalidInputError of its text.
    """
    rank, size = rank_and_size()
    outcome: list[tuple[T | None, AutoparError | None]] = [(None, None)]
    if rank == 0:
        try:
            outcome = [(action(), None)]
        except AutoparError as error:
            outcome = [(None, error)]
        except OSError as error:
            outcome = [(None, InvalidInputError(str(error)))]
    if size > 1:
        dist.broadcast_object_list(outcome, src=0)
    value, failure = outcome[0]
    if failure is not None:
        raise failure
    return cast(T, value)


def first_fault(mine: str) -> str:
    """The text of the first rank that has one, with its rank where there are several; "" where none has."""
    texts = gather(mine)
    return next((f"rank {rank}: {text}" if len(texts) > 1 else text for rank, text in enumerate(texts) if text), "")
