// What PyTorch's device-independent code asks a device: is it there, how many,
// which generator, how to grow a storage.
#include "alias.h"
#include "cores.h"
#include "generator.h"
#include "memory.h"
#include "pinned.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <cstring>

namespace softneuron {
namespace {

struct NeuronHooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return core_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return cores_used();
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(core_count());
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_core());
  }
  void setCurrentDevice(c10::DeviceIndex core) const override {
    exchange_core(checked_core(core));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex core) const override {
    return static_cast<c10::DeviceIndex>(exchange_core(core));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex core) const override {
    return static_cast<c10::DeviceIndex>(exchange_core(core));
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex core) const override {
    return default_generator(core);
  }
  at::Generator getNewGenerator(c10::DeviceIndex core) const override {
    return new_generator(core);
  }
  at::Device getDeviceFromPtr(void*) const override {
    return neuron_device(current_core());
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const auto host = host_storage(storage);
    const int core = storage.device().index();
    c10::DataPtr fresh = allocate_on_core(bytes, core);
    const size_t kept = std::min(bytes, host->nbytes());
    if (kept > 0) {
      std::memcpy(fresh.mutable_get(), host->data(), kept);
    }
    host->set_data_ptr_noswap(std::move(fresh));
    host->set_nbytes(bytes);
    follow_host_storage(*storage.unsafeGetStorageImpl(), host);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks);
  return true;
}();

}  // namespace
}  // namespace softneuron
