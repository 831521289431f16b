#include "neff.h"

#include "alias.h"
#include "cores.h"
#include "memory.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

namespace softneuron {

Neff::Neff(const std::string& path)
    : loader_(std::make_unique<torch::inductor::AOTIModelPackageLoader>(path, "model", /*run_single_threaded=*/true)) {}

Neff::~Neff() = default;

std::vector<at::Tensor> Neff::run(
    std::vector<at::Tensor> inputs, int core, const std::vector<bool>& on_device) {
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
    if (!output.defined() || !on_device.at(i)) {
      continue;
    }
    const c10::StorageImpl* bytes = output.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    c10::Storage storage;
    for (size_t j = 0; j < held.size() && !storage; ++j) {
      if (inputs[j].device().is_privateuseone() && held[j].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == bytes) {
        storage = inputs[j].storage();
      }
    }
    if (!storage) {
      storage = device_storage(
          c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(const_cast<c10::StorageImpl*>(bytes)), core);
    }
    output = device_tensor(std::move(storage), output);
  }
  return outputs;
}

}  // namespace softneuron
