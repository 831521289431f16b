#include "generator.h"

#include "cores.h"
#include "faults.h"
#include "memory.h"

#include <array>
#include <mutex>

namespace softneuron {

NeuronGenerator::NeuronGenerator(c10::DeviceIndex core)
    : c10::GeneratorImpl(neuron_device(core), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      host_(at::detail::createCPUGenerator()) {}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  host_.set_current_seed(seed);
}
// The CPU's algorithm has no offset; PyTorch pickles one for every device.
void NeuronGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(offset == 0, "a generator of neuron has no offset; restore it with set_state");
}
uint64_t NeuronGenerator::get_offset() const {
  return 0;
}
uint64_t NeuronGenerator::current_seed() const {
  return host_.current_seed();
}
uint64_t NeuronGenerator::seed() {
  return host_.seed();
}
void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  host_.unsafeGetGeneratorImpl()->set_state(state);
}
c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  return host_.unsafeGetGeneratorImpl()->get_state();
}
c10::DeviceType NeuronGenerator::device_type() {
  return c10::DeviceType::PrivateUse1;
}
NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device().index());
  copy->host_ = host_.clone();
  return copy;
}

const at::Generator& default_generator(int core) {
  static std::mutex mutex;
  static std::array<at::Generator, kMaxCores> generators;
  const int index = checked_core(core);
  const std::lock_guard<std::mutex> lock(mutex);
  if (!generators[index].defined()) {
    generators[index] = new_generator(index);
  }
  return generators[index];
}

at::Generator new_generator(int core) {
  return at::make_generator<NeuronGenerator>(static_cast<c10::DeviceIndex>(checked_core(core)));
}

at::Generator host_generator(const std::optional<at::Generator>& generator, int core) {
  if (C10_UNLIKELY(faults::on(faults::Fault::unseeded_random))) {
    faults::fire(faults::Fault::unseeded_random);
    at::Generator unseeded = at::detail::createCPUGenerator();
    unseeded.seed();
    return unseeded;
  }
  if (!generator.has_value() || !generator->defined()) {
    return default_generator(core).get<NeuronGenerator>()->host();
  }
  TORCH_CHECK(
      generator->device().type() == c10::DeviceType::PrivateUse1,
      "Expected a 'neuron' device type for generator but found '", generator->device().type(), "'");
  return generator->get<NeuronGenerator>()->host();
}

DefaultGeneratorScope::DefaultGeneratorScope(int core) : core_(host_generator(std::nullopt, core)) {
  at::Generator cpu = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(cpu.mutex());
  cpu_state_ = cpu.unsafeGetGeneratorImpl()->get_state();
  cpu.unsafeGetGeneratorImpl()->set_state(*core_.unsafeGetGeneratorImpl()->get_state());
}

DefaultGeneratorScope::~DefaultGeneratorScope() {
  at::Generator cpu = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(cpu.mutex());
  core_.unsafeGetGeneratorImpl()->set_state(*cpu.unsafeGetGeneratorImpl()->get_state());
  cpu.unsafeGetGeneratorImpl()->set_state(*cpu_state_);
}

}  // namespace softneuron
