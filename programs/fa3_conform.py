"""How FlashAttention-3's own outputs, recorded row by row from a shipped library, are compared with the helpers.

Plain Python beside the programs and no part of them. A row's inputs are named as in ``flash.h``; its flags need not
be ones that FA3's normalisation yields, so a row tests the helpers and not a whole program.
"""

from __future__ import annotations

from detent.programs.fa3 import heuristic_splits, packs_gqa, row_blocks, selects_one_wg, selects_tma
from detent.programs.fa3_tiles import tile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STOCK_SPLITS = 128  # the heuristic's own limit
HOST_COLUMNS = ("b", "seqlen_q", "seqlen_k", "total_q", "h", "h_k", "d", "dv", "is_causal", "is_local", "is_e4m3",
                "has_softcap", "varlen_q", "varlen_k", "seqused_q", "seqused_k", "leftpad_k", "knew", "paged",
                "page_size", "dyn", "wl", "wr", "num_sm")
HOST_OUTPUTS = ("use_one_mma_wg_ref", "pagedkv_tma", "num_splits", "pack_gqa")
TILE_COLUMNS = ("headdim", "headdim_v", "is_causal", "is_local", "elem_bytes", "v_colmajor", "paged_non_tma",
                "softcap", "use_one_mma_wg")
TILE_OUTPUTS = ("kBlockM", "kBlockN", "MmaPV_is_RS", "IntraWGOverlap")


def tile_row(library: str, row: Mapping[str, int]) -> tuple[int, ...]:
    """``TILE_OUTPUTS`` of one entry of the tile table."""
    return tile(library, row["headdim"], row["headdim_v"], row["elem_bytes"], bool(row["v_colmajor"]),
                bool(row["softcap"]), bool(row["is_causal"]), bool(row["is_local"]), bool(row["paged_non_tma"]),
                bool(row["use_one_mma_wg"]))


def host_row(library: str, row: Mapping[str, int]) -> tuple[int, ...]:
    """``HOST_OUTPUTS`` of one call: what the host decides from kernel parameters that are already normalised."""
    heads, kv_heads, d, dv = row["h"], row["h_k"], row["d"], row["dv"]
    is_causal, is_local, paged = bool(row["is_causal"]), bool(row["is_local"]), bool(row["paged"])
    elem_bytes, softcap = 1 if row["is_e4m3"] else 2, bool(row["has_softcap"])
    varlen_q = bool(row["varlen_q"] or row["seqused_q"])
    varlen = bool(varlen_q or row["varlen_k"] or row["seqused_k"] or row["leftpad_k"])
    rows = row["seqlen_q"] * (heads // kv_heads)
    one_wg = selects_one_wg(library, d, heads // kv_heads, is_local, row["seqlen_q"])
    block_m, block_n, _, _ = tile(library, d, dv, elem_bytes, False, softcap, is_causal, is_local, False, one_wg)
    tma = selects_tma(library, paged, row["page_size"], bool(row["leftpad_k"]), bool(row["knew"]), is_local,
                      heads // kv_heads, row["seqlen_q"], block_m, block_n)
    gathered = paged and not tma
    block_m, block_n, _, _ = tile(library, d, dv, elem_bytes, False, softcap, is_causal, is_local, gathered, one_wg)
    blocks = row_blocks(library, varlen, bool(row["dyn"]), row["b"], row["total_q"] or row["b"] * row["seqlen_q"],
                        kv_heads, heads // kv_heads, rows, block_m)
    num_splits = heuristic_splits(blocks, rows, row["seqlen_k"], (d + dv) * elem_bytes, row["wl"], row["wr"],
                                  is_causal, is_local, block_m, block_n, row["num_sm"], STOCK_SPLITS, row["num_sm"])
    pack = packs_gqa(library, heads, kv_heads, d, dv, is_local, gathered, num_splits, varlen_q, row["seqlen_q"],
                     block_m)
    return one_wg, tma, num_splits, pack
