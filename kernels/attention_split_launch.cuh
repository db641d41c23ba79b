// The host's half: tensor maps and launches. Included at the end of attention_split_sm90.cu.
#pragma once

#include <map>
#include <mutex>

// What Python fills in; the same fields in the same order as attention_split_cuda.py's Call.
struct Call {
  const void *q, *k, *v;
  void *out, *part, *table, *cu, *used, *stream;
  int64_t q_token, q_head, o_token, o_head, table_row;
  int64_t k_page, k_token, k_head, v_page, v_token, v_head;  // strides in elements
  int64_t pages, part_rows;
  int device, tokens, batch, kv_heads, group, page, splits, stride, max_context, max_queries, short_q;
  float scale;
};

namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode encode() {
  static Encode found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<Encode>(entry);
  }();
  return found;
}

// A map over `rank` dimensions, the head dim first, with strides in elements for the others.
int make_map(CUtensorMap* map, const void* base, int rank, const cuuint64_t* sizes, const int64_t* strides,
             const cuuint32_t* box) {
  cuuint64_t bytes[3];
  for (int i = 0; i + 1 < rank; ++i) bytes[i] = sizes[i + 1] == 1 ? 16 * D : strides[i] * 2;
  const cuuint32_t ones[4] = {1, 1, 1, 1};
  return encode()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<void*>(base), sizes, bytes, box, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

int map_queries(CUtensorMap* map, const Call& c, int box_tokens) {
  const cuuint64_t sizes[] = {D, cuuint64_t(c.kv_heads * c.group), cuuint64_t(c.tokens)};
  const int64_t strides[] = {c.q_head, c.q_token};
  const cuuint32_t box[] = {64, cuuint32_t(c.group), cuuint32_t(box_tokens)};
  return make_map(map, c.q, 3, sizes, strides, box);
}

int map_cache(CUtensorMap* map, const Call& c, const void* base, int64_t page, int64_t token, int64_t head) {
  const cuuint64_t sizes[] = {D, cuuint64_t(c.kv_heads), cuuint64_t(c.page), cuuint64_t(c.pages)};
  const int64_t strides[] = {head, token, page};
  const cuuint32_t box[] = {64, 1, cuuint32_t(c.page < BN ? c.page : BN), 1};
  return make_map(map, base, 4, sizes, strides, box);
}

template <typename... Arguments>
cudaError_t launch(void (*kernel)(Arguments...), int64_t grid, int threads, int shared, void* stream,
                   Arguments... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Counters from which calls' split kernels take work, 0 before and after each. Calls of one stream follow one another
// and share theirs; a captured call has its own for ever, for graphs may run beside anything but themselves.
struct Counters {
  static constexpr int CALLS = 16384, EACH = 32;  // EACH ints a call, a cache line
  int* base = nullptr;
  int used = CALLS;
  std::map<void*, int*> of_stream;

  cudaError_t fresh(int** found) {
    if (used == CALLS) {
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // allowed while some stream is captured
      cudaThreadExchangeStreamCaptureMode(&mode);
      cudaStream_t aside;
      cudaError_t error = cudaMalloc(&base, CALLS * EACH * sizeof(int));
      if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking);
      if (error == cudaSuccess) error = cudaMemsetAsync(base, 0, CALLS * EACH * sizeof(int), aside);
      if (error == cudaSuccess) error = cudaStreamSynchronize(aside);
      if (error == cudaSuccess) error = cudaStreamDestroy(aside);
      cudaThreadExchangeStreamCaptureMode(&mode);
      if (error != cudaSuccess) return error;
      used = 0;
    }
    *found = base + EACH * used++;
    return cudaSuccess;
  }
};

cudaError_t counters(int device, void* stream, int** found) {
  static std::mutex one_at_a_time;
  static Counters pools[64];
  const std::lock_guard<std::mutex> guard(one_at_a_time);
  Counters& pool = pools[device % 64];
  cudaStreamCaptureStatus status;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  if (error != cudaSuccess) return error;
  if (status != cudaStreamCaptureStatusNone) return pool.fresh(found);
  const auto known = pool.of_stream.find(stream);
  if (known != pool.of_stream.end()) return *found = known->second, cudaSuccess;
  const cudaError_t made = pool.fresh(found);
  if (made == cudaSuccess) pool.of_stream[stream] = *found;
  return made;
}

// Pages shorter than this are gathered. The copy engine's copies of a block, one a page and 64 columns, are issued at
// some 65 clocks each by four warps; from 4 tokens a page on they take no longer than memory.
constexpr int GATHERED_BELOW = 4;

template <bool PREFILL, bool GATHER>
cudaError_t launch_attend(const Call& c, Params& p, const CUtensorMap& k, const CUtensorMap& v, int64_t units, int sms,
                          int* taken) {
  static bool ready[64] = {};
  if (!ready[c.device % 64]) {
    const cudaError_t error =
        cudaFuncSetAttribute(attend<PREFILL, GATHER>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Plan<PREFILL>::BYTES);
    if (error != cudaSuccess) return error;
    ready[c.device % 64] = true;
  }
  CUtensorMap q;
  p.box_tokens = PREFILL ? p.tile_tokens : p.short_q;
  if (map_queries(&q, c, p.box_tokens) != 0) return cudaErrorInvalidValue;
  const int64_t grid = units * c.kv_heads < sms ? units * c.kv_heads : sms;
  p.taken = !PREFILL && units * c.kv_heads > sms ? taken : nullptr;
  return launch(attend<PREFILL, GATHER>, grid, Plan<PREFILL>::THREADS, Plan<PREFILL>::BYTES, c.stream, q, k, v, p);
}

}  // namespace

// 0, or an error as detent_attention_split_error names it. Nothing waits for the device.
extern "C" int detent_attention_split(const Call* call) {
  const Call& c = *call;
  cudaError_t error = cudaSetDevice(c.device);
  if (error != cudaSuccess) return error;
  if (encode() == nullptr) return cudaErrorNotSupported;
  int sms = 0;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, c.device);
  int* taken;
  error = counters(c.device, c.stream, &taken);
  if (error != cudaSuccess) return error;
  CUtensorMap k, v;
  if (map_cache(&k, c, c.k, c.k_page, c.k_token, c.k_head) != 0) return cudaErrorInvalidValue;
  if (map_cache(&v, c, c.v, c.v_page, c.v_token, c.v_head) != 0) return cudaErrorInvalidValue;
  float* part = static_cast<float*>(c.part);
  Params p{};
  p.out = static_cast<__nv_bfloat16*>(c.out);
  p.part_acc = part;
  p.part_m = part + c.part_rows * D;
  p.part_z = p.part_m + c.part_rows;
  p.table = static_cast<const int*>(c.table);
  p.cu = static_cast<const int*>(c.cu);
  p.used = static_cast<const int*>(c.used);
  p.table_row = c.table_row;
  p.o_token = c.o_token;
  p.o_head = c.o_head;
  p.batch = c.batch;
  p.kv_heads = c.kv_heads;
  p.group = c.group;
  p.page = c.page;
  while (1 << p.page_shift < c.page) ++p.page_shift;
  p.splits = c.splits;
  p.stride = c.stride;
  p.max_context = c.max_context;
  p.short_q = c.short_q;
  p.tile_tokens = WG_ROWS / c.group;
  p.scale = c.scale;
  p.k = static_cast<const char*>(c.k);
  p.v = static_cast<const char*>(c.v);
  p.k_page = c.k_page * 2;
  p.k_token = c.k_token * 2;
  p.k_head = c.k_head * 2;
  p.v_page = c.v_page * 2;
  p.v_token = c.v_token * 2;
  p.v_head = c.v_head * 2;
  const bool gather = c.page < GATHERED_BELOW;
  if (c.max_queries > c.short_q) {
    const int tile = 2 * p.tile_tokens;
    const int64_t units = int64_t(c.batch) * ((c.max_queries + tile - 1) / tile);
    error = (gather ? launch_attend<true, true> : launch_attend<true, false>)(c, p, k, v, units, sms, nullptr);
    if (error != cudaSuccess) return error;
  }
  if (c.short_q == 0) return cudaSuccess;
  const int64_t units = int64_t(c.batch) * c.splits;
  error = (gather ? launch_attend<false, true> : launch_attend<false, false>)(c, p, k, v, units, sms, taken);
  if (error != cudaSuccess || c.splits == 1) return error;
  const int64_t warps = int64_t(c.batch) * c.short_q * c.kv_heads * c.group * (D / 32);
  return launch(combine, (warps + 3) / 4, 128, 0, c.stream, p);
}

extern "C" const char* detent_attention_split_error(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
