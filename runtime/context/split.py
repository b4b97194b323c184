"""Which tokens of a sequence each context-parallel rank has, and the batch that a model gets of them.

A sequence is cut into two parts a rank, and rank r of n takes parts r and 2 n - 1 - r: causal attention then costs all ranks the
same (Llama 3, arXiv 2407.21783, section 3.3.2). Positions say which tokens they are, and labels come shifted, since a part's
next token may be elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from autopar.costmodel.spec.layout import RankLayout
from autopar.runtime.loss import IGNORE_INDEX, SHIFTED_LABELS, Batch

POSITIONS, MASK = "position_ids", "attention_mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextGroup:
    """The ranks that share sequences, and this rank's place among them."""

    group: dist.ProcessGroup
    rank: int
    size: int

    @property
    def parts(self) -> tuple[int, int]:
        """This rank's two parts of ``2 x size``, in the order in which it holds them."""
        return self.rank, 2 * self.size - 1 - self.rank

    def gathered_order(self) -> list[int]:
        """Where in what all ranks hold, one after the other, each part of the sequence is."""
        held = [part for rank in range(self.size) for part in (rank, 2 * self.size - 1 - rank)]
        return [held.index(part) for part in range(2 * self.size)]

    def take(self, tensor: Tensor) -> Tensor:
        """This rank's columns of ``tensor`` (B, S)."""
        parts = tensor.chunk(2 * self.size, dim=1)
        return torch.cat([parts[part] for part in self.parts], dim=1)

    def batch(self, batch: Batch, *, masked: bool) -> dict[str, Tensor]:
        """This rank's tokens of a batch of token ids and labels, with their positions and what they are to predict.

        ``masked``: with a mask that lets every token through, for a model that would take a jump of positions for a new sequence.
        """
        named = {"input_ids": batch} if isinstance(batch, Tensor) else dict(batch)
        ids = named["input_ids"]
        labels = named.get("labels", ids)
        own = {"input_ids": self.take(ids), "labels": self.take(labels)}
        own[SHIFTED_LABELS] = self.take(F.pad(labels, (0, 1), value=IGNORE_INDEX)[:, 1:])
        own[POSITIONS] = self.take(torch.arange(ids.shape[1], device=ids.device).expand(ids.shape))
        return own | ({MASK: torch.ones_like(own["input_ids"])} if masked else {})


def context_group(layout: RankLayout) -> ContextGroup:
    """This rank's group; all ranks of the job make all groups together."""
    rank = dist.get_rank()
    mine = layout.group(rank, "cp")
    for ranks in dict.fromkeys(layout.group(each, "cp") for each in range(layout.world_size)):
        group = dist.new_group(list(ranks))
        if ranks == mine:
            own = group
    return ContextGroup(group=own, rank=mine.index(rank), size=len(mine))
