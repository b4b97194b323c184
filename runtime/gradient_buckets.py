"""Sums gradients over replicas, bucket by bucket, while the backward goes on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

BUCKET_BYTES = 25 * 2**20
"""As torch's DistributedDataParallel: large enough for full bandwidth, small enough to overlap."""


class _Bucket:
    """Gradients that are summed together: views of one flat tensor, so that neither a copy in nor one out is needed."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        first = parameters[0]
        self.parameters = tuple(parameters)
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        parts = torch.split(self.flat, [p.numel() for p in parameters])
        self.views = tuple(part.view_as(p) for part, p in zip(parts, parameters, strict=True))
        self.missing = 0
        self.work: Any = None

    def clear(self) -> None:
        self.flat.zero_()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view


class GradientBuckets:
    """The replicas' gradient sync (ZeRO 0): a bucket's sum starts when its last gradient of the step is there.

    Gradients live in the buckets from before the first backward of a step; a zero is a gradient like others, so a parameter
    that a step does not use is treated by the optimizer as one whose gradient is zero.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        self._group = group
        self._buckets: list[_Bucket] | None = None
        self._module = module  # whose parameters on the meta device are replaced by real ones later
        self._cleared = self._last = False

    def before_backward(self, *, last: bool, split: bool) -> None:
        buckets = self._buckets or self._make_buckets()
        if not self._cleared:
            for bucket in buckets:
                bucket.clear()
            self._cleared = True
        self._last = last and not split
        if self._last:
            for bucket in buckets:
                bucket.missing = len(bucket.parameters)

    def before_weights(self) -> None:
        pass

    def after_weights(self, *, last: bool) -> None:
        pass

    def finish(self) -> None:
        for bucket in self._buckets or ():
            if bucket.work is None:
                self._sum(bucket)
        for bucket in self._buckets or ():
            bucket.work.wait()
            bucket.work = None
        self._cleared = self._last = False

    def _make_buckets(self) -> list[_Bucket]:
        """In the order in which a backward reaches the parameters, last first."""
        self._buckets = []
        open_: list[nn.Parameter] = []
        size = 0
        for parameter in [p for p in reversed(list(self._module.parameters())) if p.requires_grad]:
            bytes_ = parameter.numel() * parameter.element_size()
            if open_ and (size + bytes_ > BUCKET_BYTES or parameter.dtype != open_[0].dtype):
                self._buckets.append(_Bucket(open_))
                open_, size = [], 0
            open_.append(parameter)
            size += bytes_
        self._buckets.append(_Bucket(open_))
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))  # type: ignore[no-untyped-call]
        return self._buckets

    def _arrived(self, bucket: _Bucket, _: torch.Tensor) -> None:
        if self._last:
            bucket.missing -= 1
            if bucket.missing == 0:
                self._sum(bucket)

    def _sum(self, bucket: _Bucket) -> None:
        bucket.work = dist.all_reduce(bucket.flat, group=self._group, async_op=True)
