"""``moe-cpu``: what the embedded engine runs for expert layers.

The router, and two matrix products an expert with the rows that chose it, by the kernels that ``gemm-cpu`` has. How
many rows an expert has hangs on all tokens of the batch. As shipped, a table says by token count which kernel is
faster, and each product takes all of its rows.
"""

from __future__ import annotations

from detent.lang import Unpinnable, assume, knob, record, require, selection
from detent.programs.facts import Embedded, Limits, Moe
from detent.programs.measured import none_packed, row_for

TILES = (4, 8, 16, 32, 64)  # rows of one product, where tiles are filled up


@record
class Call:
    """One call of the expert layer."""

    num_tokens: Unpinnable[int]  # sizes buffers


@selection(family="moe")
def moe_cpu(moe: Moe, embedded: Embedded, limits: Limits, call: Call) -> dict[str, object]:
    """The kernel of all products, rows of a tile, and whether the last tile is filled up."""
    assume(1 <= call.num_tokens <= limits.max_num_batched_tokens)
    require(moe.num_experts_per_tok <= moe.num_experts, "a token's experts are distinct")
    fill = knob("fill", (False, True), default=none_packed(embedded.moe, ("packed",)))
    tile = knob("tile", TILES, default=8)
    packed = embedded.moe[row_for(embedded.moe, call.num_tokens)]["packed"] == 1
    require(fill or packed, "a plain product's bits are those of a full tile")
    rows = tile if fill else limits.max_num_batched_tokens
    return {"kernel": "packed" if packed else "plain", "rows": rows, "fill": fill}
