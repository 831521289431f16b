// Operators on `neuron`: one boxed kernel that runs any ATen operator through
// the CPU's kernel on aliases of its tensors.
#pragma once

namespace softneuron {

// Registers the boxed kernel for every operator whose CPU kernel PyTorch would
// pass over on another device in favour of a composite one.
void register_operators();

}  // namespace softneuron
