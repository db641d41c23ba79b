// What the GPU gives to all_reduce_sm90.cu: memory, flags, time and number types. Nothing else there is of a GPU, so a
// test puts threads of a CPU in this file's place.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int THREADS = 512;  // of a block

__device__ __forceinline__ uint4 load(const void* at) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
  return v;
}

__device__ __forceinline__ void store(void* at, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void release(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ __forceinline__ uint64_t acquire(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

__device__ __forceinline__ int64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return static_cast<int64_t>(now);
}

__device__ __forceinline__ void give_up() { __trap(); }

using Half = __half;
using BFloat = __nv_bfloat16;

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(Half x) { return __half2float(x); }
__device__ __forceinline__ float wide(BFloat x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, float* to) { *to = x; }
__device__ __forceinline__ void narrow(float x, Half* to) { *to = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, BFloat* to) { *to = __float2bfloat16_rn(x); }
