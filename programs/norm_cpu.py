"""``norm-cpu``: what the embedded engine runs for RMSNorm.

torch's own norm, or one of its elementary operations. Each computes every row by itself.
"""

from __future__ import annotations

from detent.lang import Unpinnable, assume, record, selection
from detent.programs.facts import Embedded, Limits, Model
from detent.programs.measured import row_for


@record
class Call:
    """One norm."""

    num_rows: Unpinnable[int]  # tokens, or tokens times heads: sizes buffers


@selection(family="norm")
def norm_cpu(model: Model, embedded: Embedded, limits: Limits, call: Call) -> dict[str, object]:
    """The kernel."""
    assume(1 <= call.num_rows <= limits.max_num_batched_tokens * model.num_attention_heads)
    own = embedded.norm[row_for(embedded.norm, call.num_rows)]["own"] == 1
    return {"kernel": "torch" if own else "composed"}
