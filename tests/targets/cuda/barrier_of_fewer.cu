// Racecheck reports a race here that is none: bar.sync 0 orders the stores of warps 1 and 2 before the loads of all.
//
//   nvcc -arch=sm_90 -o barrier_of_fewer tests/targets/cuda/barrier_of_fewer.cu
//   compute-sanitizer --tool racecheck ./barrier_of_fewer FIRST OTHERS AFTER
//
// FIRST: how often the first 128 threads meet at a barrier of their own before; OTHERS: how often the other 128 do;
// AFTER: barriers of all beyond the first between stores and loads. docs/design/0026 has what is reported.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

__global__ void kernel(int* sums, int rounds, int first, int others, int after) {
  __shared__ unsigned short stored[64];
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, sum = 0;
  for (int round = 0; round < rounds; round++) {
    asm volatile("bar.sync 0;" ::: "memory");
    if (warp < 4) {
#pragma unroll 1
      for (int i = 0; i < first; i++) asm volatile("bar.sync 1, 128;" ::: "memory");
    } else {
#pragma unroll 1
      for (int i = 0; i < others; i++) asm volatile("bar.sync 2, 128;" ::: "memory");
    }
    if (warp == 1 || warp == 2) stored[(warp - 1) * 32 + lane] = (unsigned short)(sum + round + lane);
    asm volatile("bar.sync 0;" ::: "memory");
#pragma unroll 1
    for (int i = 0; i < after; i++) asm volatile("bar.sync 0;" ::: "memory");
    sum += ((volatile unsigned short*)stored)[(thread * 7) % 64];
    asm volatile("bar.sync 0;" ::: "memory");
  }
  sums[blockIdx.x * blockDim.x + thread] = sum;
}

int main(int count, char** given) {
  if (count != 4) return printf("barrier_of_fewer FIRST OTHERS AFTER\n"), 2;
  int* sums;
  cudaMalloc(&sums, 16 * 256 * sizeof(int));
  kernel<<<16, 256>>>(sums, 24, atoi(given[1]), atoi(given[2]), atoi(given[3]));
  cudaError_t found = cudaDeviceSynchronize();
  printf("%s\n", cudaGetErrorString(found));
  return found != cudaSuccess;
}
