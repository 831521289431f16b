// Random numbers: one generator per core, the CPU's algorithm underneath, so
// that a seed gives the CPU's numbers.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

namespace softneuron {

class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  explicit NeuronGenerator(c10::DeviceIndex core);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type();

  // The CPU generator that draws the numbers.
  const at::Generator& host() const {
    return host_;
  }

 private:
  NeuronGenerator* clone_impl() const override;
  at::Generator host_;
};

const at::Generator& default_generator(int core);
at::Generator new_generator(int core);

// The CPU generator under `generator`, or under the core's default one when
// there is none. Throws when `generator` belongs to another device.
at::Generator host_generator(const std::optional<at::Generator>& generator, int core);

// For kernels that draw from the CPU's default generator without being handed
// one: while alive, that generator continues the core's sequence.
class DefaultGeneratorScope {
 public:
  explicit DefaultGeneratorScope(int core);
  ~DefaultGeneratorScope();
  DefaultGeneratorScope(const DefaultGeneratorScope&) = delete;
  DefaultGeneratorScope& operator=(const DefaultGeneratorScope&) = delete;

 private:
  at::Generator core_;
  c10::intrusive_ptr<c10::TensorImpl> cpu_state_;
};

}  // namespace softneuron
