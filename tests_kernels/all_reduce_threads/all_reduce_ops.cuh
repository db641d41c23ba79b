// A CPU in the place of kernels/all_reduce_ops.cuh: a block is two threads, memory is plain, flags are atomics. Built
// with a thread sanitizer, which reports any access that the handshakes leave unordered.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

using std::min;

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __grid_constant__

constexpr int THREADS = 2;

struct uint4 { uint32_t x, y, z, w; };
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

struct Place { unsigned x = 0, y = 0; };
inline thread_local Place threadIdx, blockIdx, gridDim;
inline thread_local pthread_barrier_t* block_barrier = nullptr;
inline void __syncthreads() { pthread_barrier_wait(block_barrier); }

inline uint4 load(const void* at) {
  const uint32_t* from = static_cast<const uint32_t*>(at);
  return {from[0], from[1], from[2], from[3]};
}
inline void store(void* at, uint4 v) {
  uint32_t* to = static_cast<uint32_t*>(at);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
inline void release(uint64_t* flag, uint64_t value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }
inline uint64_t acquire(const uint64_t* flag) {
  sched_yield();
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
inline int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t(1000000000) + now.tv_nsec;
}
inline void give_up() {
  puts("a peer never came");
  fflush(stdout);
  _Exit(3);
}

struct Half { uint16_t bits; };
struct BFloat { uint16_t bits; };
inline float wide(float x) { return x; }
inline float wide(Half) { abort(); }
inline float wide(BFloat x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float made;
  memcpy(&made, &bits, 4);
  return made;
}
inline void narrow(float x, float* to) { *to = x; }
inline void narrow(float, Half*) { abort(); }
inline void narrow(float x, BFloat* to) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  to->bits = uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
