"""Moves hidden states and gradients between the ranks of a pipeline.

Every ordered pair of ranks is a channel: its messages arrive in the order they were sent, and wait for nothing else. On NCCL
each channel has a communicator of its own, so that two ranks that send to each other at once do not wait in a ring.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.runtime.mesh import ParallelMesh

from .plan import Message, RankPlan

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_HEADER = 8
"""Numbers of a header: the type, the rank of the shape, and up to six sizes."""


@dataclass(slots=True)
class _Incoming:
    """A message under way: the buffer it fills and the handle to wait on."""

    buffer: Tensor
    work: Any


@dataclass(slots=True)
class _Channel:
    """What is still to come from one rank in this step, and what has been asked for."""

    waiting: deque[Message] = field(default_factory=deque)
    posted: dict[Message, _Incoming] = field(default_factory=dict)


class Transport:
    """The messages of one step at a time, by :class:`~.plan.RankPlan`.

    The receiver of hidden states learns their shape and type from a header that goes before the first ones of each batch
    shape; a gradient has those of the hidden states it belongs to.
    """

    def __init__(self, mesh: ParallelMesh) -> None:
        self._mesh = mesh
        self._ranks = mesh.pipeline_ranks
        self._rank = mesh.coordinate("pp")
        self._device = mesh.device
        self._group = mesh.group("pp")
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._forms: dict[tuple[object, int], Tensor] = {}
        """By batch shape and stage: a tensor like the hidden states that enter it, on the meta device."""
        self._sending: deque[tuple[Any, Tensor]] = deque()
        self._channels: dict[int, _Channel] = {}
        self._kept: dict[Message, Tensor] = {}
        self._batch_shape: object = None

    def open_channels(self, pairs: set[tuple[int, int]]) -> None:
        """Make the communicators of ``pairs`` (source and target pipeline rank); called alike by all ranks of the job."""
        if self._device.type == "cuda":
            self._groups = self._mesh.pipeline_groups(sorted(pairs))

    def begin(self, plan: RankPlan, batch_shape: object) -> None:
        """Start a step. ``batch_shape`` tells micro-batches of different shapes apart; the same on all ranks of the pipeline."""
        self._batch_shape = batch_shape
        self._channels = {source: _Channel(deque(messages)) for source, messages in plan.incoming.items()}

    def send(self, message: Message, target: int, tensor: Tensor) -> None:
        """Hand ``tensor`` over; it must not change until :meth:`end`."""
        if target == self._rank:
            self._kept[message] = tensor
            return
        tensor = tensor.contiguous()
        key = (self._batch_shape, message.stage)
        if message.forward and key not in self._forms:
            self._forms[key] = torch.empty_like(tensor, device="meta")
            self._start_sending(_header(tensor).to(self._device), target)
        while self._sending and self._sending[0][0].is_completed():
            self._sending.popleft()
        self._start_sending(tensor, target)

    def ask(self, message: Message, source: int) -> None:
        """Ask for ``message`` ahead of time, if its shape is known already."""
        if source != self._rank:
            self._request(message, source, wait_for_header=False)

    def take(self, message: Message, source: int) -> Tensor:
        """``message``, waited for."""
        if source == self._rank:
            return self._kept.pop(message)
        self._request(message, source, wait_for_header=True)
        incoming = self._channels[source].posted.pop(message)
        incoming.work.wait()
        return incoming.buffer

    def end(self) -> None:
        """Wait until everything sent has left."""
        while self._sending:
            self._sending.popleft()[0].wait()

    def _request(self, message: Message, source: int, *, wait_for_header: bool) -> None:
        """Ask for all messages up to ``message``, in the order they are sent."""
        channel = self._channels[source]
        while message not in channel.posted:
            form = self._form(channel.waiting[0], source, wait_for_header=wait_for_header)
            if form is None:
                return
            buffer = torch.empty_like(form, device=self._device)
            channel.posted[channel.waiting.popleft()] = _Incoming(buffer, self._post(dist.irecv, buffer, source, self._rank))

    def _form(self, message: Message, source: int, *, wait_for_header: bool) -> Tensor | None:
        """A tensor of the shape and type of ``message``: of the hidden states at the boundary that it crosses."""
        key = (self._batch_shape, message.stage if message.forward else message.stage + 1)
        if key not in self._forms and message.forward and wait_for_header:
            header = torch.empty(_HEADER, dtype=torch.int64, device=self._device)
            self._post(dist.irecv, header, source, self._rank).wait()
            self._forms[key] = _form_of(header.tolist())
        return self._forms.get(key)

    def _start_sending(self, tensor: Tensor, target: int) -> None:
        self._sending.append((self._post(dist.isend, tensor, self._rank, target), tensor))

    def _post(self, operation: Any, tensor: Tensor, source: int, target: int) -> Any:
        peer = target if source == self._rank else source
        return operation(tensor, self._ranks[peer], group=self._groups.get((source, target), self._group))


def _header(tensor: Tensor) -> Tensor:
    sizes = [_TYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
    return torch.tensor(sizes + [0] * (_HEADER - len(sizes)), dtype=torch.int64)


def _form_of(header: list[int]) -> Tensor:
    return torch.empty(header[2 : 2 + header[1]], dtype=_TYPES[header[0]], device="meta")


def channel_pairs(plans: list[RankPlan]) -> set[tuple[int, int]]:
    """(source, target) of every message of ``plans``."""
    return {(source, plan.rank) for plan in plans for source in plan.incoming}
