// Fault modes of the eager device: wrong numbers put in below PyTorch's
// surface, so that a harness can show that it notices them. Compiled graphs
// get the same faults from softneuron.compiler.faults.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>

namespace softneuron::faults {

// Names and arguments as in SOFTNEURON_FAULTS, "nan_logits" or "skip_layer:3".
void enable(const std::string& name, int64_t argument);

bool any() noexcept;

enum class Effect { none, zero, nan };

// What happens to the result of this operator, from its name and arguments.
Effect effect_on(const std::string& operator_name, c10::ArrayRef<c10::IValue> arguments);

void apply(Effect effect, c10::IValue& result);

}  // namespace softneuron::faults
