// Merges the split kernel's partial results.
#pragma once

#include "attention_split_rows.cuh"

namespace {

// A warp 32 columns of a short request's query token and head: its splits in ascending order, AHEAD loads in flight.
__global__ void __launch_bounds__(128, 8) combine(const __grid_constant__ Params p) {
  constexpr int EACH = D / 32, AHEAD = 16;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32, heads = p.kv_heads * p.group;
  const int warp = blockIdx.x * 4 + threadIdx.x / 32;
  const int column = warp % EACH * 32 + lane, unit = warp / EACH;
  const int request = unit / heads / p.short_q, query = unit / heads % p.short_q, head = unit % heads;
  if (request >= p.batch) return;
  const int first = p.cu[request], queries = p.cu[request + 1] - first;
  if (queries > p.short_q || query >= queries) return;
  const int position = max(0, min(p.used[request], p.max_context)) - queries + query;
  const int count = min((position + p.stride) / p.stride, p.splits), step = p.short_q * p.group;
  const int64_t splits = int64_t(request * p.kv_heads + head / p.group) * p.splits;
  const int64_t place = splits * step + query * p.group + head % p.group;
  float m = NEVER, z = 0.0f, acc = 0.0f;
  for (int base = 0; base < count; base += AHEAD) {
    const int here = min(AHEAD, count - base);
    const int64_t mine = place + int64_t(base + lane) * step;
    const float m_mine = lane < here ? p.part_m[mine] : NEVER;
    const float z_mine = lane < here ? p.part_z[mine] : 0.0f;
    const float* from = p.part_acc + (place + int64_t(base) * step) * D + column;
    float acc_split[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) acc_split[i] = i < here ? from[i * step * D] : 0.0f;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (i >= here) break;
      float old_factor, split_factor;
      weigh(m, __shfl_sync(~0u, m_mine, i), old_factor, split_factor);
      z = blend(z, old_factor, __shfl_sync(~0u, z_mine, i), split_factor);
      acc = blend(acc, old_factor, acc_split[i], split_factor);
    }
  }
  p.out[(first + query) * p.o_token + head * p.o_head + column] = __float2bfloat16_rn(finish(acc, inverse(z)));
}

}  // namespace
