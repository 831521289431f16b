#include "cores.h"

#include <c10/util/Exception.h>

namespace softneuron {
namespace {

int count = 0;
int default_core = 0;
std::string failure;

// -1 until this thread chooses a core.
thread_local int chosen = -1;

}  // namespace

void configure_cores(int cores, int first) {
  count = cores;
  default_core = first;
  failure.clear();
}

void configure_failed(std::string message) {
  count = 0;
  failure = std::move(message);
}

int core_count() noexcept {
  return count;
}

int current_core() {
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
