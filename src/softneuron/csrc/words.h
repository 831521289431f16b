// Errors of CPU kernels in the words of device neuron.
#pragma once

#include <c10/util/Exception.h>

namespace softneuron {

// Throws `error` again, as the same type; where its text names the CPU as the
// place that lacks a kernel, it names neuron.
[[noreturn]] void throw_in_neuron_words(const c10::Error& error);

}  // namespace softneuron
