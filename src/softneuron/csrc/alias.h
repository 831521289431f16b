// The two faces of one piece of memory: a neuron tensor for PyTorch's users,
// a CPU tensor over the same bytes for the CPU's kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace softneuron {

// A device pointer that keeps `host` alive.
c10::DataPtr device_data_ptr(c10::intrusive_ptr<c10::StorageImpl> host, int core);

// A neuron storage over the bytes of `host`.
c10::Storage device_storage(c10::intrusive_ptr<c10::StorageImpl> host, int core);

// The CPU storage under a neuron storage (no copy).
c10::intrusive_ptr<c10::StorageImpl> host_storage(const c10::Storage& storage);

// After a CPU kernel grew or replaced the bytes of `host`, makes `storage`
// point at them again.
void follow_host_storage(c10::StorageImpl& storage, const c10::intrusive_ptr<c10::StorageImpl>& host);

// A CPU tensor with the same bytes, sizes, strides and offset (no copy).
at::Tensor host_alias(const at::Tensor& tensor);

// A neuron tensor over `storage` with the sizes, strides, offset and dtype of
// the CPU tensor `host`.
at::Tensor device_tensor(c10::Storage storage, const at::Tensor& host);

}  // namespace softneuron
