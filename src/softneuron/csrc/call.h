// One call of an operator through the dispatcher: its arguments on the stack,
// taken to the CPU and back.
#pragma once

#include "faces.h"
#include "memory.h"
#include "plan.h"

#include <ATen/core/stack.h>

#include <optional>

namespace softneuron {

class Call {
 public:
  Call(const Plan& plan, torch::jit::Stack& stack)
      : plan_(plan), stack_(stack), base_(stack.size() - plan.argument_count) {}

  // Replaces the neuron tensors on the stack by their CPU faces. Throws
  // PyTorch's usual error when the tensors are not all on one core.
  void to_host();

  c10::ArrayRef<c10::IValue> arguments() const {
    return c10::ArrayRef<c10::IValue>(stack_).slice(base_);
  }

  // Brings back what the kernel made of the tensors that it writes, and
  // replaces the CPU tensors that it left on the stack by neuron ones.
  void to_device();

  // The fault `silent_cpu:operator`: matrix products run on the host, and say so.
  bool is_taken_to_host() const;

  // Whose memory the kernel's results and scratch are charged to.
  int charged() const {
    return stays_on_host_ ? kHost : core_;
  }

  int core() const {
    return core_;
  }

 private:
  bool needs_face(const at::Tensor& tensor, const Argument& argument);
  [[noreturn]] void refuse_stray() const;

  const Plan& plan_;
  torch::jit::Stack& stack_;
  size_t base_;
  int core_ = -1;
  // The caller asked for a result on the host (`empty_like(x, device="cpu")`).
  bool stays_on_host_ = false;
  std::optional<c10::Device> stray_;
  Faces faces_;
};

}  // namespace softneuron
