// What the boxed kernel has to know about an operator, worked out once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>

#include <atomic>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace softneuron {

enum class Kind : uint8_t { tensor, tensors, generator, device };

struct Argument {
  uint16_t position;
  Kind kind;
  bool written;
};

struct Plan {
  std::string name;
  std::string overload;
  std::vector<Argument> arguments;
  size_t argument_count = 0;
  size_t return_count = 0;
  const void* schema = nullptr;
  // The kinds of tensors (dense, quantized, sparse, compressed, nested) for which the CPU has a kernel.
  c10::DispatchKeySet kernels;
  bool takes_host_tensors = false;
  bool draws_from_default_generator = false;
  bool asks_for_gradients = false;
  std::atomic<int64_t> calls{0};
};

// The plan of `op`, made at the first call. Plans live for ever.
Plan& plan_for(const c10::OperatorHandle& op);

// The kinds of tensors a kernel is dispatched on.
inline constexpr std::initializer_list<c10::DispatchKey> kEachLayout = {
    c10::DispatchKey::Dense, c10::DispatchKey::Quantized, c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
    c10::DispatchKey::NestedTensor};
constexpr c10::DispatchKeySet kLayouts(kEachLayout);

// The keys that dispatch a call, with the CPU in the place of every device.
inline c10::DispatchKeySet on_cpu(c10::DispatchKeySet keys) {
  const c10::DispatchKeySet layouts = keys & kLayouts;
  return (layouts.empty() ? c10::DispatchKeySet(c10::DispatchKey::Dense) : layouts) |
      c10::DispatchKeySet(c10::BackendComponent::CPUBit);
}

// (operator, calls) since the last clear, for operators that ran on a core.
std::vector<std::pair<std::string, int64_t>> executed_operators();
void clear_executed_operators();

}  // namespace softneuron
