// The host's half. Included at the end of all_reduce_sm90.cu.
#pragma once

// 0, or an error as detent_all_reduce_error names it. Nothing waits for the device.
extern "C" int detent_all_reduce(const Call* call) {
  const Call& c = *call;
  const Kernel kernel = kernel_of(c);
  if (kernel == nullptr || c.first < 0 || c.here < 1 || c.first + c.here > c.ranks || c.bytes < 1)
    return cudaErrorInvalidValue;
  const cudaError_t error = cudaSetDevice(c.device);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks_of(c), c.here);
  config.blockDim = dim3(THREADS);
  config.stream = static_cast<cudaStream_t>(c.stream);
  config.attrs = &together;
  config.numAttrs = c.here > 1;  // one rank's blocks fit on an idle GPU anyway, and wait for no other of its blocks
  return cudaLaunchKernelEx(&config, kernel, c);
}

extern "C" const char* detent_all_reduce_error(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
