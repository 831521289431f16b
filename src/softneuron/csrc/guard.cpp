// PyTorch's device guard for `neuron`: current core, streams and events. Work
// runs in the caller's thread, so every stream is always drained and an event
// is a time stamp.
#include "cores.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>

namespace softneuron {
namespace {

struct Event {
  int64_t nanoseconds = 0;
};

thread_local std::array<c10::StreamId, 256> current_streams{};
std::atomic<c10::StreamId> next_stream{1};

c10::Stream stream_of(c10::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, neuron_device(checked_core(device.index())), id);
}

struct NeuronGuard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return c10::DeviceType::PrivateUse1;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return neuron_device(exchange_core(device.index()));
  }
  c10::Device getDevice() const override {
    return neuron_device(current_core());
  }
  void setDevice(c10::Device device) const override {
    exchange_core(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < core_count()) {
      exchange_core(device.index());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(core_count());
  }

  c10::Stream getStream(c10::Device device) const override {
    const int core = checked_core(device.index());
    return stream_of(device, current_streams[core]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return stream_of(device, next_stream.fetch_add(1));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int core = checked_core(stream.device_index());
    const c10::Stream previous = stream_of(stream.device(), current_streams[core]);
    current_streams[core] = stream.id();
    return previous;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Event;
    }
    static_cast<Event*>(*event)->nanoseconds =
        std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    TORCH_CHECK(
        start != nullptr && end != nullptr,
        "Both events must be recorded before calculating elapsed time.");
    const int64_t ns = static_cast<Event*>(end)->nanoseconds - static_cast<Event*>(start)->nanoseconds;
    return static_cast<double>(ns) / 1e6;
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    return {};
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuard)

}  // namespace
}  // namespace softneuron
