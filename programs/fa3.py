"""What the host decides before a FlashAttention-3 forward call on sm_90, as vLLM 0.26.0 and SGLang 0.5.17 ship it.

``library`` says whose FlashAttention-3 decides: ``vllm``'s, ``sglang``'s, or ``upstream``, the one of its authors
(Dao-AILab/flash-attention 0251105a). The first half takes plain numbers and is what the libraries' own outputs are
compared with; the second half puts a deployment's facts into it, in the order in which FA3 decides. Rules come from the
sources (``hopper/flash_api.cpp``, ``heuristics.h``, ``tile_size.h``) and were checked against the shipped libraries.
"""

from __future__ import annotations

from detent.lang import ceil, f32
from detent.programs.fa3_tiles import tile
from detent.programs.facts import Engine, Gpu, Limits, Model, Parallel

ONE_WG_ROWS = 64  # rows of the one-warpgroup tile
L2_BYTES = 50 * 1024 * 1024  # what the heuristic takes the L2 cache to hold
OCCUPIED = 0.8  # of the SMs, from which on a grid needs no splitting; a float in C
EFFICIENT = 0.85  # of the best wave efficiency is good enough; a double in C
FEW_BLOCKS = 4  # KV blocks not worth splitting
PACK_GAIN = 0.9  # a double in C
PREPARE_LIMIT = 992  # sequences one block of the prepare kernel covers: 32 warps of 31
CASCADE_PREFIX = 256  # shared KV tokens from which vLLM considers cascade attention
CASCADE_SEQUENCES = 8  # and sequences
CASCADE_TILE = 128  # rows and KV tokens of a tile in its model of the two costs


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def normalise_window(head_dim: int, paged: bool, causal: bool, window_left: int, window_right: int, max_seqlen_q: int,
                     seqlen_k: int) -> tuple[int, int, bool, bool]:
    """``(window left, window right, is_causal, is_local)`` as the kernel gets them.

    A window wider than the batch's longest sequence is dropped, and a pure decode call drops its causal mask at
    head dims for which no faster kernel has one.
    """
    left = -1 if window_left >= seqlen_k - 1 else window_left
    right = -1 if window_right >= max_seqlen_q - 1 else window_right
    maskless = max_seqlen_q == 1 and left == -1 and right == -1 and (head_dim <= 64 or head_dim > 128 or not paged)
    bound = 0 if causal and not maskless else right
    is_causal = left < 0 and bound == 0
    is_local = (left >= 0 or bound >= 0) and not is_causal
    return (seqlen_k - 1 if left < 0 else left), (max_seqlen_q - 1 if bound < 0 else bound), is_causal, is_local


def selects_one_wg(library: str, head_dim: int, group: int, is_local: bool, max_seqlen_q: int) -> bool:
    """Whether one MMA warpgroup and its 64-row tile serve the call; ``group`` is query heads a KV head.

    Both rules on rows are written as rules on query tokens: a number of rows would be one value to pin in place of
    two decisions, and no value of it would mean anything.
    """
    if library == "upstream" or head_dim not in (64, 128) or (library == "vllm" and is_local):
        return False
    return max_seqlen_q <= ONE_WG_ROWS // group


def selects_tma(library: str, paged: bool, page_size: int, leftpad: bool, append_kv: bool, is_local: bool, group: int,
                max_seqlen_q: int, block_m: int, block_n: int) -> bool:
    """Whether a paged KV cache is read by TMA: whole blocks fit a page and the query rows outgrow one tile, the tile
    being that of a kernel that does not gather."""
    if not paged or leftpad or append_kv or (library == "vllm" and is_local):
        return False
    return page_size % block_n == 0 and max_seqlen_q > block_m // group


def row_blocks(library: str, varlen: bool, dynamic: bool, b: int, total_q: int, kv_heads: int, group: int, rows: int,
               block_m: int) -> int:
    """Blocks of query rows that the heuristic counts. vLLM and the authors count one sequence where the device
    splits dynamically; SGLang counts the batch's query tokens, or ``b`` sequences where lengths do not vary."""
    if library == "sglang" and varlen:
        return cdiv(total_q * group, block_m) * kv_heads
    sequences = 1 if library != "sglang" and dynamic else b
    return sequences * kv_heads * cdiv(rows, block_m)


def wave_efficiency(blocks: int, splits: int, num_sm: int) -> float:
    """How full the last wave is when each of ``blocks`` is split, in single precision as in C."""
    waves = f32(blocks * splits) / f32(num_sm)
    return waves / f32(ceil(waves))


def split_heuristic(blocks: int, num_sm: int, n_blocks: int, m_blocks: int, kv_bytes: int, masked: bool,
                    max_splits: int, sm_limit: int) -> int:
    """FA3's ``num_splits_heuristic``. ``max_splits`` and ``sm_limit`` are its limits, 128 and ``num_sm`` in C++."""
    if f32(blocks) >= f32(OCCUPIED) * f32(num_sm):
        if kv_bytes > L2_BYTES and m_blocks >= 2 * num_sm and not masked:
            return min(cdiv(kv_bytes, L2_BYTES), max_splits)
        return 1
    if n_blocks <= FEW_BLOCKS:
        return 1
    limit = min(max_splits, sm_limit, n_blocks)
    best = max(wave_efficiency(blocks, s, num_sm) if s <= limit else f32(0.0) for s in range(1, max_splits + 1))
    return next((s for s in range(1, max_splits + 1)
                 if s <= limit and wave_efficiency(blocks, s, num_sm) >= EFFICIENT * best), 1)


def heuristic_splits(blocks: int, rows: int, seqlen_k: int, key_bytes: int, left: int, right: int, is_causal: bool,
                     is_local: bool, block_m: int, block_n: int, num_sm: int, max_splits: int, sm_limit: int) -> int:
    """The number of splits where the caller names none; ``key_bytes`` is one token's K and V of one head."""
    loaded = max(0, min(seqlen_k, right + left + 1 + block_m)) if is_local else seqlen_k
    return split_heuristic(blocks, num_sm, cdiv(loaded, block_n), cdiv(rows, block_m), seqlen_k * key_bytes,
                           is_causal or is_local, max_splits, sm_limit)


def row_efficiency(rows: int, block_m: int) -> float:
    """The part of the row blocks that holds rows."""
    return f32(rows) / f32(cdiv(rows, block_m) * block_m)


def packs_gqa(library: str, heads: int, kv_heads: int, head_dim: int, head_dim_v: int, is_local: bool, gathered: bool,
              num_splits: int, varlen_q: bool, max_seqlen_q: int, block_m: int) -> bool:
    """Whether the query heads of a KV head share a tile (``get_pack_gqa``)."""
    if gathered or num_splits > 1:
        return True
    if library == "vllm" and is_local and heads // kv_heads == 8 and head_dim == 64 and head_dim_v == 64:
        return True
    if heads == kv_heads:
        return False
    if varlen_q:
        return True
    packed = row_efficiency(max_seqlen_q * (heads // kv_heads), block_m)
    return row_efficiency(max_seqlen_q, block_m) < PACK_GAIN * packed


# ---- a deployment's facts put in -------------------------------------------------------------------------------


def rank_heads(model: Model, parallel: Parallel) -> int:
    """Query heads on one rank."""
    return model.num_attention_heads // parallel.tensor_parallel


def rank_kv_heads(model: Model, parallel: Parallel) -> int:
    """KV heads on one rank; heads are replicated where there are fewer than ranks."""
    return max(1, model.num_key_value_heads // parallel.tensor_parallel)


def rank_group(model: Model, parallel: Parallel) -> int:
    """Query heads a KV head."""
    return rank_heads(model, parallel) // rank_kv_heads(model, parallel)


def element_bytes(engine: Engine) -> int:
    """Bytes of a KV cache element."""
    return 1 if engine.kv_cache_dtype == "e4m3" else 2


def head_dims_exist(model: Model, engine: Engine) -> bool:
    """Whether kernels for the model's pair of head dims are built."""
    d, dv = model.head_dim, model.head_dim_v
    if d > 256 or d % (16 // element_bytes(engine)) != 0 or dv % (16 // element_bytes(engine)) != 0:
        return False
    if element_bytes(engine) == 1 and dv > 256:
        return False
    return dv == d or (128 < d <= 192 and 96 < dv <= 128) or (d <= 64 and dv <= 512)


def seqlen_k(engine: Engine, limits: Limits, in_graph: bool, max_seqlen_k: int, table_width: int) -> int:
    """The KV length selection sees: a captured graph was captured with the longest context, and SGLang passes no
    length but the width of the page table."""
    if engine.name == "sglang":
        width = cdiv(limits.max_context, engine.page_size) if in_graph else table_width
        return width * engine.page_size
    return limits.max_context if in_graph else max_seqlen_k


def model_window(model: Model, max_seqlen_q: int, keys: int) -> tuple[int, int, bool, bool]:
    """:func:`normalise_window` of the model; both engines page the KV cache."""
    return normalise_window(model.head_dim, True, model.causal, model.window_left, model.window_right, max_seqlen_q,
                            keys)


def needs_causal(model: Model, max_seqlen_q: int, keys: int) -> bool:
    """Whether a batch of these maxima needs the causal mask."""
    left, right, is_causal, is_local = model_window(model, max_seqlen_q, keys)
    return is_causal


def needs_local(model: Model, max_seqlen_q: int, keys: int) -> bool:
    """Whether a batch of these maxima needs the window."""
    left, right, is_causal, is_local = model_window(model, max_seqlen_q, keys)
    return is_local


def model_tile(library: str, model: Model, engine: Engine, is_causal: bool, is_local: bool, gathered: bool,
               one_wg: bool) -> tuple[int, int, bool, bool]:
    """:func:`tile` of the model; V is row-major in both engines."""
    return tile(library, model.head_dim, model.head_dim_v, element_bytes(engine), False, model.softcap > 0.0,
                is_causal, is_local, gathered, one_wg)


def gathers(library: str, model: Model, parallel: Parallel, engine: Engine, is_causal: bool, is_local: bool,
            one_wg: bool, max_seqlen_q: int) -> bool:
    """Whether pages are gathered. Neither engine pads on the left or appends keys in the call."""
    block_m, block_n, from_registers, overlap = model_tile(library, model, engine, is_causal, is_local, False, one_wg)
    return not selects_tma(library, True, engine.page_size, False, False, is_local, rank_group(model, parallel),
                           max_seqlen_q, block_m, block_n)


def asks_splits(engine: Engine, total_q: int) -> bool:
    """Whether the engine asks for a number of splits instead of leaving it to the heuristic: in its deterministic
    mode, and vLLM where a captured graph may replay the batch, whose buffers are made for a number."""
    in_reach = engine.full_graphs and engine.graph_splits > 0 and total_q <= engine.max_capture_size
    return engine.deterministic or in_reach


def asked_splits(engine: Engine) -> int:
    """The number that the engine asks for where it does."""
    return 1 if engine.deterministic else engine.graph_splits


def decide(library: str, model: Model, parallel: Parallel, gpu: Gpu, engine: Engine, b: int, total_q: int,
           max_seqlen_q: int, keys: int, max_splits: int, sm_limit: int) -> tuple[bool, bool, bool, bool, int]:
    """``(is_causal, is_local, one_wg, gathered, num_splits)`` of a call with varying lengths."""
    left, right, is_causal, is_local = model_window(model, max_seqlen_q, keys)
    one_wg = selects_one_wg(library, model.head_dim, rank_group(model, parallel), is_local, max_seqlen_q)
    gathered = gathers(library, model, parallel, engine, is_causal, is_local, one_wg, max_seqlen_q)
    block_m, block_n, from_registers, overlap = model_tile(
        library, model, engine, is_causal, is_local, gathered, one_wg)
    rows = max_seqlen_q * rank_group(model, parallel)
    blocks = row_blocks(library, True, True, b, total_q, rank_kv_heads(model, parallel),
                        rank_group(model, parallel), rows, block_m)
    key_bytes = (model.head_dim + model.head_dim_v) * element_bytes(engine)
    heuristic = heuristic_splits(blocks, rows, keys, key_bytes, left, right, is_causal, is_local, block_m, block_n,
                                 gpu.num_sm, max_splits, sm_limit)
    num_splits = asked_splits(engine) if asks_splits(engine, total_q) else heuristic
    return is_causal, is_local, one_wg, gathered, num_splits


def packs(library: str, model: Model, parallel: Parallel, is_local: bool, gathered: bool, num_splits: int,
          max_seqlen_q: int, block_m: int) -> bool:
    """Whether query heads are packed; vLLM builds only packed kernels where both head dims are the same."""
    if library == "vllm" and model.head_dim == model.head_dim_v:
        return True
    return packs_gqa(library, rank_heads(model, parallel), rank_kv_heads(model, parallel), model.head_dim,
                     model.head_dim_v, is_local, gathered, num_splits, True, max_seqlen_q, block_m)


def one_prepare_block(b: int) -> bool:
    """Whether one block of the prepare kernel covers the batch."""
    return b <= PREPARE_LIMIT


def cascade_pays(kv_heads: int, group: int, common_prefix: int, sequences: int, decoding: bool, num_sm: int) -> bool:
    """vLLM's rule for attending a shared prefix once for all sequences; ``decoding`` means a query token each.

    Decoding with grouped heads can split KV instead, so there the waves of both ways are compared.
    """
    if common_prefix < CASCADE_PREFIX or sequences < CASCADE_SEQUENCES:
        return False
    if group == 1 or not decoding:
        return True
    tiles = cdiv(common_prefix, CASCADE_TILE)
    waves = cdiv(kv_heads * group * cdiv(sequences, CASCADE_TILE), num_sm)
    return waves * tiles < cdiv(sequences * kv_heads * cdiv(group, CASCADE_TILE) * tiles, num_sm)


def uses_cascade(model: Model, parallel: Parallel, gpu: Gpu, engine: Engine, common_prefix: int, b: int,
                 max_seqlen_q: int) -> bool:
    """Whether vLLM attends the prefix that all requests share in a call of its own: never with a window, never in the
    deterministic mode."""
    if not engine.cascade_attention or engine.deterministic or model.window_left >= 0 or model.window_right >= 0:
        return False
    return cascade_pays(rank_kv_heads(model, parallel), rank_group(model, parallel), common_prefix, b,
                        max_seqlen_q == 1, gpu.num_sm)
