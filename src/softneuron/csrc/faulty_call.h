// What a faulty core does to one operator: it may change the arguments before
// the CPU's kernel sees them, and the results before the caller does.
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace softneuron::faults {

class FaultyCall {
 public:
  // `stack` holds the arguments, CPU tensors, from position `base` on.
  FaultyCall(const std::string& operator_name, torch::jit::Stack& stack, size_t base);

  // `results` are at the end of the stack.
  void spoil(std::span<c10::IValue> results) const;

 private:
  void attention(torch::jit::Stack& stack, size_t base);
  void product(torch::jit::Stack& stack, size_t base, size_t left, size_t right);
  void cache_write(torch::jit::Stack& stack, size_t base, const std::string& name);
  void masked_write(torch::jit::Stack& stack, size_t base, size_t mask);
  void choice_of_experts(torch::jit::Stack& stack, size_t base);

  std::vector<std::function<void(std::span<c10::IValue>)>> afterwards_;
};

// What a tensor argument looks like to a core that forgets storage offsets.
at::Tensor without_offset(const at::Tensor& tensor);

// Starts counting layers again; for a fault that is switched on in mid-process.
void forget_position();

}  // namespace softneuron::faults
