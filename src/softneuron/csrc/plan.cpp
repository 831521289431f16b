#include "plan.h"

#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace softneuron {
namespace {

// Operators that take tensors of the host beside tensors of a device, on every
// PyTorch device: indices, and lengths that the host must read anyway.
const std::unordered_set<std::string>& operators_with_host_tensors() {
  static const std::unordered_set<std::string> names = {
      "aten::index",
      "aten::index_put",
      "aten::index_put_",
      "aten::_index_put_impl",
      "aten::_index_put_impl_",
      "aten::_unsafe_index",
      "aten::_unsafe_index_put",
      "aten::_pack_padded_sequence",
      "aten::_pad_packed_sequence",
      "aten::tensor_split",
      "aten::empty_quantized",
  };
  return names;
}

// Operators whose CPU kernel asks its tensors whether they require gradients, to
// see what the backward pass will need.
const std::unordered_set<std::string>& operators_that_ask_for_gradients() {
  static const std::unordered_set<std::string> names = {"aten::_sparse_mm_reduce_impl"};
  return names;
}

std::mutex plans_mutex;

std::unordered_map<std::string, std::unique_ptr<Plan>>& all_plans() {
  static auto* plans = new std::unordered_map<std::string, std::unique_ptr<Plan>>;
  return *plans;
}

bool mentions(const c10::TypePtr& type, c10::TypeKind kind) {
  if (type->kind() == kind) {
    return true;
  }
  for (const auto& contained : type->containedTypes()) {
    if (mentions(contained, kind)) {
      return true;
    }
  }
  return false;
}

c10::DispatchKeySet cpu_kernels(const c10::OperatorHandle& op) {
  c10::DispatchKeySet found;
  for (const c10::DispatchKey layout : kEachLayout) {
    const auto key = c10::toRuntimePerBackendFunctionalityKey(layout, c10::BackendComponent::CPUBit);
    if (op.hasComputedKernelForDispatchKey(key)) {
      found = found | c10::DispatchKeySet(layout);
    }
  }
  return found;
}

std::unique_ptr<Plan> make_plan(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  auto plan = std::make_unique<Plan>();
  plan->name = schema.name();
  plan->overload = schema.overload_name();
  plan->schema = &schema;
  plan->argument_count = schema.arguments().size();
  plan->return_count = schema.returns().size();
  plan->kernels = cpu_kernels(op);
  plan->takes_host_tensors = operators_with_host_tensors().count(plan->name) > 0;
  plan->asks_for_gradients = operators_that_ask_for_gradients().count(plan->name) > 0;
  bool takes_generator = false;
  for (size_t i = 0; i < plan->argument_count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const c10::TypePtr& type = argument.real_type();
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const auto position = static_cast<uint16_t>(i);
    if (mentions(type, c10::TypeKind::TensorType)) {
      const bool list = mentions(type, c10::TypeKind::ListType);
      plan->arguments.push_back({position, list ? Kind::tensors : Kind::tensor, written});
    } else if (mentions(type, c10::TypeKind::GeneratorType)) {
      takes_generator = true;
      plan->arguments.push_back({position, Kind::generator, false});
    } else if (mentions(type, c10::TypeKind::DeviceObjType)) {
      plan->arguments.push_back({position, Kind::device, false});
    }
  }
  plan->draws_from_default_generator = !takes_generator && op.hasTag(at::Tag::nondeterministic_seeded);
  return plan;
}

Plan& look_up_plan(const c10::OperatorHandle& op) {
  const void* schema = &op.schema();
  const std::string key = toString(op.operator_name());
  const std::lock_guard<std::mutex> lock(plans_mutex);
  std::unique_ptr<Plan>& plan = all_plans()[key];
  // A library that was unloaded and defined again leaves a plan behind; so
  // does a call before the kernel was registered.
  if (plan == nullptr || plan->schema != schema || plan->kernels != cpu_kernels(op)) {
    auto fresh = make_plan(op);
    if (plan != nullptr) {
      fresh->calls = plan->calls.load();
      plan.release();  // other threads may still hold the old plan
    }
    plan = std::move(fresh);
  }
  return *plan;
}

// A small table per thread, indexed by the schema's address, in front of the
// map: a look-up on the hot path is one compare.
struct Known {
  const void* schema = nullptr;
  Plan* plan = nullptr;
};
constexpr size_t kKnown = 1024;
thread_local std::array<Known, kKnown> known;

}  // namespace

Plan& plan_for(const c10::OperatorHandle& op) {
  const void* schema = &op.schema();
  Known& slot = known[(reinterpret_cast<uintptr_t>(schema) >> 6) % kKnown];
  if (C10_LIKELY(slot.schema == schema)) {
    return *slot.plan;
  }
  Plan& plan = look_up_plan(op);
  if (!plan.kernels.empty()) {
    slot = {schema, &plan};
  }
  return plan;
}

std::vector<std::pair<std::string, int64_t>> executed_operators() {
  const std::lock_guard<std::mutex> lock(plans_mutex);
  std::vector<std::pair<std::string, int64_t>> executed;
  for (const auto& [name, plan] : all_plans()) {
    const int64_t calls = plan->calls.load(std::memory_order_relaxed);
    if (calls > 0) {
      executed.emplace_back(name, calls);
    }
  }
  return executed;
}

void clear_executed_operators() {
  const std::lock_guard<std::mutex> lock(plans_mutex);
  for (const auto& [name, plan] : all_plans()) {
    plan->calls.store(0, std::memory_order_relaxed);
  }
}

}  // namespace softneuron
