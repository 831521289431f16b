#include "alias.h"

#include "cores.h"
#include "memory.h"

#include <ATen/core/TensorBase.h>
#include <c10/core/TensorImpl.h>

namespace softneuron {
namespace {

void release_host_storage(void* context) {
  c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(context));
}

// The keys of another face of `tensor`: `backend`, and that it is known to be
// zero and has no memory, where it is so.
c10::DispatchKeySet keys_on(c10::DispatchKey backend, const c10::TensorImpl& tensor) {
  return c10::DispatchKeySet(backend) | (tensor.key_set() & c10::DispatchKeySet(c10::DispatchKey::ZeroTensor));
}

void copy_conjugate_and_negative(const at::Tensor& from, c10::TensorImpl& to) {
  const c10::DispatchKeySet keys = from.key_set();
  if (C10_UNLIKELY(keys.has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})))) {
    to._set_conj(from.is_conj());
    to._set_neg(from.is_neg());
  }
}

}  // namespace

c10::DataPtr device_data_ptr(c10::intrusive_ptr<c10::StorageImpl> host, int core) {
  void* data = host->_mutable_data_ptr_no_checks().get();
  return {data, host.release(), &release_host_storage, neuron_device(core)};
}

c10::Storage device_storage(c10::intrusive_ptr<c10::StorageImpl> host, int core) {
  const auto bytes = static_cast<int64_t>(host->nbytes());
  charge_to_core(host->_mutable_data_ptr_no_checks(), core);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, device_data_ptr(std::move(host), core), neuron_allocator(),
      /*resizable=*/true));
}

c10::intrusive_ptr<c10::StorageImpl> host_storage(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (C10_LIKELY(data.get_deleter() == &release_host_storage)) {
    return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
        static_cast<c10::StorageImpl*>(data.get_context()));
  }
  // Bytes that came from elsewhere (a shared file, a foreign blob): borrow
  // them. The caller holds `storage` for as long as the alias lives.
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(storage.nbytes()),
      c10::DataPtr(data.get(), c10::Device(c10::DeviceType::CPU)), charging_allocator(), /*resizable=*/false);
}

void follow_host_storage(c10::StorageImpl& storage, const c10::intrusive_ptr<c10::StorageImpl>& host) {
  if (storage.data_ptr().get() == host->data() && storage.nbytes() == host->nbytes()) {
    return;
  }
  const int core = storage.device().index();
  storage.set_data_ptr_noswap(device_data_ptr(host, core));
  storage.set_nbytes(host->nbytes());
}

at::Tensor host_alias(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(host_storage(impl->unsafe_storage())), keys_on(c10::DispatchKey::CPU, *impl),
      impl->dtype());
  c10::TensorImpl* alias_impl = alias.unsafeGetTensorImpl();
  alias_impl->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
  if (C10_UNLIKELY(impl->is_wrapped_number())) {
    alias_impl->set_wrapped_number(true);
  }
  copy_conjugate_and_negative(tensor, *alias_impl);
  return alias;
}

at::Tensor device_tensor(c10::Storage storage, const at::Tensor& host) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), keys_on(c10::DispatchKey::PrivateUse1, *host.unsafeGetTensorImpl()), host.dtype());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  if (C10_UNLIKELY(host.unsafeGetTensorImpl()->is_wrapped_number())) {
    impl->set_wrapped_number(true);
  }
  copy_conjugate_and_negative(host, *impl);
  return tensor;
}

}  // namespace softneuron
