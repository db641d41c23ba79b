// Which work a multiprocessor takes, found on the device from the requests' lengths, and the warp that fetches it.
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

// The producer warps: fetch every item's queries, keys and values into the rings, as their slots become free. Each
// takes every fourth page, because a warp issues one copy after another.
template <bool PREFILL>
class Producer {
  using P = Plan<PREFILL>;

 public:
  DEVICE Producer(const Params& p, const CUtensorMap* q, const CUtensorMap* k, const CUtensorMap* v, uint32_t shared,
                  Barriers* bars, Item* items, int* tickets)
      : p(p), map_q(q), map_k(k), map_v(v), shared(shared), bars(bars), items(items), tickets(tickets),
        warp(threadIdx.x % 128 / 32), lane(threadIdx.x % 32), mine(warp + 4 * lane),
        span_shift(min(p.page_shift, BN_SHIFT)) {}

  DEVICE void run() {
    Work<PREFILL> work(p, lane);
    int stage = 0, parity = 1;  // a slot's first wait passes
    Item item = work.item(blockIdx.x);
    page = page_of(item, item.first);
    for (int turn = 0;; ++turn) {
      const int slot = turn % P::Q_SLOTS;
      const int q_parity = turn / P::Q_SLOTS + 1 & 1;
      if (item.request < 0 || item.first >= item.end) queries(item, slot, q_parity);
      if (item.request < 0) break;
      Item next;
      int next_page = 0;
      bool looked = false;
      for (int start = item.first; start < item.end; start += BN) {
        barrier_wait(shared_address(&bars->k_empty[stage]), parity);
        block(item, start, map_k, P::K_AT + stage * KV_BYTES, &bars->k_full[stage]);
        if (start == item.first) queries(item, slot, q_parity);
        barrier_wait(shared_address(&bars->v_empty[stage]), parity);
        block(item, start, map_v, P::V_AT + stage * KV_BYTES, &bars->v_full[stage]);
        const bool more = start + BN < item.end;
        if (more) page = page_of(item, start + BN);
        if (!looked && (!more || start >= item.first + 2 * BN)) {  // early, but not before the first blocks
          next = next_item(work, turn + 1);
          next_page = page_of(next, next.first);
          looked = true;
        }
        stage = stage + 1 == P::STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
      }
      if (!looked) {
        next = next_item(work, turn + 1);
        next_page = page_of(next, next.first);
      }
      item = next;
      page = next_page;
    }
  }

 private:
  const Params& p;
  const CUtensorMap *map_q, *map_k, *map_v;
  const uint32_t shared;
  Barriers* bars;
  Item* items;
  int* tickets;  // two, by turns
  const int warp, lane;
  const int mine;        // the thread's page of every block
  const int span_shift;  // log2 of the tokens of a copy
  int page;              // the number of that page of the next block

  // Ascending items. In prefill, where they become smaller, in alternate directions, so that every program gets as
  // much; otherwise whoever is free takes the next, because memory serves some multiprocessors faster.
  DEVICE Item next_item(Work<PREFILL>& work, int turn) {
    const int programs = gridDim.x;
    if (p.taken == nullptr) return work.item(turn * programs + (turn % 2 ? programs - 1 - blockIdx.x : blockIdx.x));
    int* const ticket = tickets + turn % 2;
    if (warp == 0 && lane == 0) *ticket = atomicAdd(p.taken, 1);
    named_sync(4, 128);
    const int drawn = *ticket;
    const Item item = work.item(programs + drawn);
    if (item.request < 0 && drawn == work.items() - 1 && warp == 0 && lane == 0) *p.taken = 0;  // the last to ask
    return item;
  }

  // Pages that hold the block's tokens; the tokens behind a request's last are in none.
  DEVICE int page_count(const Item& item, int start) {
    return min(BN, item.length - start) + (1 << span_shift) - 1 >> span_shift;
  }

  DEVICE int page_of(const Item& item, int start) {
    if (item.request < 0 || mine >= page_count(item, start)) return 0;
    return p.table[item.request * p.table_row + (start >> p.page_shift) + mine];
  }

  DEVICE void block(const Item& item, int start, const CUtensorMap* map, int at, uint64_t* full) {
    const int count = page_count(item, start);
    const uint32_t bar = shared_address(full);
    // Every warp arrives, with its own bytes or none: a warp that only watched could fall two phases behind, and wait
    // for ever for the one it missed.
    if (lane == 0) barrier_expect(bar, (count + 3 - warp >> 2) * CHUNKS * ROW << span_shift);
    if (mine < count) {
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        const uint32_t to = shared + at + (chunk * BN + (mine << span_shift)) * ROW;
        if (PREFILL) copy_box4(to, map, bar, chunk * 64, item.head, start & p.page - 1, page);
        else stream_box4(to, map, bar, chunk * 64, item.head, start & p.page - 1, page);
      }
    }
    __syncwarp();
  }

  DEVICE void queries(const Item& item, int slot, int parity) {
    if (warp != 0) return;
    barrier_wait(shared_address(&bars->q_empty[slot]), parity);
    const uint32_t bar = shared_address(&bars->q_full[slot]);
    if (lane == 0) {
      items[slot] = item;
      if (item.request < 0) {
        barrier_arrive(bar);
      } else {
        barrier_expect(bar, P::GROUPS * p.box_tokens * p.group * CHUNKS * ROW);
#pragma unroll
        for (int wg = 0; wg < P::GROUPS; ++wg) {
#pragma unroll
          for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            copy_box3(shared + P::Q_AT + (slot * P::GROUPS + wg) * Q_BYTES + chunk * WG_ROWS * ROW, map_q, bar,
                      chunk * 64, item.head * p.group, item.query + wg * p.tile_tokens);
          }
        }
      }
    }
    __syncwarp();
  }
};
