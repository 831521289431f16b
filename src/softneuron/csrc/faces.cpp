#include "faces.h"

#include "alias.h"
#include "cores.h"
#include "memory.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DeviceGuard.h>

namespace softneuron {
namespace {

const c10::Device kHostDevice(c10::DeviceType::CPU);
constexpr size_t kFewTensors = 8;

at::Tensor quantized_face(c10::Storage storage, c10::DispatchKey key, const at::Tensor& other) {
  auto face = at::detail::make_tensor<at::QTensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), other.dtype(),
      static_cast<at::QTensorImpl*>(other.unsafeGetTensorImpl())->quantizer());
  face.unsafeGetTensorImpl()->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  return face;
}

at::Tensor nested_face(c10::Storage storage, c10::DispatchKey key, const at::Tensor& other) {
  const auto* impl = static_cast<at::native::NestedTensorImpl*>(other.unsafeGetTensorImpl());
  return at::detail::make_tensor<at::native::NestedTensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), other.dtype(), impl->get_nested_sizes(),
      impl->get_nested_strides(), impl->get_storage_offsets());
}

void fill_sparse(
    at::SparseTensorImpl& face, const at::SparseTensorImpl& other, at::Tensor indices, at::Tensor values) {
  face.raw_resize_(other.sparse_dim(), other.dense_dim(), other.sizes());
  face.indices_ = std::move(indices);
  face.values_ = std::move(values);
  face.coalesced_ = other.coalesced();
}

at::Tensor sparse_face(
    c10::DispatchKey key, const at::Tensor& other, at::Tensor indices, at::Tensor values) {
  auto face = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), other.dtype());
  fill_sparse(
      *at::sparse::get_sparse_impl(face), *at::sparse::get_sparse_impl(other), std::move(indices), std::move(values));
  return face;
}

at::Tensor compressed_face(
    c10::DispatchKey key,
    c10::Device device,
    const at::Tensor& other,
    const at::Tensor& compressed,
    const at::Tensor& plain,
    const at::Tensor& values) {
  auto face = at::detail::make_tensor<at::SparseCsrTensorImpl>(
      c10::DispatchKeySet(key), device, other.layout(), other.dtype());
  at::sparse_csr::get_sparse_csr_impl(face)->set_member_tensors(compressed, plain, values, other.sizes());
  return face;
}

c10::Storage host_side(const at::Tensor& device) {
  return c10::Storage(host_storage(device.unsafeGetTensorImpl()->unsafe_storage()));
}

}  // namespace

at::Tensor Faces::host(at::Tensor device, bool written) {
  // One tensor given twice, as an argument and as `out`, has one face: kernels
  // tell by identity. Long lists are left alone, for the sake of their cost.
  if (pairs_.size() < kFewTensors) {
    for (Pair& pair : pairs_) {
      if (pair.device.unsafeGetTensorImpl() == device.unsafeGetTensorImpl()) {
        pair.written |= written;
        return pair.host;
      }
    }
  }
  at::Tensor face = C10_LIKELY(!has_other_layout(device)) ? host_alias(device) : host_of_other_layout(device, written);
  pairs_.push_back({std::move(device), face, written});
  return face;
}

at::Tensor Faces::host_of_other_layout(const at::Tensor& device, bool written) {
  if (device.is_quantized()) {
    return quantized_face(host_side(device), c10::DispatchKey::QuantizedCPU, device);
  }
  if (device.is_nested()) {
    return nested_face(host_side(device), c10::DispatchKey::NestedTensorCPU, device);
  }
  if (device.is_sparse()) {
    const auto* impl = at::sparse::get_sparse_impl(device);
    return sparse_face(
        c10::DispatchKey::SparseCPU, device, host(impl->indices(), written), host(impl->values(), written));
  }
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(device);
  return compressed_face(
      c10::DispatchKey::SparseCsrCPU, kHostDevice, device, host(impl->compressed_indices(), written),
      host(impl->plain_indices(), written), host(impl->values(), written));
}

void Faces::sync(int core) {
  for (const Pair& pair : pairs_) {
    if (!pair.written) {
      continue;
    }
    if (C10_LIKELY(!has_other_layout(pair.device) || pair.device.is_quantized())) {
      sync_strided(pair, core);
    }
    if (C10_UNLIKELY(has_other_layout(pair.device))) {
      sync_other_layout(pair, core);
    }
  }
}

void Faces::sync_strided(const Pair& pair, int core) const {
  c10::TensorImpl* device = pair.device.unsafeGetTensorImpl();
  const c10::TensorImpl* host = pair.host.unsafeGetTensorImpl();
  const auto under = host_storage(device->unsafe_storage());
  if (host->unsafe_storage().unsafeGetStorageImpl() != under.get()) {
    device->set_storage_keep_dtype(storage_for(pair.host, core));
  } else {
    follow_host_storage(*device->unsafe_storage().unsafeGetStorageImpl(), under);
  }
  if (host->sizes() != device->sizes() || host->strides() != device->strides() ||
      host->storage_offset() != device->storage_offset()) {
    device->set_sizes_and_strides(host->sizes(), host->strides(), host->storage_offset());
  }
  // A kernel may leave its result as the conjugate of what it wrote.
  if (C10_UNLIKELY(pair.host.is_conj() != pair.device.is_conj())) {
    device->_set_conj(pair.host.is_conj());
  }
}

void Faces::sync_other_layout(const Pair& pair, int core) const {
  if (pair.device.is_quantized()) {
    static_cast<at::QTensorImpl*>(pair.device.unsafeGetTensorImpl())
        ->set_quantizer_(static_cast<at::QTensorImpl*>(pair.host.unsafeGetTensorImpl())->quantizer());
  } else if (pair.device.is_sparse()) {
    const auto& host_impl = *at::sparse::get_sparse_impl(pair.host);
    fill_sparse(
        *at::sparse::get_sparse_impl(pair.device), host_impl, device(host_impl.indices(), core),
        device(host_impl.values(), core));
  } else if (at::sparse_csr::is_sparse_compressed(pair.device)) {
    const auto* host_impl = at::sparse_csr::get_sparse_csr_impl(pair.host);
    at::sparse_csr::get_sparse_csr_impl(pair.device)
        ->set_member_tensors(
            device(host_impl->compressed_indices(), core), device(host_impl->plain_indices(), core),
            device(host_impl->values(), core), pair.host.sizes());
  }
}

at::Tensor Faces::device(const at::Tensor& host, int core) const {
  if (!host.defined() || !host.device().is_cpu()) {
    return host;
  }
  for (const Pair& pair : pairs_) {
    if (pair.host.unsafeGetTensorImpl() == host.unsafeGetTensorImpl()) {
      return pair.device;
    }
  }
  if (C10_UNLIKELY(has_other_layout(host))) {
    return device_of_other_layout(host, core);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      host.layout() == c10::kStrided, "Layout ", host.layout(), " is not available on device neuron.");
  return device_tensor(storage_for(host, core), host);
}

at::Tensor Faces::device_of_other_layout(const at::Tensor& host, int core) const {
  // The constructors of sparse tensors make empty members on the current core.
  const c10::DeviceGuard guard(neuron_device(core));
  if (host.is_quantized()) {
    return quantized_face(storage_for(host, core), c10::DispatchKey::QuantizedPrivateUse1, host);
  }
  if (host.is_nested()) {
    return nested_face(storage_for(host, core), c10::DispatchKey::NestedTensorPrivateUse1, host);
  }
  if (host.is_sparse()) {
    const auto* impl = at::sparse::get_sparse_impl(host);
    return sparse_face(
        c10::DispatchKey::SparsePrivateUse1, host, device(impl->indices(), core), device(impl->values(), core));
  }
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(host);
  return compressed_face(
      c10::DispatchKey::SparseCsrPrivateUse1, neuron_device(core), host, device(impl->compressed_indices(), core),
      device(impl->plain_indices(), core), device(impl->values(), core));
}

// The neuron storage over the CPU tensor's bytes: an argument's, when the
// tensor is a view of it, or a new one.
c10::Storage Faces::storage_for(const at::Tensor& host, int core) const {
  const c10::Storage& storage = host.unsafeGetTensorImpl()->unsafe_storage();
  for (const Pair& pair : pairs_) {
    if (!pair.host.has_storage() ||
        pair.host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() != storage.unsafeGetStorageImpl()) {
      continue;
    }
    const c10::Storage& owner = pair.device.unsafeGetTensorImpl()->unsafe_storage();
    if (host_storage(owner).get() == storage.unsafeGetStorageImpl() ||
        owner.data_ptr().get() == storage.data_ptr().get()) {
      return owner;
    }
  }
  return device_storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl()), core);
}

}  // namespace softneuron
