#include "pinned.h"

#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <mutex>

namespace softneuron {
namespace {

void free_pinned(void* data);

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &free_pinned, c10::DeviceType::CPU};
    }
    void* data = c10::alloc_cpu(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.emplace(static_cast<const char*>(data), bytes);
    const auto size = static_cast<int64_t>(bytes);
    for (at::Stat* count : {&stats_.active_requests, &stats_.allocations}) {
      count->increase(1);
    }
    for (at::Stat* total : {&stats_.active_bytes, &stats_.allocated_bytes}) {
      total->increase(size);
    }
    ++stats_.num_host_alloc;
    return {data, data, &free_pinned, c10::DeviceType::CPU};
  }

  void free(void* data) {
    if (data == nullptr) {
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto block = blocks_.find(static_cast<const char*>(data));
      const auto size = static_cast<int64_t>(block->second);
      for (at::Stat* count : {&stats_.active_requests, &stats_.allocations}) {
        count->decrease(1);
      }
      for (at::Stat* total : {&stats_.active_bytes, &stats_.allocated_bytes}) {
        total->decrease(size);
      }
      ++stats_.num_host_free;
      blocks_.erase(block);
    }
    c10::free_cpu(data);
  }

  bool holds(const void* data) {
    const auto* address = static_cast<const char*>(data);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto block = blocks_.upper_bound(address);
    return block != blocks_.begin() && address < (--block)->first + block->second;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_pinned;
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    each([](at::Stat& stat) { stat.reset_accumulated(); });
  }
  void reset_peak_stats() override {
    each([](at::Stat& stat) { stat.reset_peak(); });
  }

 private:
  template <typename Change>
  void each(Change change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (at::Stat* stat :
         {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes}) {
      change(*stat);
    }
  }

  std::mutex mutex_;
  std::map<const char*, size_t> blocks_;
  at::HostStats stats_;
};

PinnedAllocator& allocator() {
  static auto* instance = new PinnedAllocator;  // tensors may be freed after the end of main
  return *instance;
}

void free_pinned(void* data) {
  allocator().free(data);
}

}  // namespace

at::HostAllocator* pinned_allocator() {
  return &allocator();
}

bool is_pinned(const void* data) {
  return allocator().holds(data);
}

}  // namespace softneuron
