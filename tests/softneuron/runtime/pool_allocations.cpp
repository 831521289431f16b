// Allocates in a parallel region of the OpenMP that PyTorch has loaded, as kernels do. Called with ctypes.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <omp.h>

#include <atomic>
#include <thread>
#include <vector>

// Each of `threads` threads allocates `bytes`; `done` is called while all of it is held. Returns how many
// threads took part.
extern "C" int allocate_in_pool(int threads, long bytes, void (*done)()) {
  std::vector<c10::DataPtr> held(threads);
  std::atomic<int> ready{0};
  int took_part = 0;
#pragma omp parallel num_threads(threads)
  {
    held[omp_get_thread_num()] = c10::GetCPUAllocator()->allocate(bytes);
    ++ready;
    while (ready < threads) {
      std::this_thread::yield();
    }
#pragma omp master
    took_part = omp_get_num_threads();
  }
  done();
  return took_part;
}
