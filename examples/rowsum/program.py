"""A selection of our own: which kernel adds up the rows of a matrix, and in blocks of which width."""

from __future__ import annotations

from detent.lang import Runtime, Unpinnable, assume, knob, record, require, selection

WIDTHS = (4, 8, 16)


@record
class Machine:
    """Deployment facts, section [machine]."""

    cores: int
    max_rows: int
    columns: int


@record
class Call:
    """One call: a batch of requests, one row each."""

    rows: Unpinnable[int]  # sizes the output
    hot: Runtime[bool]  # the rows were just written and are still in the cache


@selection(family="rowsum")
def rowsum(machine: Machine, call: Call) -> dict[str, object]:
    """Few rows: a row's blocks in parallel. Many rows, or rows at hand: one row after another is enough."""
    assume(1 <= call.rows <= machine.max_rows)
    width = knob("width", WIDTHS, default=8)
    parallel = call.rows < machine.cores and not call.hot
    kernel = "blocked" if parallel else "sequential"
    require(kernel != "blocked" or machine.columns % width == 0, "a row is a whole number of blocks")
    require(kernel != "blocked" or width * machine.cores <= machine.columns, "every core has a block")
    return {"kernel": kernel, "width": width, "columns": machine.columns}
