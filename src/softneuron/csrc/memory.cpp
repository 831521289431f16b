#include "memory.h"

#include "alias.h"
#include "cores.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstring>
#include <iomanip>
#include <sstream>

namespace softneuron {
namespace {

struct Counters {
  std::atomic<int64_t> limit{0};
  std::atomic<int64_t> allocated{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> allocated_total{0};
  std::atomic<int64_t> freed_total{0};
  std::atomic<int64_t> blocks{0};
  std::atomic<int64_t> blocks_peak{0};
  std::atomic<int64_t> blocks_total{0};
  std::atomic<int64_t> out_of_memory{0};
};

std::array<Counters, kMaxCores> counters;
std::atomic<bool> poison{false};

thread_local int charged_core = kHost;
// What the intra-op pool's threads charge to: they run kernels of the thread
// that opened the newest scope and have no thread-local scope of their own.
std::atomic<int> shared_core{kHost};

// In front of every block. 64 bytes, so that what follows keeps the alignment
// that PyTorch's kernels are written for.
struct alignas(64) Header {
  int64_t bytes;
  int32_t core;
};
static_assert(sizeof(Header) == 64);

void raise_peak(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (value > seen && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

std::string human(int64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  std::ostringstream out;
  out << std::fixed << std::setprecision(unit == 0 ? 0 : 2) << value << ' ' << kUnits[unit];
  return out.str();
}

void charge(int core, int64_t bytes) {
  Counters& c = counters[core];
  const int64_t limit = c.limit.load(std::memory_order_relaxed);
  int64_t used = c.allocated.load(std::memory_order_relaxed);
  do {
    if (used + bytes > limit) {
      c.out_of_memory.fetch_add(1, std::memory_order_relaxed);
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "neuron:", core, " out of memory. Tried to allocate ", human(bytes),
          ". The core has a total capacity of ", human(limit), " of which ", human(limit - used),
          " is free; ", human(used), " is in use.");
    }
  } while (!c.allocated.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  raise_peak(c.peak, used + bytes);
  c.allocated_total.fetch_add(bytes, std::memory_order_relaxed);
  c.blocks_total.fetch_add(1, std::memory_order_relaxed);
  raise_peak(c.blocks_peak, c.blocks.fetch_add(1, std::memory_order_relaxed) + 1);
}

void discharge(int core, int64_t bytes) {
  Counters& c = counters[core];
  c.allocated.fetch_sub(bytes, std::memory_order_relaxed);
  c.freed_total.fetch_add(bytes, std::memory_order_relaxed);
  c.blocks.fetch_sub(1, std::memory_order_relaxed);
}

void free_block(void* data) {
  if (data == nullptr) {
    return;
  }
  auto* header = static_cast<Header*>(data) - 1;
  if (header->core == kHost) {
    c10::profiledCPUMemoryReporter().Delete(data);
  } else {
    discharge(header->core, header->bytes);
  }
  c10::free_cpu(header);
}

c10::DataPtr allocate_block(size_t bytes, int core) {
  if (bytes == 0) {
    return {nullptr, nullptr, &free_block, c10::DeviceType::CPU};
  }
  TORCH_CHECK(
      bytes <= static_cast<size_t>(std::numeric_limits<int64_t>::max()) - sizeof(Header),
      "Storage size calculation overflowed: ", bytes, " bytes");
  const auto size = static_cast<int64_t>(bytes);
  if (core != kHost) {
    charge(core, size);
  }
  void* block = nullptr;
  try {
    block = c10::alloc_cpu(bytes + sizeof(Header));
  } catch (...) {
    if (core != kHost) {
      discharge(core, size);
    }
    throw;
  }
  auto* header = static_cast<Header*>(block);
  header->bytes = size;
  header->core = core;
  void* data = header + 1;
  if (core == kHost) {
    c10::profiledCPUMemoryReporter().New(data, bytes);
  } else if (poison.load(std::memory_order_relaxed)) {
    std::memset(data, 0xFF, bytes);
  }
  return {data, data, &free_block, c10::DeviceType::CPU};
}

class ChargingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    int core = charged_core;
    if (core == kHost && at::in_parallel_region()) {
      core = shared_core.load(std::memory_order_relaxed);
    }
    return allocate_block(bytes, core);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_block;
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

void fill(StatArray& stats, int64_t current, int64_t peak, int64_t total, int64_t freed) {
  Stat& stat = stats[static_cast<size_t>(StatType::AGGREGATE)];
  stat.current = current;
  stat.peak = peak;
  stat.allocated = total;
  stat.freed = freed;
}

class NeuronAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int core = current_core();
    return device_data_ptr(
        c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes), allocate_on_core(bytes, core),
            charging_allocator(), /*resizable=*/true),
        core);
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const CoreMemory m = core_memory(checked_core(device));
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (StatArray* bytes :
         {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      fill(*bytes, m.allocated, m.peak, m.allocated_total, m.freed_total);
    }
    for (StatArray* blocks : {&stats.allocation, &stats.active}) {
      fill(*blocks, m.blocks, m.blocks_peak, m.blocks_total, m.blocks_total - m.blocks);
    }
    stats.num_ooms = m.out_of_memory;
    stats.num_device_alloc = m.blocks_total;
    stats.num_device_free = m.blocks_total - m.blocks;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    reset_core_totals(checked_core(device));
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    reset_core_peak(checked_core(device));
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const CoreMemory m = core_memory(checked_core(device));
    return {static_cast<size_t>(m.limit - m.allocated), static_cast<size_t>(m.limit)};
  }
};

}  // namespace

CoreMemory core_memory(int core) {
  const Counters& c = counters[core];
  CoreMemory m;
  m.limit = c.limit.load();
  m.allocated = c.allocated.load();
  m.peak = c.peak.load();
  m.allocated_total = c.allocated_total.load();
  m.freed_total = c.freed_total.load();
  m.blocks = c.blocks.load();
  m.blocks_peak = c.blocks_peak.load();
  m.blocks_total = c.blocks_total.load();
  m.out_of_memory = c.out_of_memory.load();
  return m;
}

void set_core_limit(int core, int64_t bytes) {
  counters[core].limit.store(bytes);
}

void reset_core_peak(int core) {
  Counters& c = counters[core];
  c.peak.store(c.allocated.load());
  c.blocks_peak.store(c.blocks.load());
}

void reset_core_totals(int core) {
  Counters& c = counters[core];
  c.allocated_total.store(c.allocated.load());
  c.freed_total.store(0);
  c.blocks_total.store(c.blocks.load());
  c.out_of_memory.store(0);
}

void set_poison(bool on) {
  poison.store(on);
}

ChargeScope::ChargeScope(int core) noexcept
    : previous_(charged_core), previous_shared_(shared_core.load(std::memory_order_relaxed)) {
  charged_core = core;
  shared_core.store(core, std::memory_order_relaxed);
}

ChargeScope::~ChargeScope() {
  charged_core = previous_;
  shared_core.store(previous_shared_, std::memory_order_relaxed);
}

c10::Allocator* charging_allocator() {
  static ChargingAllocator allocator;
  return &allocator;
}

c10::DeviceAllocator* neuron_allocator() {
  static NeuronAllocator allocator;
  return &allocator;
}

c10::DataPtr allocate_on_core(size_t bytes, int core) {
  return allocate_block(bytes, core);
}

void charge_to_core(const c10::DataPtr& data, int core) {
  if (data.get_deleter() != &free_block || data.get() == nullptr) {
    return;
  }
  auto* header = static_cast<Header*>(data.get()) - 1;
  if (C10_UNLIKELY(header->core == kHost)) {
    charge(core, header->bytes);
    c10::profiledCPUMemoryReporter().Delete(data.get());
    header->core = core;
  }
}

void install_allocators() {
  c10::SetCPUAllocator(charging_allocator(), /*priority=*/1);
  c10::SetAllocator(c10::DeviceType::PrivateUse1, neuron_allocator(), /*priority=*/1);
}

}  // namespace softneuron
