// A warpgroup's arithmetic on its rows: everything that enters the bits, shared by all kernels.
#pragma once

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

// `real`: whether the warp has a row r of some query; others are left as they come, and no real row sees them.
DEVICE void fold(Scores& s, RowState& row, float (&shrink)[2], float scale, const bool (&real)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    shrink[r] = 1.0f;
    if (!real[r]) continue;
    float top = s[2 * r], other = s[2 * r + 1];
#pragma unroll
    for (int i = 1; i < BN / 8; ++i) {
      top = fmaxf(top, s[4 * i + 2 * r]);
      other = fmaxf(other, s[4 * i + 2 * r + 1]);
    }
    top = fmaxf(top, other);
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

// Has the assembler keep the exponentials before the next wait, while the tensor cores still work: a trap that no sum
// of exponentials reaches.
DEVICE void finished_before_what_follows(const RowState& row) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p trap;}" ::"f"(row.z[0] + row.z[1]) : "memory");
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

DEVICE float inverse(float z) { return z > 0.0f ? __frcp_rn(z) : 0.0f; }
DEVICE float finish(float acc, float inverse_z) { return __fadd_rn(__fmul_rn(acc, inverse_z), 0.0f); }

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

}  // namespace
