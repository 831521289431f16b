// Fault modes: which are on, and whether they have fired. What is wrong with
// an operator is in faulty_call.h; other parts of the device ask `on` at the
// place where they go wrong. Compiled graphs get theirs from
// softneuron.compiler.faults.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace softneuron::faults {

enum class Fault : uint8_t {
  nan_logits,
  skip_layer,
  wrong_kv_row,
  drop_masked_writes,
  ignore_storage_offset,
  attention_scale,
  swap_heads,
  low_precision_weights,
  wrong_expert,
  wrong_router,
  alias_cross_attention,
  bf16_matmul,
  untie_weights,
  ignore_device_index,
  poison_memory,
  silent_cpu,
  refuse_dynamic,
  small_hbm,
  hang,
  abort,
  unseeded_random,
  garbled_text,
  every_second_run,
  count_,
};

// Which part of the work `silent_cpu` takes to the host.
enum class Silent : int64_t { operators = 0, graphs = 1, model = 2 };

// Names and arguments as in SOFTNEURON_FAULTS, "nan_logits" or "skip_layer:3".
// Throws for a name that the C++ core does not know.
void enable(const std::string& name, int64_t argument);
void disable_all();

extern std::atomic<uint64_t> active;

inline bool any() noexcept {
  return active.load(std::memory_order_relaxed) != 0;
}

inline bool on(Fault fault) noexcept {
  return (active.load(std::memory_order_relaxed) >> static_cast<unsigned>(fault)) & 1;
}

int64_t argument(Fault fault) noexcept;

// Counts that the fault did something, and says so on stderr the first time.
void fire(Fault fault);

// (name, how often it fired) for every fault that is on.
std::vector<std::pair<std::string, int64_t>> fired();

// Operators that `silent_cpu` took to the host.
void took_to_host(const std::string& operator_name);
std::vector<std::string> operators_on_host();

// Whether `every_second_run` makes this process wrong: decided at the first
// call, by a mark in the NEFF cache's folder that every run turns over.
bool wrong_this_time();

// Where a program hangs or dies, if it is to: in the middle of a forward pass.
void hang_or_abort();

}  // namespace softneuron::faults
