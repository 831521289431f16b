// The tensors of one operator call, each with its two faces: the neuron tensor
// that the caller holds and the CPU tensor that the kernel sees. Knows every
// layout that PyTorch's CPU kernels take: strided, quantized, sparse (COO and
// compressed) and nested.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace softneuron {

class Faces {
 public:
  // The CPU face of a neuron tensor (no copy). Of a tensor that the kernel
  // writes, `written`, sizes and storage are brought back by `sync`.
  at::Tensor host(at::Tensor device, bool written);

  // Makes the written neuron tensors what their CPU faces have become.
  void sync(int core);

  // The neuron face of a CPU tensor that a kernel gave: the argument itself, a
  // view of an argument, or a new tensor on `core`.
  at::Tensor device(const at::Tensor& host, int core) const;

 private:
  struct Pair {
    at::Tensor device;
    at::Tensor host;
    bool written;
  };

  at::Tensor host_of_other_layout(const at::Tensor& device, bool written);
  at::Tensor device_of_other_layout(const at::Tensor& host, int core) const;
  void sync_strided(const Pair& pair, int core) const;
  void sync_other_layout(const Pair& pair, int core) const;
  c10::Storage storage_for(const at::Tensor& host, int core) const;

  c10::SmallVector<Pair, 6> pairs_;
};

// Whether the tensor is something else than plain strided memory.
inline bool has_other_layout(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet others(
      {c10::DispatchKey::Quantized, c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
       c10::DispatchKey::NestedTensor});
  return tensor.unsafeGetTensorImpl()->key_set().has_any(others);
}

}  // namespace softneuron
