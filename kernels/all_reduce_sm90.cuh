// What blocks of several ranks share: the call, a sum in order of rank, and the handshake. See all_reduce_sm90.cu.
#pragma once

#include "all_reduce_ops.cuh"

constexpr int MAX_RANKS = 8;

// The i-th rank of an element's sum. A test defines another order and must see other bits.
#ifndef DETENT_RANK_AT
#define DETENT_RANK_AT(i, owner, ranks) (i)
#endif

// What Python fills in; the same fields in the same order as all_reduce.py's Call. Arrays are indexed by rank; of
// inputs, outputs and epochs only those of the ranks that this launch runs are read.
struct Call {
  void* buffers[MAX_RANKS];  // every rank's workspace, as seen from here: [2 halves][channels][region]
  void* signals[MAX_RANKS];  // every rank's flags: [2 phases][channels][MAX_RANKS] of 8 bytes
  void* inputs[MAX_RANKS];
  void* outputs[MAX_RANKS];
  void* epochs[MAX_RANKS];  // a rank's own counters of steps: [channels] of 8 bytes
  void* stream;
  int64_t bytes;    // of a rank's input
  int64_t region;   // bytes, a multiple of 16
  int64_t timeout;  // nanoseconds that a block waits for its peers
  int device, ranks, first, here, channels, kind, pull;  // this launch runs ranks first .. first + here - 1
};

// Unit `unit` of a message, which may end inside it; what is behind its end reads as zeros and is not written.
__device__ __forceinline__ uint4 load_unit(const char* message, int64_t unit, int64_t bytes) {
  const int64_t at = unit * 16;
  if (at + 16 <= bytes) return load(message + at);
  union { uint4 v; unsigned short part[8]; } made;
  made.v = make_uint4(0, 0, 0, 0);
  for (int i = 0; i < 8; ++i)
    if (at + 2 * i < bytes) made.part[i] = *reinterpret_cast<const volatile unsigned short*>(message + at + 2 * i);
  return made.v;
}

__device__ __forceinline__ void store_unit(char* message, int64_t unit, int64_t bytes, uint4 v) {
  const int64_t at = unit * 16;
  if (at + 16 <= bytes) return store(message + at, v);
  union { uint4 v; unsigned short part[8]; } made;
  made.v = v;
  for (int i = 0; i < 8; ++i)
    if (at + 2 * i < bytes) *reinterpret_cast<volatile unsigned short*>(message + at + 2 * i) = made.part[i];
}

// One unit of every rank.
template <int W>
struct Units {
  uint4 of[W];
};

// Added in ascending order of rank in fp32, rounded once.
template <typename T, int W>
__device__ __forceinline__ uint4 sum(const Units<W>& units, int owner) {
  constexpr int N = 16 / sizeof(T);
  union Unit { uint4 v; T part[N]; __device__ Unit() {} };
  float total[N];
#pragma unroll
  for (int i = 0; i < W; ++i) {
    Unit next;
    next.v = units.of[DETENT_RANK_AT(i, owner, W)];
#pragma unroll
    for (int j = 0; j < N; ++j) total[j] = i == 0 ? wide(next.part[j]) : total[j] + wide(next.part[j]);
  }
  Unit made;
#pragma unroll
  for (int j = 0; j < N; ++j) narrow(total[j], &made.part[j]);
  return made.v;
}

// Units [from, to) of a block, each thread's in batches: all of a batch is read before any of it is written.
template <int BATCH, typename Read, typename Write>
__device__ __forceinline__ void sweep(int64_t from, int64_t to, Read read, Write write) {
  for (int64_t i = from + threadIdx.x; i < to; i += BATCH * THREADS) {
    decltype(read(i)) held[BATCH];
#pragma unroll
    for (int u = 0; u < BATCH; ++u)
      if (i + u * THREADS < to) held[u] = read(i + u * THREADS);
#pragma unroll
    for (int u = 0; u < BATCH; ++u)
      if (i + u * THREADS < to) write(i + u * THREADS, held[u]);
  }
}

// The handshake of a block with the same block of every rank, one thread for each of them. Everything that the block
// read and wrote before happens before everything that a peer's block does after it has seen the flag. Flags only grow,
// so none is ever taken back, and a call that is replayed needs nothing from the host.
struct Handshake {
  const Call& c;
  int rank, phase;

  // Where rank `reader` looks for the flag of rank `writer`.
  __device__ uint64_t* flag(int reader, int writer) const {
    const int64_t channel = static_cast<int64_t>(phase) * c.channels + blockIdx.x;
    return static_cast<uint64_t*>(c.signals[reader]) + channel * MAX_RANKS + writer;
  }

  __device__ void meet(uint64_t epoch) const {
    __syncthreads();
    for (int peer = threadIdx.x; peer < c.ranks; peer += THREADS) release(flag(peer, rank), epoch);
    for (int peer = threadIdx.x; peer < c.ranks; peer += THREADS) {
      const uint64_t* theirs = flag(rank, peer);
      int64_t began = 0;
      for (int turns = 1; acquire(theirs) < epoch; ++turns) {
        if (turns % 1024 != 0) continue;
        if (began == 0) began = nanoseconds();
        if (nanoseconds() - began > c.timeout) give_up();  // a peer that never comes: an error, not a hang
      }
    }
    __syncthreads();
  }
};
