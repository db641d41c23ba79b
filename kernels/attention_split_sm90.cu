// The Hopper half of detent.kernels.attention_split, compiled for one head dim (-DHEAD_DIM) and called through
// detent_attention_split below.
//
// One arithmetic, two kernels around it. A request's KV tokens fall into splits of `stride` tokens counted from token
// 0, a split into blocks of BN. fold() folds a block's scores into a row's split state (m, z, acc), blend() folds a
// finished split into the row. Both kernels call them in ascending order behind the same MMA instructions, so a row's
// bits cannot tell which kernel made them. What a path leaves out, it leaves out exactly: masks that hide nothing,
// factors of one, sums with zero (finish() makes -0 and 0 alike).
//
// A warpgroup fetches through the tensor copy engine, page by page (or, where pages are very short, token by token) and
// ahead across items of work; one warpgroup (split kernel) or two (prefill) compute. Inside a warpgroup the next block's scores are
// computed during this block's softmax.

#include "attention_split_fetch.cuh"
#include "attention_split_rows.cuh"

namespace {

// ---- a consumer warpgroup ------------------------------------------------------------------------------------

template <bool PREFILL, bool GATHER>
struct Consumer {
  using P = Plan<PREFILL>;
  const Params& p;
  const uint32_t shared;
  char* const shared_bytes;
  Barriers* const bars;
  const Item* const items;
  const int wg, thread;  // warpgroup, and thread in it
  int stage = 0, parity = 0;

  DEVICE void next_stage() {
    stage = stage + 1 == P::STAGES ? 0 : stage + 1;
    parity ^= stage == 0;
  }

  DEVICE uint32_t k_tile(int at) const { return shared + P::K_AT + at * KV_BYTES; }
  DEVICE uint32_t v_tile(int at) const { return shared + P::V_AT + at * KV_BYTES; }

  // What ordinary copies brought is for the MMA only behind a fence.
  DEVICE static void wait_full(uint64_t* full, int parity) {
    barrier_wait(shared_address(full), parity);
    if (GATHER) fence_async_proxy();
  }

  DEVICE void mask(Scores& s, int start, const int (&position)[2]) const {
    const int column = start + thread % 4 * 2;
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) {
      if (column + i / 4 * 8 + i % 2 > position[i / 2 % 2]) s[i] = NEVER;
    }
  }

  // Weights of tokens behind the request's last are zero, but what lies there may be no number.
  DEVICE void clear_values(int from) const {
    const int units = (BN - from) * (ROW / 16);
    for (int i = wg * 128 + thread; i < units * CHUNKS; i += P::GROUPS * 128) {
      const int chunk = i / units, at = P::V_AT + stage * KV_BYTES + (chunk * BN + from) * ROW + i % units * 16;
      *reinterpret_cast<uint4*>(shared_bytes + at) = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    named_sync(3, P::GROUPS * 128);
  }

  // Rows' states over the finished splits lie in memory meanwhile, each thread's own.
  DEVICE float4* row_state() const {
    float* at = P::ROW_STATE_SHARED ? reinterpret_cast<float*>(shared_bytes + P::ROW_STATE_AT)
                                    : p.part_acc + int64_t(blockIdx.x) * P::GROUPS * WG_ROWS * D;
    return reinterpret_cast<float4*>(at) + wg * (WG_ROWS * D / 4) + thread;
  }

  DEVICE void absorb(RowState& whole, RowState split, Accumulator& acc, bool first, bool last) const {
    float old_factor[2], split_factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      weigh(whole.m[r], split.m[r], old_factor[r], split_factor[r]);
      whole.z[r] = blend(whole.z[r], old_factor[r], over_columns(split.z[r]), split_factor[r]);
    }
    if (first && last) return;
    float4* state = row_state();
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      float* a = &acc[i / (PART / 8)][i % (PART / 8) * 4];
      if (!first) {
        const float4 old = state[i * 128];
        a[0] = blend(old.x, old_factor[0], a[0], split_factor[0]);
        a[1] = blend(old.y, old_factor[0], a[1], split_factor[0]);
        a[2] = blend(old.z, old_factor[1], a[2], split_factor[1]);
        a[3] = blend(old.w, old_factor[1], a[3], split_factor[1]);
      }
      if (!last) state[i * 128] = make_float4(a[0], a[1], a[2], a[3]);
    }
  }

  DEVICE void run() {
    const int first_row = thread / 32 * 16 + thread % 32 / 4;
    int token[2], head[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      token[r] = (first_row + 8 * r) / p.group;
      head[r] = (first_row + 8 * r) % p.group;
      if (token[r] >= p.tile_tokens) token[r] = 1 << 20;  // a row of no token
      else token[r] += wg * p.tile_tokens;
    }
    for (int turn = 0;; ++turn) {
      const int slot = turn % P::Q_SLOTS;
      barrier_wait(shared_address(&bars->q_full[slot]), turn / P::Q_SLOTS & 1);
      const Item item = items[slot];
      if (item.request < 0) return;
      this->item(item, slot, token, head);
    }
  }

  DEVICE void item(const Item& item, int slot, const int (&token)[2], const int (&head)[2]) {
    const uint32_t q = shared + P::Q_AT + (slot * P::GROUPS + wg) * Q_BYTES;
    const int position[2] = {item.position + token[0], item.position + token[1]};
    const int lowest = item.position + wg * p.tile_tokens;  // blocks up to it hide nothing from any row
    Scores s;
    Weights w;
    Accumulator acc;
    RowState row = {{NEVER, NEVER}, {0.0f, 0.0f}}, whole = row;
    float shrink[2];
    const int warp_row = thread / 32 * 16, rows = item.tokens * p.group;
    const bool real[2] = {PREFILL || warp_row < rows, PREFILL || warp_row + 8 < rows};
    bool first_split = true;
    if (item.first >= item.end) {
      barrier_arrive(shared_address(&bars->q_empty[slot]));
#pragma unroll
      for (int i = 0; i < D / 2; ++i) acc[i / (PART / 2)][i % (PART / 2)] = 0.0f;
    } else {
      wait_full(&bars->k_full[stage], parity);
      issue_scores(s, q, k_tile(stage));
      mma_wait<0>();
      settle(s);
      release(&bars->k_empty[stage]);
      int start = item.first;
      if (start + BN >= item.end) barrier_arrive(shared_address(&bars->q_empty[slot]));
      if (start + BN - 1 > lowest) mask(s, start, position);
      fold(s, row, shrink, p.scale, real);
      pack(w, s);
      bool add = false;
      int boundary = item.first + p.stride;
      for (start += BN; start < item.end; start += BN) {
        const int v_stage = stage, v_parity = parity;
        next_stage();
        wait_full(&bars->k_full[stage], parity);
        issue_scores(s, q, k_tile(stage));
        wait_full(&bars->v_full[v_stage], v_parity);
        issue_values(acc, w, v_tile(v_stage), add);
        mma_wait<1>();
        settle(s);
        release(&bars->k_empty[stage]);
        if (start + BN >= item.end) barrier_arrive(shared_address(&bars->q_empty[slot]));
        if (start + BN - 1 > lowest) mask(s, start, position);
        const RowState split = row;
        const bool turned = PREFILL && start == boundary;
        if (turned) row = {{NEVER, NEVER}, {0.0f, 0.0f}};
        fold(s, row, shrink, p.scale, real);
        if (!PREFILL) finished_before_what_follows(row);  // in prefill the other warpgroup fills the gap
        mma_wait<0>();
        settle_all(acc);
        release(&bars->v_empty[v_stage]);
        if (turned) {
          absorb(whole, split, acc, first_split, false);
          first_split = false;
          boundary += p.stride;
        } else if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < D / 2; ++i) {
            float& a = acc[i / (PART / 2)][i % (PART / 2)];
            a = __fmul_rn(a, shrink[i / 2 % 2]);
          }
        }
        add = !turned;
        pack(w, s);
      }
      wait_full(&bars->v_full[stage], parity);
      if (start > item.length) clear_values(BN - (start - item.length));
      issue_values(acc, w, v_tile(stage), add);
      mma_wait<0>();
      settle_all(acc);
      release(&bars->v_empty[stage]);
      next_stage();
    }
    if (!PREFILL && p.splits > 1) {
      store_split(item, row, acc);
    } else {
      absorb(whole, row, acc, first_split, true);
      store_rows(item, whole, acc, token, head);
    }
  }

  DEVICE static void settle_all(Accumulator& acc) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) settle(acc[part]);
  }

  DEVICE void store_split(const Item& item, const RowState& row, const Accumulator& acc) const {
    const int64_t unit = int64_t(item.request * p.kv_heads + item.head) * p.splits + item.split;
    const int64_t place = unit * (p.short_q * p.group);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float z = over_columns(row.z[r]);
      const int at = thread / 32 * 16 + thread % 32 / 4 + 8 * r;
      if (at >= item.tokens * p.group) continue;
      if (thread % 4 == 0) {
        p.part_m[place + at] = row.m[r];
        p.part_z[place + at] = z;
      }
      float* to = p.part_acc + (place + at) * D + thread % 4 * 2;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        const float* a = &acc[i / (PART / 8)][i % (PART / 8) * 4 + 2 * r];
        *reinterpret_cast<float2*>(to + 8 * i) = make_float2(a[0], a[1]);
      }
    }
  }

  DEVICE void store_rows(const Item& item, const RowState& row, const Accumulator& acc, const int (&token)[2],
                         const int (&head)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (token[r] >= item.tokens) continue;
      const float factor = inverse(row.z[r]);
      __nv_bfloat16* to = p.out + (item.query + token[r]) * p.o_token + (item.head * p.group + head[r]) * p.o_head +
                          thread % 4 * 2;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        const float* a = &acc[i / (PART / 8)][i % (PART / 8) * 4 + 2 * r];
        *reinterpret_cast<uint32_t*>(to + 8 * i) = pack_bf16(finish(a[0], factor), finish(a[1], factor));
      }
    }
  }
};

template <bool PREFILL, bool GATHER>
__global__ void __launch_bounds__(Plan<PREFILL>::THREADS, 1)
    attend(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
           const __grid_constant__ CUtensorMap v, const __grid_constant__ Params p) {
  using P = Plan<PREFILL>;
  extern __shared__ char raw[];
  __shared__ Barriers bars;
  __shared__ Item items[2];
  __shared__ int tickets[2];
  const uint32_t shared = shared_address(raw) + 1023 & ~1023u;
  char* const shared_bytes = raw + (shared - shared_address(raw));
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&bars.q_full[i]), 1);
      barrier_init(shared_address(&bars.q_empty[i]), 128 * P::GROUPS);
    }
    for (int i = 0; i < 4; ++i) {
      barrier_init(shared_address(&bars.k_full[i]), GATHER ? 128 : 4);  // the fetching threads, or their warps
      barrier_init(shared_address(&bars.v_full[i]), GATHER ? 128 : 4);
      barrier_init(shared_address(&bars.k_empty[i]), 4 * P::GROUPS);
      barrier_init(shared_address(&bars.v_empty[i]), 4 * P::GROUPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    prefetch_map(&q);
    prefetch_map(&k);
    prefetch_map(&v);
  }
  __syncthreads();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if constexpr (PREFILL) {
    if (threadIdx.x < 128) {
      registers_down<56>();
      Producer<PREFILL, GATHER>(p, &q, &k, &v, shared, &bars, items, tickets).run();
    } else {
      registers_up<224>();
      const int wg = threadIdx.x / 128 - 1;
      Consumer<PREFILL, GATHER>{p, shared, shared_bytes, &bars, items, wg, static_cast<int>(threadIdx.x % 128)}.run();
    }
  } else {
    if (threadIdx.x >= 128) {
      Producer<PREFILL, GATHER>(p, &q, &k, &v, shared, &bars, items, tickets).run();
    } else {
      Consumer<PREFILL, GATHER>{p, shared, shared_bytes, &bars, items, 0, static_cast<int>(threadIdx.x)}.run();
    }
  }
}

}  // namespace

#include "attention_split_combine.cuh"
#include "attention_split_launch.cuh"
