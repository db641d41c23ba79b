// All-reduce over symmetric memory: ranks 0, 1, ... W-1 added in that order in fp32, rounded once, for every element.
//
// Block b of every rank is a channel: it has its own region of each rank's workspace, its own flags and its own
// counter of steps (the epoch), and talks to block b of the other ranks alone. A message is cut into one piece a block
// and a piece into steps that fit into the region; neither cut enters an element's sum.
//
// A region has two halves, used by turns. A rank writes into a half at step e + 2 that it wrote at step e. It may: a
// step ends only after every peer's first flag of that step was seen, and a peer sends its flag of step e + 1 only
// after its last read of step e. So no step waits for readers, and a call needs no handshake at its end.
//
// push: every rank stores its step into its slot at every peer, and adds up the slots that it received.
// pull: every rank stores its step into its own region; rank r reads shard r of all of them, adds it up and puts the
// result there in place of its own; after a second handshake every rank reads the shards of the others.
//
// On one GPU a launch can run all ranks, gridDim.y of them, with buffers instead of peers: the same code. Blocks wait
// for one another, so such a launch is cooperative, which starts all of its blocks at once or fails.
#include "all_reduce_sm90.cuh"

namespace {

template <typename T, int W>
struct Rank {
  static constexpr int COPIES = 4, SUMS = W == 2 ? 4 : W <= 4 ? 2 : 1;  // units that a thread has in flight
  const Call& c;
  const int rank;
  const char* const input;
  char* const output;

  __device__ Rank(const Call& call, int number)
      : c(call), rank(number), input(static_cast<const char*>(call.inputs[number])),
        output(static_cast<char*>(call.outputs[number])) {}

  // This channel's region at rank p. `half` is the offset of the half in use.
  __device__ char* region(int p, int64_t half) const {
    return static_cast<char*>(c.buffers[p]) + half + blockIdx.x * c.region;
  }

  // Units [from, to) of the message.
  __device__ void push(uint64_t epoch, int64_t half, int64_t from, int64_t to) const {
    const int64_t slot = c.region / (16 * W) * 16;
    sweep<COPIES>(from, to, [&](int64_t i) { return load_unit(input, i, c.bytes); }, [&](int64_t i, uint4 unit) {
#pragma unroll
      for (int p = 0; p < W; ++p)
        if (p != rank) store(region(p, half) + rank * slot + (i - from) * 16, unit);
    });
    Handshake{c, rank, 0}.meet(epoch);
    const char* here = region(rank, half);
    sweep<SUMS>(from, to, [&](int64_t i) {
      Units<W> units;
#pragma unroll
      for (int p = 0; p < W; ++p)
        units.of[p] = p == rank ? load_unit(input, i, c.bytes) : load(here + p * slot + (i - from) * 16);
      return units;
    }, [&](int64_t i, const Units<W>& units) { store_unit(output, i, c.bytes, sum<T, W>(units, rank)); });
  }

  __device__ void pull(uint64_t epoch, int64_t half, int64_t from, int64_t to) const {
    const int64_t units = to - from, shard = (units + W - 1) / W;
    char* here = region(rank, half);
    sweep<COPIES>(0, units, [&](int64_t i) { return load_unit(input, from + i, c.bytes); },
                  [&](int64_t i, uint4 unit) { store(here + i * 16, unit); });
    Handshake{c, rank, 0}.meet(epoch);
    sweep<SUMS>(rank * shard, min((rank + 1) * shard, units), [&](int64_t i) {
      Units<W> every;
#pragma unroll
      for (int p = 0; p < W; ++p) every.of[p] = load(region(p, half) + i * 16);
      return every;
    }, [&](int64_t i, const Units<W>& every) {
      const uint4 made = sum<T, W>(every, rank);
      store(here + i * 16, made);
      store_unit(output, from + i, c.bytes, made);
    });
    Handshake{c, rank, 1}.meet(epoch);
    sweep<SUMS>(0, shard, [&](int64_t i) {
      Units<W> every;
#pragma unroll
      for (int p = 0; p < W; ++p)
        if (p != rank && p * shard + i < units) every.of[p] = load(region(p, half) + (p * shard + i) * 16);
      return every;
    }, [&](int64_t i, const Units<W>& every) {
#pragma unroll
      for (int p = 0; p < W; ++p)
        if (p != rank && p * shard + i < units) store_unit(output, from + p * shard + i, c.bytes, every.of[p]);
    });
  }
};

template <typename T, int W, bool PULL>
__global__ void __launch_bounds__(THREADS) all_reduce(const __grid_constant__ Call c) {
  const int rank = c.first + blockIdx.y;
  const int64_t units = (c.bytes + 15) / 16, piece = (units + gridDim.x - 1) / gridDim.x;
  const int64_t end = min((blockIdx.x + 1) * piece, units);
  const int64_t step = PULL ? c.region / 16 : c.region / (16 * W);
  uint64_t* counter = static_cast<uint64_t*>(c.epochs[rank]) + blockIdx.x;
  uint64_t epoch = *counter;
  const Rank<T, W> self(c, rank);
  for (int64_t from = blockIdx.x * piece; from < end; from += step) {
    ++epoch;
    const int64_t half = (epoch & 1) * c.region * c.channels, to = min(from + step, end);
    if constexpr (PULL) self.pull(epoch, half, from, to);
    else self.push(epoch, half, from, to);
  }
  __syncthreads();  // every thread has read the counter
  if (threadIdx.x == 0) *counter = epoch;
}

using Kernel = void (*)(Call);

template <typename T, bool PULL>
Kernel kernel_of(int ranks) {
  switch (ranks) {
    case 2: return all_reduce<T, 2, PULL>;
    case 3: return all_reduce<T, 3, PULL>;
    case 4: return all_reduce<T, 4, PULL>;
    case 5: return all_reduce<T, 5, PULL>;
    case 6: return all_reduce<T, 6, PULL>;
    case 7: return all_reduce<T, 7, PULL>;
    case 8: return all_reduce<T, 8, PULL>;
    default: return nullptr;
  }
}

template <typename T>
Kernel kernel_of(const Call& c) {
  return c.pull ? kernel_of<T, true>(c.ranks) : kernel_of<T, false>(c.ranks);
}

Kernel kernel_of(const Call& c) {
  return c.kind == 0 ? kernel_of<BFloat>(c) : c.kind == 1 ? kernel_of<Half>(c) : kernel_of<float>(c);
}

// Blocks of a rank: no more than its channels, and none without a unit for each of its threads.
int blocks_of(const Call& c) {
  const int64_t wanted = ((c.bytes + 15) / 16 + THREADS - 1) / THREADS;
  return static_cast<int>(wanted < c.channels ? wanted : c.channels);
}

}  // namespace

#include "all_reduce_launch.cuh"
