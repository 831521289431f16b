#include "cores.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <atomic>
#include <cstdlib>

namespace softneuron {
namespace {

int count = 0;
int default_core = 0;
std::string failure;

std::atomic<bool> used{false};
std::atomic<bool> forked{false};

// A process forked by a launcher has a LOCAL_RANK of its own, set after the fork.
std::atomic<bool> rank_unread{false};

void after_fork() {
  rank_unread.store(true);
  if (used.load()) {
    forked.store(true);
  }
}

void read_rank() {
  const char* rank = std::getenv("LOCAL_RANK");
  if (rank != nullptr && count > 1) {
    char* end = nullptr;
    const long core = std::strtol(rank, &end, 10);
    if (*rank != 0 && *end == 0 && core >= 0) {
      default_core = static_cast<int>(core);
    }
  }
}

// -1 until this thread chooses a core.
thread_local int chosen = -1;

}  // namespace

void configure_cores(int cores, int first) {
  static const int watching = pthread_atfork(nullptr, nullptr, &after_fork);
  TORCH_INTERNAL_ASSERT(watching == 0);
  count = cores;
  default_core = first;
  failure.clear();
}

void configure_failed(std::string message) {
  count = 0;
  failure = std::move(message);
}

void use_cores() {
  TORCH_CHECK(
      !forked.load(std::memory_order_relaxed),
      "Cannot re-initialize neuron in forked subprocess. To use neuron with multiprocessing, you must use the "
      "'spawn' start method");
  used.store(true, std::memory_order_relaxed);
}

bool cores_used() noexcept {
  return used.load();
}

bool in_bad_fork() noexcept {
  return forked.load(std::memory_order_relaxed);
}

const std::string& configuration_failure() noexcept {
  return failure;
}

int core_count() noexcept {
  return count;
}

int current_core() {
  if (C10_UNLIKELY(rank_unread.load(std::memory_order_relaxed)) && rank_unread.exchange(false)) {
    read_rank();
  }
  TORCH_CHECK(count > 0, failure.empty() ? "No NeuronCore is available to this process." : failure);
  TORCH_CHECK(
      chosen >= 0 || default_core < count, "LOCAL_RANK=", default_core, " has no NeuronCore of its own: there are ",
      count, ". Start at most ", count, " ranks (torchrun --nproc_per_node=", count,
      "), or name a larger SOFTNEURON_INSTANCE.");
  return chosen < 0 ? default_core : chosen;
}

int exchange_core(int core) {
  const int previous = current_core();
  if (core >= 0) {
    chosen = checked_core(core);
  }
  return previous;
}

int checked_core(int index) {
  const int core = index < 0 ? current_core() : index;
  TORCH_CHECK(count > 0, failure.empty() ? "No NeuronCore is available to this process." : failure);
  TORCH_CHECK(
      core < count, "neuron:", core, " does not exist: this process has ", count, " NeuronCore",
      count == 1 ? "" : "s", " (neuron:0", count == 1 ? "" : " to neuron:",
      count == 1 ? "" : std::to_string(count - 1), ").");
  return core;
}

}  // namespace softneuron
