// The warpgroup that fetches queries, keys and values.
#pragma once

#include "attention_split_work.cuh"

// The producer warps: fetch every item's queries, keys and values into the rings, as their slots become free. Each
// takes every fourth page, because a warp issues one copy after another.
//
// GATHER: pages so short that a copy for each would take longer than memory does. Then a warp takes a quarter of the
// block's tokens and copies them by ordinary asynchronous copies of 16 bytes, into the places where the copy engine
// would have put them.
template <bool PREFILL, bool GATHER>
class Producer {
  using P = Plan<PREFILL>;

 public:
  DEVICE Producer(const Params& p, const CUtensorMap* q, const CUtensorMap* k, const CUtensorMap* v, uint32_t shared,
                  Barriers* bars, Item* items, int* tickets)
      : p(p), map_q(q), map_k(k), map_v(v), shared(shared), bars(bars), items(items), tickets(tickets),
        warp(threadIdx.x % 128 / 32), lane(threadIdx.x % 32), mine(GATHER ? warp * QUARTER + lane : warp + 4 * lane),
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
        if (GATHER) gather(item, start, p.k, p.k_page, p.k_token, p.k_head, P::K_AT + stage * KV_BYTES,
                           &bars->k_full[stage]);
        else block(item, start, map_k, P::K_AT + stage * KV_BYTES, &bars->k_full[stage]);
        if (start == item.first) queries(item, slot, q_parity);
        barrier_wait(shared_address(&bars->v_empty[stage]), parity);
        if (GATHER) gather(item, start, p.v, p.v_page, p.v_token, p.v_head, P::V_AT + stage * KV_BYTES,
                           &bars->v_full[stage]);
        else block(item, start, map_v, P::V_AT + stage * KV_BYTES, &bars->v_full[stage]);
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
    if (GATHER) copies_wait();
  }

 private:
  static constexpr int UNITS = CHUNKS * ROW / 16;        // of 16 bytes in a token's row
  static constexpr int QUARTER = BN / 4, AT_ONCE = 32 / UNITS;  // tokens of a warp, and of one of its copies
  const Params& p;
  const CUtensorMap *map_q, *map_k, *map_v;
  const uint32_t shared;
  Barriers* bars;
  Item* items;
  int* tickets;  // two, by turns
  const int warp, lane;
  const int mine;        // the thread's page of every block; its token, where pages are gathered
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
    if (GATHER) {
      if (item.request < 0 || lane >= QUARTER || start + mine >= item.length) return 0;
      return p.table[item.request * p.table_row + (start + mine >> p.page_shift)];
    }
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

  // Every thread arrives once its copies are there; tokens behind the request's last are not copied.
  DEVICE void gather(const Item& item, int start, const char* cache, int64_t page_step, int64_t token_step,
                     int64_t head_step, int at, uint64_t* full) {
    const int unit = lane % UNITS, column = unit * 8;
    const char* const from = cache + item.head * head_step + column * 2;
    const uint32_t to = shared + at + unit / 8 * (BN * ROW);
#pragma unroll 4
    for (int i = 0; i < QUARTER; i += AT_ONCE) {
      const int64_t number = __shfl_sync(~0u, page, i + lane / UNITS);
      const int token = warp * QUARTER + i + lane / UNITS;
      const char* const source = from + number * page_step + (start + token & p.page - 1) * token_step;
      if (start + token < item.length) {  // the swizzle: units of a row change places by the row's number
        copy_unit<!PREFILL>(to + token * ROW + ((unit ^ token) & 7) * 16, column < D ? source : cache, column < D);
      }
    }
    arrive_with_copies(shared_address(full));
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
