// Hopper's instructions as attention_split_sm90.cu uses them: barriers, the tensor copy engine, warpgroup MMA.
// Shared-memory addresses are 32-bit offsets in the shared window; sizes are bytes unless said otherwise.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__

DEVICE uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// ---- barriers ------------------------------------------------------------------------------------------------

DEVICE void barrier_init(uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

DEVICE void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives, and has the phase wait for `bytes` more from the copy engine.
DEVICE void barrier_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

DEVICE bool barrier_done(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

DEVICE void barrier_wait(uint32_t bar, uint32_t parity) {
#ifdef WATCHDOG  // for debugging: a hang becomes an error
  for (int spins = 0; !barrier_done(bar, parity); ++spins) {
    if (spins > WATCHDOG) __trap();
  }
#else
  while (!barrier_done(bar, parity)) {
  }
#endif
}

// Named barriers among whole warps.
DEVICE void named_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// What ordinary stores wrote to shared memory becomes visible to the MMA and the copy engine.
DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- tensor copy engine --------------------------------------------------------------------------------------

DEVICE void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

DEVICE void copy_box3(uint32_t to, const CUtensorMap* map, uint32_t bar, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(to), "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

DEVICE void copy_box4(uint32_t to, const CUtensorMap* map, uint32_t bar, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];"
      ::"r"(to), "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

constexpr uint64_t EVICT_FIRST = 0x12f0000000000000;  // createpolicy.fractional.L2::evict_first, whole

// As copy_box4, for what is read once: the second-level cache gives it up first.
DEVICE void stream_box4(uint32_t to, const CUtensorMap* map, uint32_t bar, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;"
      ::"r"(to), "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(EVICT_FIRST)
      : "memory");
}

// ---- ordinary asynchronous copies, through the generic proxy ----------------------------------------------------

// 16 bytes, or as many zeros. STREAM: the second-level cache gives them up first.
template <bool STREAM>
DEVICE void copy_unit(uint32_t to, const void* from, bool there) {
  const int bytes = there ? 16 : 0;
  if (STREAM) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 ::"r"(to), "l"(from), "r"(bytes), "l"(EVICT_FIRST)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  }
}

// Has the thread arrive once all copies that it has issued are there.
DEVICE void arrive_with_copies(uint32_t bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

DEVICE void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- warpgroup MMA -------------------------------------------------------------------------------------------

DEVICE void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
DEVICE void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving uses of an accumulator over the wait before them.
template <int N>
DEVICE void settle(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

#define OUT8(x, i) \
  "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), \
      "+f"(x[i + 7])
#define OUT32(x) OUT8(x, 0), OUT8(x, 8), OUT8(x, 16), OUT8(x, 24)
#define OUT48(x) OUT32(x), OUT8(x, 32), OUT8(x, 40)
#define OUT64(x) OUT48(x), OUT8(x, 48), OUT8(x, 56)
#define NAMES32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31"
#define NAMES48 NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES64 NAMES48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// D (64 x n, fp32) = A (64 x 16) B (16 x n) + D, or without the last where `add` is 0.
// shared_shared: A and B in shared memory, rows of k. registers_shared: A in registers, B in rows of n.
template <int N>
struct Mma;

#define DEFINE_MMA(N, REGS, NAMES, OUT, P0, P1, P2, P3, P4, P5)                                                  \
  template <>                                                                                                    \
  struct Mma<N> {                                                                                                \
    static DEVICE void shared_shared(float (&d)[REGS], uint64_t a, uint64_t b, int add) {                        \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" P2                                                          \
                   ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NAMES "}, %" P0 ", %" P1    \
                   ", p, 1, 1, 0, 0;}"                                                                           \
                   : OUT(d)                                                                                      \
                   : "l"(a), "l"(b), "r"(add));                                                                  \
    }                                                                                                            \
    static DEVICE void registers_shared(float (&d)[REGS], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,    \
                                        uint64_t b, int add) {                                                   \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" P5                                                          \
                   ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NAMES "}, {%" P0 ",%" P1    \
                   ",%" P2 ",%" P3 "}, %" P4 ", p, 1, 1, 1;}"                                                    \
                   : OUT(d)                                                                                      \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));                                      \
    }                                                                                                            \
  };

DEFINE_MMA(64, 32, NAMES32, OUT32, "32", "33", "34", "35", "36", "37")
DEFINE_MMA(96, 48, NAMES48, OUT48, "48", "49", "50", "51", "52", "53")
DEFINE_MMA(128, 64, NAMES64, OUT64, "64", "65", "66", "67", "68", "69")

// A tile in shared memory: chunks of 64 columns, each with its rows of 128 swizzled bytes together. Rows along k:
// `chunk_step` is not used. Rows along n: the next 64 of n lie `chunk_step` bytes on.
constexpr int ROW = 128;

DEVICE uint64_t tile_descriptor(uint32_t address, uint32_t chunk_step) {
  return uint64_t(1) << 62 | static_cast<uint64_t>(8 * ROW >> 4) << 32 | static_cast<uint64_t>(chunk_step >> 4) << 16 |
         (address & 0x3ffff) >> 4;
}

// ---- registers -----------------------------------------------------------------------------------------------

template <int N>
DEVICE void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
DEVICE void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- arithmetic: every operation that enters the bits, written so that no compiler contracts or reorders it ---

DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats as bf16, the first in the low half.
DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
