#include "neff.h"

#include "alias.h"
#include "cores.h"
#include "faults.h"
#include "generator.h"
#include "memory.h"
#include "profiling.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <filesystem>

namespace softneuron {
namespace {

// Generated code reads memory as it is: it knows nothing of a tensor that is the conjugate or the negative of
// what its memory holds.
struct Resolved {
  at::Tensor view;
  at::Tensor plain;
};

bool holds_its_values(const at::Tensor& tensor) {
  return !tensor.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}));
}

// A copy of `tensor` that holds its values, laid out as it is.
at::Tensor resolved(const at::Tensor& tensor) {
  at::Tensor memory = tensor.detach();
  memory.unsafeGetTensorImpl()->_set_conj(false);
  memory.unsafeGetTensorImpl()->_set_neg(false);
  int64_t extent = tensor.numel() == 0 ? 0 : 1;
  for (int64_t dim = 0; extent > 0 && dim < tensor.dim(); ++dim) {
    extent += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  at::Tensor copy = memory.as_strided({extent}, {1}, tensor.storage_offset()).clone();
  if (tensor.is_conj()) {
    copy.conj_physical_();
  }
  if (tensor.is_neg()) {
    copy.neg_();
  }
  return copy.as_strided(tensor.sizes(), tensor.strides(), 0);
}

}  // namespace

Neff::Neff(const std::string& path)
    : loader_(std::make_unique<torch::inductor::AOTIModelPackageLoader>(path, "model", /*run_single_threaded=*/true)),
      name_(std::filesystem::path(path).parent_path().filename()) {}

Neff::~Neff() = default;

std::vector<at::Tensor> Neff::run(
    std::vector<at::Tensor> inputs, int core, const std::vector<bool>& on_device, bool draws_random,
    const std::vector<bool>& written) {
  if (C10_UNLIKELY(faults::any())) {
    faults::hang_or_abort();
  }
  std::vector<at::Tensor> aliases;
  aliases.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    if (!input.device().is_privateuseone()) {
      aliases.push_back(input);
      continue;
    }
    TORCH_CHECK(
        input.device().index() == core,
        "Expected all tensors to be on the same device, but found at least two devices, ", neuron_device(core),
        " and ", input.device(), "!");
    aliases.push_back(host_alias(input));
  }
  std::vector<Resolved> to_write_back;
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (C10_LIKELY(holds_its_values(aliases[i]))) {
      continue;
    }
    const ChargeScope charge(inputs[i].device().is_privateuseone() ? core : kHost);
    at::Tensor plain = resolved(aliases[i]);
    if (written.at(i)) {
      to_write_back.push_back({aliases[i], plain});
    }
    aliases[i] = std::move(plain);
  }
  const std::vector<at::Tensor> held = aliases;

  std::vector<at::Tensor> outputs;
  const int64_t refusals = core_memory(core).out_of_memory;
  try {
    const ChargeScope charge(core);
    const profiling::Span span(profiling::Kind::kernel, name_, core);
    const at::AutoDispatchBelowADInplaceOrView guard;
    std::optional<DefaultGeneratorScope> generator;
    if (draws_random) {
      generator.emplace(core);
    }
    outputs = loader_->boxed_run(std::move(aliases));
    for (const Resolved& input : to_write_back) {
      input.view.copy_(input.plain);
    }
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    // The package's C interface turns every exception into a runtime error.
    TORCH_CHECK_WITH(
        OutOfMemoryError, core_memory(core).out_of_memory == refusals, "neuron:", core,
        " out of memory inside a compiled graph: ", error.what());
    throw;
  }

  for (size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor& output = outputs[i];
    if (!output.defined()) {
      continue;
    }
    c10::StorageImpl* bytes = output.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    c10::Storage storage;
    for (size_t j = 0; j < held.size() && !storage; ++j) {
      if (held[j].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == bytes &&
          holds_its_values(inputs[j])) {
        storage = inputs[j].storage();
      }
    }
    // The host and a core never share memory: a result on one that is a view
    // of an input on the other was a copy between them in the user's program.
    if (storage && storage.device().is_privateuseone() != on_device.at(i)) {
      const ChargeScope charge(on_device.at(i) ? core : kHost);
      output = output.clone();
      bytes = output.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      storage = c10::Storage();
    }
    if (!on_device.at(i)) {
      continue;
    }
    if (!storage) {
      storage = device_storage(
          c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(bytes), core);
    }
    output = device_tensor(std::move(storage), output);
  }
  return outputs;
}

}  // namespace softneuron
