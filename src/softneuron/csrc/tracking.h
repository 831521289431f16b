// What `softneuron explain` watches: operators by shape, and bytes that cross
// between host and cores. Off unless asked for.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <string>

namespace softneuron::tracking {

struct Traffic {
  int64_t to_core_copies = 0;
  int64_t to_core_bytes = 0;
  int64_t to_host_copies = 0;
  int64_t to_host_bytes = 0;
};

bool on() noexcept;

// Starts from nothing. `first_seen` is called, on the thread that ran the
// operator, once for every operator and combination of shapes and dtypes.
void start(std::function<void(const std::string& operator_and_shapes)> first_seen);
void stop();

void operator_ran(const std::string& name, c10::ArrayRef<c10::IValue> arguments);
void copied(const at::Tensor& from, const at::Tensor& to);

Traffic traffic();

}  // namespace softneuron::tracking
