#include "memory.h"

#include "alias.h"
#include "cores.h"
#include "faults.h"
#include "pinned.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iomanip>
#include <memory>
#include <mutex>
#include <sstream>
#include <string_view>

namespace softneuron {
namespace {

// In front of every block. 64 bytes, so that what follows keeps the alignment
// that PyTorch's kernels are written for.
struct alignas(64) Header {
  int64_t bytes;
  int32_t core;
  Header* older;
  Header* newer;
};
static_assert(sizeof(Header) == 64);

struct Core {
  std::mutex mutex;
  CoreMemory now;
  Header* newest = nullptr;
};

std::array<Core, kMaxCores> cores;
std::atomic<bool> poison{false};

std::mutex describer_mutex;
std::shared_ptr<const Describer> describer;

// What a thread's kernels are charged to, for the threads that help it.
using Charge = std::shared_ptr<std::atomic<int>>;

thread_local const Charge charge = std::make_shared<std::atomic<int>>(kHost);
thread_local std::atomic<int>* const charged = charge.get();
// Of a thread of an intra-op pool: the charge of the thread that owns the pool.
thread_local Charge helped;
// To how many threads this thread has made itself known as their pool's owner.
thread_local int known_to = 1;
// The core of the backward node that runs in this thread.
thread_local int node_core = kHost;

// The state that PyTorch carries to other threads.
constexpr std::string_view kCarriedName = "SOFTNEURON_CORE";
const c10::DebugInfoKind kCarried(&kCarriedName);

struct CarriedCore final : c10::DebugInfoBase {
  explicit CarriedCore(int number) : core(number) {}
  int core;
};

// An intra-op pool belongs to one thread for life (GNU's OpenMP, which
// PyTorch's builds for Linux carry): one parallel region tells its threads whom
// they help.
void make_known_to_pool(int threads) {
  if (at::in_parallel_region()) {
    return;
  }
  known_to = threads;
  const at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor one_each = at::detail::empty_cpu({threads}, at::kByte, false, std::nullopt);
  const Charge mine = charge;
  at::TensorIterator::nullary_op(one_each).for_each(
      [&mine](char**, const int64_t*, int64_t, int64_t) {
        if (charge != mine) {
          helped = mine;
        }
      },
      /*grain_size=*/1);
}

int core_to_charge() {
  const int core = charged->load(std::memory_order_relaxed);
  if (core != kHost) {
    return core;
  }
  if (C10_UNLIKELY(node_core != kHost)) {
    return node_core;
  }
  if (C10_UNLIKELY(helped != nullptr) && at::in_parallel_region()) {
    return helped->load(std::memory_order_relaxed);
  }
  const auto* carried = static_cast<const CarriedCore*>(c10::ThreadLocalDebugInfo::get(kCarried));
  return C10_UNLIKELY(carried != nullptr) ? carried->core : kHost;
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

std::vector<Block> blocks_of(const Core& core) {
  std::vector<Block> blocks;
  for (const Header* header = core.newest; header != nullptr; header = header->older) {
    blocks.push_back({reinterpret_cast<uintptr_t>(header + 1), header->bytes});
  }
  return blocks;
}

[[noreturn]] void refuse(int core, int64_t bytes, const CoreMemory& memory, std::vector<Block> blocks) {
  close_node_charge();
  const auto shown = std::min<size_t>(blocks.size(), 5);
  std::partial_sort(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(shown), blocks.end(), [](const Block& a, const Block& b) {
    return a.bytes > b.bytes;
  });
  blocks.resize(shown);
  std::shared_ptr<const Describer> describe;
  {
    const std::lock_guard<std::mutex> lock(describer_mutex);
    describe = describer;
  }
  std::string biggest;
  if (describe != nullptr && shown > 0) {
    biggest = (*describe)(core, blocks);
  }
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "neuron:", core, " out of memory. Tried to allocate ", human(bytes),
      ". The core has a total capacity of ", human(memory.limit), " of which ",
      human(memory.limit - memory.allocated), " is free; ", human(memory.allocated), " is in use.", biggest);
}

void take(int core, int64_t bytes) {
  Core& c = cores[core];
  std::unique_lock<std::mutex> lock(c.mutex);
  CoreMemory& now = c.now;
  if (bytes > now.limit - now.allocated) {
    ++now.out_of_memory;
    if (faults::on(faults::Fault::small_hbm)) {
      faults::fire(faults::Fault::small_hbm);
    }
    const CoreMemory seen = now;
    std::vector<Block> blocks = blocks_of(c);
    lock.unlock();
    refuse(core, bytes, seen, std::move(blocks));
  }
  now.allocated += bytes;
  now.peak = std::max(now.peak, now.allocated);
  now.allocated_total += bytes;
  ++now.blocks;
  ++now.blocks_total;
  now.blocks_peak = std::max(now.blocks_peak, now.blocks);
}

void give_back(CoreMemory& now, int64_t bytes) {
  now.allocated -= bytes;
  now.freed_total += bytes;
  --now.blocks;
}

void report(int core, void* data, int64_t bytes) {
  if (c10::memoryProfilingEnabled()) {
    const CoreMemory memory = core_memory(core);
    c10::reportMemoryUsageToProfiler(
        data, bytes, static_cast<size_t>(memory.allocated), static_cast<size_t>(memory.allocated), neuron_device(core));
  }
}

void link(Header* header, int core) {
  header->core = core;
  {
    Core& c = cores[core];
    const std::lock_guard<std::mutex> lock(c.mutex);
    header->newer = nullptr;
    header->older = c.newest;
    if (c.newest != nullptr) {
      c.newest->newer = header;
    }
    c.newest = header;
  }
  report(core, header + 1, header->bytes);
}

void unlink(Header* header) {
  // In a forked process the lock may be held by a thread that did not come along.
  if (C10_UNLIKELY(in_bad_fork())) {
    return;
  }
  report(header->core, header + 1, -header->bytes);
  Core& c = cores[header->core];
  const std::lock_guard<std::mutex> lock(c.mutex);
  (header->newer != nullptr ? header->newer->older : c.newest) = header->older;
  if (header->older != nullptr) {
    header->older->newer = header->newer;
  }
  give_back(c.now, header->bytes);
}

// The fault `ignore_device_index`: all memory comes from core 0.
int charged_in_fact(int core) {
  if (C10_UNLIKELY(core > 0 && faults::on(faults::Fault::ignore_device_index))) {
    faults::fire(faults::Fault::ignore_device_index);
    return 0;
  }
  return core;
}

void free_block(void* data) {
  if (data == nullptr) {
    return;
  }
  auto* header = static_cast<Header*>(data) - 1;
  if (header->core == kHost) {
    c10::profiledCPUMemoryReporter().Delete(data);
  } else {
    unlink(header);
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
  core = charged_in_fact(core);
  if (core != kHost) {
    use_cores();
    take(core, size);
  }
  void* block = nullptr;
  try {
    block = c10::alloc_cpu(bytes + sizeof(Header));
  } catch (...) {
    if (core != kHost) {
      Core& c = cores[core];
      const std::lock_guard<std::mutex> lock(c.mutex);
      give_back(c.now, size);
    }
    throw;
  }
  auto* header = static_cast<Header*>(block);
  header->bytes = size;
  header->core = core;
  void* data = header + 1;
  if (core == kHost) {
    c10::profiledCPUMemoryReporter().New(data, bytes);
  } else {
    link(header, core);
    if (poison.load(std::memory_order_relaxed)) {
      if (faults::on(faults::Fault::poison_memory)) {
        faults::fire(faults::Fault::poison_memory);
      }
      std::memset(data, 0xFF, bytes);
    }
  }
  return {data, data, &free_block, c10::DeviceType::CPU};
}

class ChargingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    return allocate_block(bytes, core_to_charge());
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
  const std::lock_guard<std::mutex> lock(cores[core].mutex);
  return cores[core].now;
}

std::vector<Block> live_blocks(int core) {
  const std::lock_guard<std::mutex> lock(cores[core].mutex);
  return blocks_of(cores[core]);
}

void set_describer(Describer function) {
  const std::lock_guard<std::mutex> lock(describer_mutex);
  describer = std::make_shared<const Describer>(std::move(function));
}

void set_core_limit(int core, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(cores[core].mutex);
  cores[core].now.limit = bytes;
}

void reset_core_peak(int core) {
  const std::lock_guard<std::mutex> lock(cores[core].mutex);
  CoreMemory& now = cores[core].now;
  now.peak = now.allocated;
  now.blocks_peak = now.blocks;
}

void reset_core_totals(int core) {
  const std::lock_guard<std::mutex> lock(cores[core].mutex);
  CoreMemory& now = cores[core].now;
  now.allocated_total = now.allocated;
  now.freed_total = 0;
  now.blocks_total = now.blocks;
  now.out_of_memory = 0;
}

void set_poison(bool on) {
  poison.store(on);
}

ChargeScope::ChargeScope(int core) : previous_(charged->load(std::memory_order_relaxed)) {
  close_node_charge();
  if (core != kHost) {
    const int threads = at::get_num_threads();
    if (C10_UNLIKELY(known_to < threads)) {
      make_known_to_pool(threads);
    }
  }
  charged->store(core, std::memory_order_relaxed);
}

ChargeScope::~ChargeScope() {
  charged->store(previous_, std::memory_order_relaxed);
}

CarriedCharge::CarriedCharge(int core) {
  if (core != kHost) {
    guard_.emplace(kCarried, std::make_shared<CarriedCore>(core));
  }
}

void open_node_charge(int core) {
  node_core = core;
}

void close_node_charge() {
  node_core = kHost;
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
  core = charged_in_fact(core);
  if (C10_UNLIKELY(header->core == kHost)) {
    use_cores();
    take(core, header->bytes);
    c10::profiledCPUMemoryReporter().Delete(data.get());
    link(header, core);
  }
}

void install_allocators() {
  c10::SetCPUAllocator(charging_allocator(), /*priority=*/1);
  c10::SetAllocator(c10::DeviceType::PrivateUse1, neuron_allocator(), /*priority=*/1);
  at::setHostAllocator(c10::DeviceType::PrivateUse1, pinned_allocator(), /*priority=*/1);
}

}  // namespace softneuron
