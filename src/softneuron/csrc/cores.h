// The cores of this process: how many there are and which one is current.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace softneuron {

// Called once, by the Python runtime, before any tensor exists.
void configure_cores(int count, int default_core);
// Remembers why the environment could not be read; raised at first use.
void configure_failed(std::string message);

int core_count() noexcept;
int current_core();
int exchange_core(int core);

// `index`, or the current core for -1; throws when there is no such core.
int checked_core(int index);

// A process that was forked after it had used a core cannot use one: threads
// and locks did not come along. `use_cores` marks the use, and throws PyTorch's
// usual error in such a process.
void use_cores();
bool cores_used() noexcept;
bool in_bad_fork() noexcept;

// Why there are no cores although the device was asked for; empty otherwise.
const std::string& configuration_failure() noexcept;

inline c10::Device neuron_device(int core) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(core)};
}

}  // namespace softneuron
