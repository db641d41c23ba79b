# RUN: detent-opt %s -p 'selir-pipeline{deployment="qwen3-30b-a3b-tp4-h200"}' | filecheck %s
# RUN: detent-opt %s -p 'selir-pipeline{deployment="qwen3-30b-a3b-tp4-h200"}' -t selir-python \
# RUN:   | filecheck %s --check-prefix=PYTHON
# RUN: detent-opt %s -p 'selir-pipeline{deployment="qwen3-30b-a3b-tp4-h200"}' -t selir-dot \
# RUN:   | filecheck %s --check-prefix=DOT
# RUN: detent-opt %s -p 'selir-pipeline{deployment="qwen3-30b-a3b-tp4-h200"}' -t selir-mermaid \
# RUN:   | filecheck %s --check-prefix=MERMAID
# RUN: detent-opt %s -p 'selir-pipeline{deployment="qwen3-30b-a3b-tp4-h200"}' -t selir-html \
# RUN:   | filecheck %s --check-prefix=HTML
from detent.lang import Unpinnable, assume, record, require, selection


@record
class Limits:
    max_num_seqs: int


@record
class Call:
    seqs: Unpinnable[int]


@selection(family="toy")
def rows(limits: Limits, call: Call):
    assume(1 <= call.seqs <= limits.max_num_seqs)
    if call.seqs > 512:
        tile = 256
    elif call.seqs > 64:
        tile = 128
    else:
        tile = 64
    require(tile * 8 <= limits.max_num_seqs, "eight tiles cover at most the batch's limit")
    return {"tile": tile, "warps": tile // 32}


# 256 * 8 exceeds the limit of 1024: 64 and 128 are legal, and most batches sampled that are legal take 128.
# CHECK: selir.program "rows" family "toy" attributes
# CHECK-SAME: "candidates": 3, "legal": 2, "proved": 3, "sampled": 0
# CHECK-NOT: selir.if
# CHECK: selir.pin "tile"
# CHECK-SAME: candidates = #selir.value<[64, 128, 256]>
# CHECK: selir.points ["tile", "warps"]

# PYTHON: def select(seqs):
# PYTHON: tile = 128
# PYTHON: if not (1 <= seqs and seqs <= 1024):
# PYTHON: 'tile': tile,

# DOT: digraph "rows" {
# MERMAID: flowchart LR
# HTML: <!DOCTYPE html>
