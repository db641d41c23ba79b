// Which work a multiprocessor takes, found on the device from the requests' lengths.
#pragma once

#include "attention_split_sm90.cuh"

#ifndef HEAD_DIM
#error "compile with -DHEAD_DIM=64, 96, 128 or 256"
#endif

constexpr int D = HEAD_DIM;
constexpr int BN_SHIFT = D > 128 ? 6 : 7;
constexpr int BN = 1 << BN_SHIFT;           // KV tokens a block; enters the bits
constexpr int CHUNKS = (D + 63) / 64;       // of columns; those behind the head dim are zeros
constexpr int WG_ROWS = 64;                 // rows of a warpgroup's MMA
constexpr int Q_BYTES = WG_ROWS * CHUNKS * ROW;  // a warpgroup's queries
constexpr int KV_BYTES = BN * CHUNKS * ROW;      // a block's keys, or values

// PREFILL: two warpgroups of rows of one tile, whose requests' splits follow one another. Otherwise one warpgroup takes
// all rows of a short request, one split at a time.
template <bool PREFILL>
struct Plan {
  static constexpr int GROUPS = PREFILL ? 2 : 1;
  static constexpr int Q_SLOTS = PREFILL ? 1 : 2;
  static constexpr bool ROW_STATE_SHARED = PREFILL && D <= 128;  // else in global memory
  static constexpr int ROW_STATE_BYTES = ROW_STATE_SHARED ? GROUPS * WG_ROWS * D * 4 : 0;
  static constexpr int STAGES = D == 64 ? 4 : D <= 128 && !PREFILL ? 3 : 2;
  static constexpr int THREADS = 128 + GROUPS * 128;  // a warpgroup fetches
  static constexpr int Q_AT = 0;
  static constexpr int K_AT = Q_AT + Q_SLOTS * GROUPS * Q_BYTES;
  static constexpr int V_AT = K_AT + STAGES * KV_BYTES;
  static constexpr int ROW_STATE_AT = V_AT + STAGES * KV_BYTES;
  static constexpr int BYTES = 1024 + ROW_STATE_AT + ROW_STATE_BYTES;  // 1024 to align the rest
};

struct Params {
  __nv_bfloat16* out;
  float* part_acc;   // split kernel: (request, KV head, split, row of the request, D); prefill: room for row states
  float* part_m;
  float* part_z;
  const int* table;  // page numbers
  const int* cu;
  const int* used;
  int64_t table_row, o_token, o_head;
  int batch, kv_heads, group, page, page_shift, splits, stride, max_context, short_q;
  int tile_tokens;     // query tokens that a warpgroup's rows hold
  int box_tokens;      // those that one copy of queries fetches
  float scale;         // softmax scale times log2 e
  int* taken;          // how many items of work beyond one a program are taken; 0 between kernels. None: fixed shares
  const char *k, *v;   // the caches, and their strides in bytes, for pages that are gathered
  int64_t k_page, k_token, k_head, v_page, v_token, v_head;
};

// One piece of work. Rows of a warpgroup are (query token, head of the group).
struct Item {
  int request, head, split;  // request < 0: no more work
  int query, tokens;         // the tile's first query token, and how many
  int position;              // of the first, among the request's KV tokens
  int first, end, length;    // KV tokens to fold, and the request's
};

struct Barriers {
  uint64_t q_full[2], q_empty[2], k_full[4], k_empty[4], v_full[4], v_empty[4];
};

// Units of work in order: a tile of queries, or a request's split; all full splits come before the requests' shorter
// last ones, so that shares are even. A warp asks for ascending units; each lane knows the counts of four requests.
template <bool PREFILL>
class Work {
 public:
  DEVICE Work(const Params& p, int lane) : p(p), lane(lane) { load(); }

  // All items, once one was asked for that is not there.
  DEVICE int items() const { return before * p.kv_heads; }

  // The i-th item, all lanes alike.
  DEVICE Item item(int i) {
    const int unit = i / p.kv_heads;
    Item item{-1, i % p.kv_heads, 0, 0, 0, 0, 0, 0, 0};
    int index;
    if (!find(unit, item.request, index)) return item;
    item.query = p.cu[item.request];
    const int queries = p.cu[item.request + 1] - item.query;
    item.length = length_of(item.request);
    if (PREFILL) {
      const int tile = 2 * p.tile_tokens;
      const int skipped = ((queries + tile - 1) / tile - 1 - index) * tile;  // tiles with most keys first
      item.query += skipped;
      item.tokens = min(tile, queries - skipped);
      item.position = item.length - queries + skipped;
      item.end = max(0, item.position + item.tokens);
    } else {
      item.tokens = queries;
      item.position = item.length - queries;
      item.split = last ? item.length / p.stride : index;
      item.first = item.split * p.stride;
      item.end = min(item.first + p.stride, item.length);
    }
    return item;
  }

 private:
  const Params& p;
  const int lane;
  bool last = false;  // among the requests' shorter last splits
  int base = 0, before = 0, total = 0, upto = 0;
  int mine[4];

  DEVICE int length_of(int request) { return max(0, min(p.used[request], p.max_context)); }

  DEVICE int count(int request) {
    if (request >= p.batch) return 0;
    const int queries = p.cu[request + 1] - p.cu[request];
    if (PREFILL) return queries > p.short_q ? (queries + 2 * p.tile_tokens - 1) / (2 * p.tile_tokens) : 0;
    if (queries < 1 || queries > p.short_q) return 0;
    if (p.splits == 1) return 1;
    const int length = length_of(request);
    const int full = min(length / p.stride, p.splits);
    return last ? full < p.splits && length > full * p.stride : full;
  }

  DEVICE void load() {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += mine[i] = count(base + lane * 4 + i);
    upto = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, upto, step);
      upto += lane >= step ? other : 0;
    }
    total = __shfl_sync(~0u, upto, 31);
  }

  DEVICE bool find(int unit, int& request, int& index) {
    while (unit >= before + total) {
      before += total;
      base += 128;
      if (base >= p.batch) {
        if (PREFILL || p.splits == 1 || last) return total = 0, false;
        last = true;
        base = 0;
      }
      load();
    }
    const int owner = __ffs(__ballot_sync(~0u, unit - before < upto)) - 1;
    int left = unit - before - (upto - mine[0] - mine[1] - mine[2] - mine[3]);
    int which = 0;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (which == i && left >= mine[i]) {
        left -= mine[i];
        which = i + 1;
      }
    }
    request = __shfl_sync(~0u, base + lane * 4 + which, owner);
    index = __shfl_sync(~0u, left, owner);
    return true;
  }
};
