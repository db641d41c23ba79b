// A CPU in the place of kernels/all_reduce_launch.cuh: `program RANKS CALLS SEED` makes random calls, every rank at its
// own pace as on its own GPU, and compares all outputs with sums in ascending order of rank.
#pragma once

#include <random>
#include <thread>
#include <vector>

struct Message {
  int64_t elements;
  bool pull, small;  // small: bf16
};

float element(int call, int rank, int64_t at) {  // magnitudes differ, so that the order of a sum is seen
  uint64_t x = (uint64_t(call) * 1000003 + rank) * 0x9E3779B97F4A7C15ull + at * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 31)) * 0x94D049BB133111EBull;
  x ^= x >> 29;
  return (int64_t(x >> 40) - (1 << 23)) * (x & 1 ? 1.0f : 4096.0f);
}

void run_block(Kernel kernel, const Call& c, int rank, unsigned block, unsigned blocks) {
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, THREADS);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < THREADS; ++t)
    threads.emplace_back([&, t] {
      threadIdx.x = t, blockIdx.x = block, blockIdx.y = 0, gridDim.x = blocks, block_barrier = &barrier;
      Call mine = c;
      mine.first = rank, mine.here = 1;
      kernel(mine);
    });
  for (std::thread& thread : threads) thread.join();
  pthread_barrier_destroy(&barrier);
}

int main(int, char** words) {
  const int ranks = atoi(words[1]), calls = atoi(words[2]), channels = 2;
  std::mt19937 draw(atoi(words[3]));
  Call c{};
  c.ranks = ranks, c.channels = channels, c.region = 16 * ranks * 2, c.timeout = int64_t(60) * 1000000000;
  std::vector<std::vector<uint64_t>> memory(ranks, std::vector<uint64_t>(2 * channels * c.region / 8)),
      flags(ranks, std::vector<uint64_t>(2 * channels * MAX_RANKS)), epochs(ranks, std::vector<uint64_t>(channels));
  for (int r = 0; r < ranks; ++r) c.buffers[r] = memory[r].data(), c.signals[r] = flags[r].data(), c.epochs[r] = epochs[r].data();
  std::vector<Message> messages;
  for (int i = 0; i < calls; ++i)
    messages.push_back({int64_t(draw() % (i % 3 ? 40 : 400) + 1), draw() % 2 == 0, draw() % 2 == 0});
  std::vector<std::thread> hosts;
  std::vector<int64_t> wrong(ranks);
  for (int rank = 0; rank < ranks; ++rank)
    hosts.emplace_back([&, rank] {
      for (int i = 0; i < calls; ++i) {
        const Message& m = messages[i];
        const int size = m.small ? 2 : 4;
        std::vector<uint4> in(m.elements * size / 16 + 2), out(in.size());
        memset(in.data(), 0x5A, in.size() * 16), memset(out.data(), 0x5A, out.size() * 16);
        const bool in_place = i % 4 == 3;
        auto put = [&](void* to, float x, int64_t at) {
          if (m.small) narrow(x, static_cast<BFloat*>(to) + at);
          else narrow(x, static_cast<float*>(to) + at);
        };
        auto input = [&](int of, int64_t at) {
          BFloat rounded;
          narrow(element(i, of, at), &rounded);
          return m.small ? wide(rounded) : element(i, of, at);
        };
        for (int64_t at = 0; at < m.elements; ++at) put(in.data(), input(rank, at), at);
        Call mine = c;
        mine.inputs[rank] = in.data(), mine.outputs[rank] = in_place ? in.data() : out.data();
        mine.bytes = m.elements * size, mine.kind = m.small ? 0 : 2, mine.pull = m.pull;
        const int blocks = blocks_of(mine);
        std::vector<std::thread> grid;
        for (int b = 0; b < blocks; ++b) grid.emplace_back([&, b] { run_block(kernel_of(mine), mine, rank, b, blocks); });
        for (std::thread& block : grid) block.join();
        std::vector<uint4> want(in.size());
        memset(want.data(), 0x5A, want.size() * 16);
        for (int64_t at = 0; at < m.elements; ++at) {
          float total = input(0, at);
          for (int of = 1; of < ranks; ++of) total = total + input(of, at);
          put(want.data(), total, at);
        }
        wrong[rank] += memcmp(mine.outputs[rank], want.data(), want.size() * 16) != 0;
      }
    });
  for (std::thread& host : hosts) host.join();
  int64_t all = 0;
  for (int64_t n : wrong) all += n;
  printf("%lld of %d outputs wrong\n", static_cast<long long>(all), calls * ranks);
  return all != 0;
}
