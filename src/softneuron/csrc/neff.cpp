#include "neff.h"

#include "alias.h"
#include "cores.h"
#include "generator.h"
#include "memory.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

namespace softneuron {

Neff::Neff(const std::string& path)
    : loader_(std::make_unique<torch::inductor::AOTIModelPackageLoader>(path, "model", /*run_single_threaded=*/true)) {}

Neff::~Neff() = default;

std::vector<at::Tensor> Neff::run(
    std::vector<at::Tensor> inputs, int core, const std::vector<bool>& on_device, bool draws_random) {
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
  const std::vector<at::Tensor> held = aliases;

  std::vector<at::Tensor> outputs;
  const int64_t refusals = core_memory(core).out_of_memory;
  try {
    const ChargeScope charge(core);
    const at::AutoDispatchBelowADInplaceOrView guard;
    std::optional<DefaultGeneratorScope> generator;
    if (draws_random) {
      generator.emplace(core);
    }
    outputs = loader_->boxed_run(std::move(aliases));
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
      if (held[j].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == bytes) {
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
