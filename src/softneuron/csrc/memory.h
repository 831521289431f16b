// Core memory: who owns which bytes. A software NeuronCore's memory is host
// memory whose every block carries the core it is charged to.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace softneuron {

constexpr int kMaxCores = 128;
constexpr int kHost = -1;

struct CoreMemory {
  int64_t limit = 0;
  int64_t allocated = 0;
  int64_t peak = 0;
  int64_t allocated_total = 0;
  int64_t freed_total = 0;
  int64_t blocks = 0;
  int64_t blocks_peak = 0;
  int64_t blocks_total = 0;
  int64_t out_of_memory = 0;
};

// The memory of one core at this moment.
CoreMemory core_memory(int core);
void set_core_limit(int core, int64_t bytes);
void reset_core_peak(int core);
void reset_core_totals(int core);

// Fill fresh core memory with NaN patterns (0xFF bytes).
void set_poison(bool on);

struct Block {
  uintptr_t address = 0;
  int64_t bytes = 0;
};

// What is allocated on a core now, the newest block first.
std::vector<Block> live_blocks(int core);

// Who can say which tensors live in some blocks, in words; asked when a core
// is out of memory. Called without locks held, from any thread.
using Describer = std::function<std::string(int core, const std::vector<Block>& biggest)>;
void set_describer(Describer describer);

// While alive, what this thread allocates through PyTorch's CPU allocator is
// charged to `core`; what the threads of its intra-op pool allocate in parallel
// regions that it opens, too.
class ChargeScope {
 public:
  explicit ChargeScope(int core);
  ~ChargeScope();
  ChargeScope(const ChargeScope&) = delete;
  ChargeScope& operator=(const ChargeScope&) = delete;

 private:
  int previous_;
};

// While alive, the threads to which PyTorch carries this thread's state (Gloo's
// workers) charge to `core`; nothing for kHost.
class CarriedCharge {
 public:
  explicit CarriedCharge(int core);

 private:
  std::optional<c10::DebugInfoGuard> guard_;
};

// A charge from one node of a backward graph on the CPU's side to its end.
void open_node_charge(int core);
void close_node_charge();

// The replacement of PyTorch's CPU allocator, which knows about cores.
c10::Allocator* charging_allocator();

// The allocator of device `neuron`.
c10::DeviceAllocator* neuron_allocator();

// Bytes of host memory charged to `core`; throws c10::OutOfMemoryError.
c10::DataPtr allocate_on_core(size_t bytes, int core);

// Charges `core` with a block that was made on the host's account and now
// belongs to a tensor of that core (a result of the autograd graph on the CPU's
// side, of an operator written in Python). Other blocks are left alone.
void charge_to_core(const c10::DataPtr& data, int core);

void install_allocators();

}  // namespace softneuron
