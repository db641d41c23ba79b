"""What a step's attention is told of the requests in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class Batch:
    """The requests of one step, one after the other.

    ``query_start[B + 1]``: first query row of each request, and their total. ``lengths[B]``: KV tokens of each request
    after this step; its last query row has position ``lengths[b] - 1``, the one before ``lengths[b] - 2``, and so on.
    ``tables[B, width]``, int64: numbers of its KV pages, in order, the last of them again and again behind it: no
    request reads another's page, not even to mask it. ``page``: tokens of a page. ``plans`` is the kernels' memory of
    the step.
    """

    query_start: list[int]
    lengths: list[int]
    tables: Tensor
    page: int
    plans: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        """Query rows of all requests."""
        return self.query_start[-1]

    @property
    def longest_query(self) -> int:
        """Query rows of the request that has most."""
        return max(end - start for start, end in zip(self.query_start, self.query_start[1:], strict=False))

    @property
    def keys(self) -> int:
        """KV tokens of all requests."""
        return sum(self.lengths)
