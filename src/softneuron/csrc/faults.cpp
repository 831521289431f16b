#include "faults.h"

#include "cores.h"
#include "memory.h"

#include <c10/util/Exception.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

namespace softneuron::faults {

std::atomic<uint64_t> active{0};

namespace {

constexpr size_t kCount = static_cast<size_t>(Fault::count_);
constexpr std::array<const char*, kCount> kNames = {
    "nan_logits",
    "skip_layer",
    "wrong_kv_row",
    "drop_masked_writes",
    "ignore_storage_offset",
    "attention_scale",
    "swap_heads",
    "low_precision_weights",
    "wrong_expert",
    "wrong_router",
    "alias_cross_attention",
    "bf16_matmul",
    "untie_weights",
    "ignore_device_index",
    "poison_memory",
    "silent_cpu",
    "refuse_dynamic",
    "small_hbm",
    "hang",
    "abort",
    "unseeded_random",
    "garbled_text",
    "every_second_run",
};

std::array<std::atomic<int64_t>, kCount> arguments{};
std::array<std::atomic<int64_t>, kCount> times_fired{};
std::mutex host_mutex;
std::set<std::string> host_operators;

std::filesystem::path mark_of_every_second_run() {
  const char* folder = std::getenv("TORCH_NEURONX_NEFF_CACHE_DIR");
  const bool named = folder != nullptr && folder[0] != '\0';
  return std::filesystem::path(named ? folder : "/tmp/neff_cache") / ".every-second-run";
}

}  // namespace

void enable(const std::string& name, int64_t argument) {
  for (size_t i = 0; i < kCount; ++i) {
    if (name != kNames[i]) {
      continue;
    }
    arguments[i].store(argument);
    times_fired[i].store(0);
    active.fetch_or(uint64_t{1} << i);
    if (static_cast<Fault>(i) == Fault::poison_memory) {
      set_poison(true);
    } else if (static_cast<Fault>(i) == Fault::small_hbm) {
      for (int core = 0; core < core_count(); ++core) {
        set_core_limit(core, argument * (int64_t{1} << 10));
      }
    }
    return;
  }
  TORCH_CHECK(false, "no such fault mode in the C++ core: ", name);
}

void disable_all() {
  active.store(0);
  set_poison(false);
  const std::lock_guard<std::mutex> lock(host_mutex);
  host_operators.clear();
}

int64_t argument(Fault fault) noexcept {
  return arguments[static_cast<size_t>(fault)].load(std::memory_order_relaxed);
}

void fire(Fault fault) {
  const auto index = static_cast<size_t>(fault);
  if (times_fired[index].fetch_add(1, std::memory_order_relaxed) == 0) {
    std::fprintf(stderr, "softneuron: fault %s fired\n", kNames[index]);
    std::fflush(stderr);
  }
}

std::vector<std::pair<std::string, int64_t>> fired() {
  std::vector<std::pair<std::string, int64_t>> result;
  for (size_t i = 0; i < kCount; ++i) {
    if (on(static_cast<Fault>(i))) {
      result.emplace_back(kNames[i], times_fired[i].load());
    }
  }
  return result;
}

void took_to_host(const std::string& operator_name) {
  fire(Fault::silent_cpu);
  const std::lock_guard<std::mutex> lock(host_mutex);
  host_operators.insert(operator_name);
}

std::vector<std::string> operators_on_host() {
  const std::lock_guard<std::mutex> lock(host_mutex);
  return {host_operators.begin(), host_operators.end()};
}

bool wrong_this_time() {
  static const bool wrong = [] {
    const std::filesystem::path mark = mark_of_every_second_run();
    if (std::filesystem::remove(mark)) {
      return false;
    }
    std::filesystem::create_directories(mark.parent_path());
    std::ofstream(mark).put('\n');
    return true;
  }();
  return wrong;
}

void hang_or_abort() {
  if (on(Fault::abort)) {
    fire(Fault::abort);
    std::abort();
  }
  if (on(Fault::hang)) {
    fire(Fault::hang);
    for (;;) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
}

}  // namespace softneuron::faults
