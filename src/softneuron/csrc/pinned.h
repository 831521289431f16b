// Pinned host memory. Copies to a core need none here; programs that ask for it
// get memory that says so.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace softneuron {

at::HostAllocator* pinned_allocator();
bool is_pinned(const void* data);

}  // namespace softneuron
