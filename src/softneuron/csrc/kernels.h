// Operators on `neuron`: one boxed kernel that runs any ATen operator through
// the CPU's kernel on aliases of its tensors.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace softneuron {

// Registers the boxed kernel for every operator whose CPU kernel PyTorch would
// pass over on another device in favour of a composite one.
void register_operators();

// (operator, calls) since the last clear, for operators that ran on a core.
std::vector<std::pair<std::string, int64_t>> executed_operators();
void clear_executed_operators();

}  // namespace softneuron
