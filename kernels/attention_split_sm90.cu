// The Hopper half of detent.kernels.attention_split, compiled for one head dim (-DHEAD_DIM) and called through
// detent_attention_split below.
//
// One arithmetic, two kernels around it. A request's KV tokens fall into splits of `stride` tokens counted from token
// 0, a split into blocks of BN. fold() folds a block's scores into a row's split state (m, z, acc), blend() folds a
// finished split into the row. Both kernels call them in ascending order behind the same MMA instructions, so a row's
// bits cannot tell which kernel made them. What a path leaves out, it leaves out exactly: masks that hide nothing,
// factors of one, sums with zero (finish() makes -0 and 0 alike).
//
// A warp fetches through the tensor copy engine, page by page and ahead across items of work; one warpgroup (split
// kernel) or two that take turns at the tensor cores (prefill) compute. Inside a warpgroup the next block's scores are
// computed during this block's softmax.

#include "attention_split_work.cuh"

namespace {

constexpr int PARTS = D > 128 ? 2 : 1;  // MMAs side by side that cover the head dim
constexpr int PART = D / PARTS;
constexpr float NEVER = -INFINITY;
constexpr float HEADROOM = 8.0f;  // a row's origin m moves only when its scores outgrow it by this many powers of two

using Scores = float[BN / 2];
using Weights = uint32_t[BN / 4];
using Accumulator = float[PARTS][PART / 2];

// A thread's two rows, 8 apart, of one split: m (powers of two) and, each thread over its own columns, z.
struct RowState {
  float m[2], z[2];
};

DEVICE void fold(Scores& s, RowState& row, float (&shrink)[2], float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = s[2 * r];
#pragma unroll
    for (int i = 0; i < BN / 8; ++i) top = fmaxf(fmaxf(top, s[4 * i + 2 * r]), s[4 * i + 2 * r + 1]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    top = __fmul_rn(top, scale);
    const float m = __fsub_rn(top, row.m[r]) > HEADROOM ? top : row.m[r];
    const float origin = m == NEVER ? 0.0f : m;  // a row that sees no key yet: exp2(-inf - 0) is 0, not NaN
    shrink[r] = exp2_fast(__fsub_rn(row.m[r], origin));
    row.m[r] = m;
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 0; i < BN / 8; ++i) {
      float& a = s[4 * i + 2 * r];
      float& b = s[4 * i + 2 * r + 1];
      a = exp2_fast(__fmaf_rn(a, scale, -origin));
      b = exp2_fast(__fmaf_rn(b, scale, -origin));
      even = __fadd_rn(even, a);
      odd = __fadd_rn(odd, b);
    }
    row.z[r] = __fmaf_rn(row.z[r], shrink[r], __fadd_rn(even, odd));
  }
}

DEVICE float over_columns(float z) {
  z = __fadd_rn(z, __shfl_xor_sync(~0u, z, 1));
  return __fadd_rn(z, __shfl_xor_sync(~0u, z, 2));
}

// The factors by which a row's state and a later split's are blended, and the new m.
DEVICE void weigh(float& m, float m_split, float& old_factor, float& split_factor) {
  const float top = fmaxf(m, m_split);
  const float origin = top == NEVER ? 0.0f : top;
  old_factor = exp2_fast(__fsub_rn(m, origin));
  split_factor = exp2_fast(__fsub_rn(m_split, origin));
  m = top;
}

DEVICE float blend(float old, float old_factor, float split, float split_factor) {
  return __fmaf_rn(split, split_factor, __fmul_rn(old, old_factor));
}

DEVICE float finish(float acc, float z) { return __fadd_rn(__fmul_rn(acc, z > 0.0f ? __frcp_rn(z) : 0.0f), 0.0f); }

// ---- one warpgroup's MMAs ------------------------------------------------------------------------------------

DEVICE void issue_scores(Scores& s, uint32_t q, uint32_t k) {
  const uint64_t a = tile_descriptor(q, 16), b = tile_descriptor(k, 16);
  settle(s);
  mma_fence();
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    const int chunk = i / 4, within = i % 4 * 32;
    Mma<BN>::shared_shared(s, a + (chunk * WG_ROWS * ROW + within >> 4), b + (chunk * BN * ROW + within >> 4), i > 0);
  }
  mma_commit();
}

DEVICE void issue_values(Accumulator& acc, const Weights& w, uint32_t v, bool add) {
  const uint64_t b = tile_descriptor(v, BN * ROW);
#pragma unroll
  for (int part = 0; part < PARTS; ++part) settle(acc[part]);
  mma_fence();
#pragma unroll
  for (int i = 0; i < BN / 16; ++i) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      Mma<PART>::registers_shared(acc[part], w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3],
                                  b + (i * 16 * ROW + part * (PART / 64) * BN * ROW >> 4), i > 0 || add);
    }
  }
  mma_commit();
}

DEVICE void pack(Weights& w, const Scores& s) {
#pragma unroll
  for (int i = 0; i < BN / 4; ++i) w[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

DEVICE void release(uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(empty));
}

// ---- a consumer warpgroup ------------------------------------------------------------------------------------

template <bool PREFILL>
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
    char* at = P::ROW_STATE_SHARED ? shared_bytes + P::ROW_STATE_AT
                                   : reinterpret_cast<char*>(p.part_acc) + int64_t(blockIdx.x) * P::GROUPS * WG_ROWS * D * 4;
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
    if (PREFILL && wg == 1) named_arrive(1, 256);
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
    bool first_split = true;
    if (item.first >= item.end) {
      release(&bars->q_empty[slot]);
#pragma unroll
      for (int i = 0; i < D / 2; ++i) acc[i / (PART / 2)][i % (PART / 2)] = 0.0f;
    } else {
      barrier_wait(shared_address(&bars->k_full[stage]), parity);
      issue_scores(s, q, k_tile(stage));
      mma_wait<0>();
      settle(s);
      release(&bars->k_empty[stage]);
      int start = item.first;
      if (start + BN >= item.end) release(&bars->q_empty[slot]);
      if (start + BN - 1 > lowest) mask(s, start, position);
      fold(s, row, shrink, p.scale);
      pack(w, s);
      bool add = false;
      int boundary = item.first + p.stride;
      for (start += BN; start < item.end; start += BN) {
        const int v_stage = stage, v_parity = parity;
        next_stage();
        barrier_wait(shared_address(&bars->k_full[stage]), parity);
        if (PREFILL) named_sync(1 + wg, 256);  // the warpgroups take turns: one's softmax during the other's MMAs
        issue_scores(s, q, k_tile(stage));
        barrier_wait(shared_address(&bars->v_full[v_stage]), v_parity);
        issue_values(acc, w, v_tile(v_stage), add);
        if (PREFILL) named_arrive(2 - wg, 256);
        mma_wait<1>();
        settle(s);
        release(&bars->k_empty[stage]);
        if (start + BN >= item.end) release(&bars->q_empty[slot]);
        if (start + BN - 1 > lowest) mask(s, start, position);
        if (PREFILL && start == boundary) {
          const RowState split = row;
          row = {{NEVER, NEVER}, {0.0f, 0.0f}};
          fold(s, row, shrink, p.scale);
          mma_wait<0>();
          settle_all(acc);
          release(&bars->v_empty[v_stage]);
          absorb(whole, split, acc, first_split, false);
          first_split = add = false;
          boundary += p.stride;
        } else {
          fold(s, row, shrink, p.scale);
          mma_wait<0>();
          settle_all(acc);
          release(&bars->v_empty[v_stage]);
          if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int i = 0; i < D / 2; ++i) {
              float& a = acc[i / (PART / 2)][i % (PART / 2)];
              a = __fmul_rn(a, shrink[i / 2 % 2]);
            }
          }
          add = true;
        }
        pack(w, s);
      }
      barrier_wait(shared_address(&bars->v_full[stage]), parity);
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
    const int64_t place = (int64_t(item.request * p.kv_heads + item.head) * p.splits + item.split) * (p.short_q * p.group);
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
      __nv_bfloat16* to = p.out + (item.query + token[r]) * p.o_token + (item.head * p.group + head[r]) * p.o_head +
                          thread % 4 * 2;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        const float* a = &acc[i / (PART / 8)][i % (PART / 8) * 4 + 2 * r];
        *reinterpret_cast<uint32_t*>(to + 8 * i) = pack_bf16(finish(a[0], row.z[r]), finish(a[1], row.z[r]));
      }
    }
  }
};

template <bool PREFILL>
__global__ void __launch_bounds__(Plan<PREFILL>::THREADS, 1)
    attend(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
           const __grid_constant__ CUtensorMap v, const __grid_constant__ Params p) {
  using P = Plan<PREFILL>;
  extern __shared__ char raw[];
  __shared__ Barriers bars;
  __shared__ Item items[2];
  const uint32_t shared = shared_address(raw) + 1023 & ~1023u;
  char* const shared_bytes = raw + (shared - shared_address(raw));
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&bars.q_full[i]), 1);
      barrier_init(shared_address(&bars.q_empty[i]), 4 * P::GROUPS);
    }
    for (int i = 0; i < 4; ++i) {
      barrier_init(shared_address(&bars.k_full[i]), 1);
      barrier_init(shared_address(&bars.v_full[i]), 1);
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
      if (threadIdx.x < 32) Producer<PREFILL>(p, &q, &k, &v, shared, &bars, items).run();
    } else {
      registers_up<224>();
      const int wg = threadIdx.x / 128 - 1;
      Consumer<PREFILL>{p, shared, shared_bytes, &bars, items, wg, static_cast<int>(threadIdx.x % 128)}.run();
    }
  } else {
    if (threadIdx.x >= 128) {
      Producer<PREFILL>(p, &q, &k, &v, shared, &bars, items).run();
    } else {
      Consumer<PREFILL>{p, shared, shared_bytes, &bars, items, 0, static_cast<int>(threadIdx.x)}.run();
    }
  }
}

// A warp a short request's query token and head: its splits in ascending order, eight loads of each kind in flight.
__global__ void __launch_bounds__(128) combine(const __grid_constant__ Params p) {
  constexpr int AHEAD = 8, EACH = D / 32;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32, heads = p.kv_heads * p.group;
  const int unit = blockIdx.x * 4 + threadIdx.x / 32;
  const int request = unit / heads / p.short_q, query = unit / heads % p.short_q, head = unit % heads;
  if (request >= p.batch) return;
  const int first = p.cu[request], queries = p.cu[request + 1] - first;
  if (queries > p.short_q || query >= queries) return;
  const int position = max(0, min(p.used[request], p.max_context)) - queries + query;
  const int count = min((position + p.stride) / p.stride, p.splits), step = p.short_q * p.group;
  const int64_t place = int64_t(request * p.kv_heads + head / p.group) * p.splits * step + query * p.group + head % p.group;
  float m = NEVER, z = 0.0f, acc[EACH] = {};
  for (int base = 0; base < count; base += AHEAD) {
    float m_split[AHEAD], z_split[AHEAD], acc_split[AHEAD][EACH];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const bool there = base + i < count;
      const int64_t at = place + int64_t(base + i) * step;
      m_split[i] = there ? p.part_m[at] : NEVER;
      z_split[i] = there ? p.part_z[at] : 0.0f;
#pragma unroll
      for (int e = 0; e < EACH; ++e) acc_split[i][e] = there ? p.part_acc[at * D + lane + 32 * e] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      float old_factor, split_factor;
      weigh(m, m_split[i], old_factor, split_factor);
      z = blend(z, old_factor, z_split[i], split_factor);
#pragma unroll
      for (int e = 0; e < EACH; ++e) acc[e] = blend(acc[e], old_factor, acc_split[i][e], split_factor);
    }
  }
  __nv_bfloat16* to = p.out + (first + query) * p.o_token + head * p.o_head + lane;
#pragma unroll
  for (int e = 0; e < EACH; ++e) to[32 * e] = __float2bfloat16_rn(finish(acc[e], z));
}

}  // namespace

#include "attention_split_launch.cuh"
