// torch.autocast("neuron").
#pragma once

namespace softneuron {

// bfloat16, Trainium's own, where the caller names no dtype. PyTorch keeps this
// choice for each thread; threads without it have PyTorch's, float16.
void choose_autocast_dtype();

}  // namespace softneuron
