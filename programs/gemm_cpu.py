"""``gemm-cpu``: what the embedded engine runs for linear layers and the output head. A router is
``moe-cpu``'s.

Two kernels. *plain* is a BLAS product of a tile of rows; in which order BLAS adds hangs on how many rows the tile has.
*packed* is oneDNN's product with weights in a blocked layout, which adds in ascending K whatever the number of rows.
As shipped, the number of rows decides, for every layer as it was measured, and no tile is filled up. Where every layer
is packed there are no tiles: they would only take time.
"""

from __future__ import annotations

from detent.lang import Unpinnable, assume, knob, record, require, selection
from detent.programs.facts import Embedded, Limits
from detent.programs.measured import none_packed, row_for

LAYERS = ("qkv", "output", "gate_up", "down", "logits")


@record
class Call:
    """One matrix product."""

    num_rows: Unpinnable[int]  # of the activations: sizes buffers


@selection(family="gemm")
def gemm_cpu(embedded: Embedded, limits: Limits, call: Call) -> dict[str, object]:
    """Rows of a tile, whether the last tile is filled up, and the kernel of every layer."""
    assume(1 <= call.num_rows <= limits.max_num_batched_tokens)
    fill = knob("fill", (False, True), default=none_packed(embedded.gemm, LAYERS))
    rows = row_for(embedded.gemm, call.num_rows)
    measured = embedded.gemm[rows]
    packed = all(measured[layer] == 1 for layer in LAYERS)
    require(fill or packed, "a plain product's bits are those of a full tile")
    return {"rows": limits.max_num_batched_tokens if packed and not fill else rows, "fill": fill} | {
        f"kernel.{layer}": "packed" if measured[layer] == 1 else "plain" for layer in LAYERS}
