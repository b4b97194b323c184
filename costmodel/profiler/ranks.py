"""The ranks of a profiling run: one alone, or those that a launcher started, which agree on every step before they take it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

from autopar.costmodel.spec.errors import Fault, raise_if

from .request import RankLostError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Where this process stands among those the launcher started."""

    rank: int
    world_size: int
    local_rank: int
    ranks_per_node: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch:
        """From the variables that torchrun sets; one process alone where there are none.

        Raises:
            InvalidInputError: variables that contradict each other, or nodes of different sizes.
        """
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            return cls(rank=0, world_size=1, local_rank=0, ranks_per_node=1)
        faults: list[Fault] = []

        def number(name: str, default: str, low: int) -> int:
            text = environment.get(name, default)
            if text.isascii() and text.isdigit() and int(text) >= low:
                return int(text)
            faults.append(Fault(field=name, given=repr(text), required=f"a whole number of {low} or more", fix="start with torchrun"))
            return low

        world, rank = number("WORLD_SIZE", "1", 1), number("RANK", "0", 0)
        local, per_node = number("LOCAL_RANK", "0", 0), number("LOCAL_WORLD_SIZE", str(world), 1)
        raise_if(faults)
        if rank >= world or local >= per_node or world % per_node:
            given = f"rank {rank} of {world}, local rank {local} of {per_node}"
            raise_if([Fault(field="RANK", given=given, required="ranks below their world size, and nodes of one size")])
        return cls(rank=rank, world_size=world, local_rank=local, ranks_per_node=per_node)

    @property
    def num_nodes(self) -> int:
        return self.world_size // self.ranks_per_node


class Ranks(Protocol):
    """What a run needs of its ranks."""

    launch: Launch

    def decide(self, value: T) -> T:
        """Rank 0's ``value``, on every rank."""
        ...

    def together(self) -> None:
        """Wait for every rank."""
        ...

    def gathered(self, value: T) -> list[T]:
        """Every rank's ``value``, by rank."""
        ...

    def close(self) -> None:
        """Part from the others."""
        ...


class Alone:
    """One process."""

    launch = Launch(rank=0, world_size=1, local_rank=0, ranks_per_node=1)

    def decide(self, value: T) -> T:
        """``value``."""
        return value

    def together(self) -> None:
        """Nobody to wait for."""

    def gathered(self, value: T) -> list[T]:
        """``value`` alone."""
        return [value]

    def close(self) -> None:
        """Nobody to part from."""


class TorchRanks:
    """Ranks over torch.distributed's gloo, which control runs on whatever the collectives under test run on.

    A rank that does not come within ``timeout_seconds`` ends the run on every other, with the reason.
    """

    def __init__(self, launch: Launch, *, timeout_seconds: float = 60.0, init_method: str | None = None) -> None:
        import torch.distributed as dist

        self.launch = launch
        self._timeout = timedelta(seconds=timeout_seconds)
        try:
            dist.init_process_group(
                "gloo",
                init_method=init_method or "env://",
                rank=launch.rank,
                world_size=launch.world_size,
                timeout=self._timeout,
            )
        except (RuntimeError, ValueError) as error:
            raise RankLostError(f"the {launch.world_size} ranks did not find each other: {str(error).splitlines()[0]}") from None
        self._dist = dist
        self._group: Any = dist.group.WORLD

    def decide(self, value: T) -> T:
        """Rank 0's ``value``, on every rank. Raises RankLostError where a rank is gone."""
        box: list[object] = [value]
        self._guard(lambda: self._dist.broadcast_object_list(box, src=0, group=self._group), "a decision")
        return cast(T, box[0])

    def together(self) -> None:
        """Wait for every rank. Raises RankLostError where one is gone."""
        self._guard(lambda: self._dist.barrier(group=self._group), "the others")

    def gathered(self, value: T) -> list[T]:
        """Every rank's ``value``, by rank. Raises RankLostError where one is gone."""
        box: list[object] = [None] * self.launch.world_size
        self._guard(lambda: self._dist.all_gather_object(box, value, group=self._group), "every rank's result")
        return cast(list[T], box)

    def close(self) -> None:
        """Leave the group; a group that a lost rank broke is left as it is."""
        if self._dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                self._dist.destroy_process_group()

    def _guard(self, call: Any, what: str) -> None:
        try:
            call()
        except RuntimeError as error:
            seconds = self._timeout.total_seconds()
            reason = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
            raise RankLostError(
                f"rank {self.launch.rank} waited for {what} and a rank died or hung (time-out {seconds:g} s): {reason}"
            ) from None


def launched(environment: Mapping[str, str] = os.environ, *, timeout_seconds: float = 60.0) -> Ranks:
    """The ranks of this run: this process alone, or those of the launcher.

    Raises:
        RankLostError: they did not find each other.
        InvalidInputError: the launcher's variables make no sense.
    """
    launch = Launch.of(environment)
    return Alone() if launch.world_size == 1 else TorchRanks(launch, timeout_seconds=timeout_seconds)
