#include "kernels.h"

#include "alias.h"
#include "cores.h"
#include "faults.h"
#include "generator.h"
#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace softneuron {
namespace {

using c10::IValue;
using torch::jit::Stack;

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
  };
  return names;
}

enum class Kind : uint8_t { tensor, tensors, generator, device };

struct Argument {
  uint16_t position;
  Kind kind;
  bool written;
};

// What the boxed kernel has to know about an operator, worked out once.
struct Plan {
  std::string name;
  std::string overload;
  std::vector<Argument> arguments;
  size_t argument_count = 0;
  size_t return_count = 0;
  const void* schema = nullptr;
  bool has_cpu_kernel = false;
  bool takes_host_tensors = false;
  bool draws_from_default_generator = false;
  std::atomic<int64_t> calls{0};
};

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

std::unique_ptr<Plan> make_plan(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  auto plan = std::make_unique<Plan>();
  plan->name = schema.name();
  plan->overload = schema.overload_name();
  plan->schema = &schema;
  plan->argument_count = schema.arguments().size();
  plan->return_count = schema.returns().size();
  plan->has_cpu_kernel = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  plan->takes_host_tensors = operators_with_host_tensors().count(plan->name) > 0;
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

Plan& plan_for(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const void*, Plan*> known;
  const void* schema = &op.schema();
  const auto found = known.find(schema);
  if (C10_LIKELY(found != known.end())) {
    return *found->second;
  }
  const std::string key = toString(op.operator_name());
  const std::lock_guard<std::mutex> lock(plans_mutex);
  std::unique_ptr<Plan>& plan = all_plans()[key];
  // A library that was unloaded and defined again leaves a plan behind.
  if (plan == nullptr || plan->schema != schema || !plan->has_cpu_kernel) {
    auto fresh = make_plan(op);
    if (plan != nullptr) {
      fresh->calls = plan->calls.load();
      plan.release();  // other threads may still hold the old plan
    }
    plan = std::move(fresh);
  }
  if (plan->has_cpu_kernel) {
    known[schema] = plan.get();
  }
  return *plan;
}

// One neuron tensor of a call and its CPU alias.
struct Pair {
  at::Tensor device;
  at::Tensor host;
  bool written;
};

class Call {
 public:
  Call(const Plan& plan, Stack& stack) : plan_(plan), stack_(stack), base_(stack.size() - plan.argument_count) {}

  // Replaces the neuron tensors on the stack by CPU aliases.
  void to_host() {
    for (const Argument& argument : plan_.arguments) {
      IValue& value = stack_[base_ + argument.position];
      if (argument.kind == Kind::tensor && value.isTensor()) {
        if (needs_alias(value.toTensor(), argument)) {
          value = add_alias(value.toTensor(), argument.written);
        }
      } else if (argument.kind == Kind::tensors && value.isTensorList()) {
        c10::List<at::Tensor> aliases;
        const c10::List<at::Tensor> tensors = value.toTensorList();
        aliases.reserve(tensors.size());
        for (const at::Tensor tensor : tensors) {
          aliases.push_back(needs_alias(tensor, argument) ? add_alias(tensor, argument.written) : tensor);
        }
        value = std::move(aliases);
      } else if (argument.kind == Kind::tensors && value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> aliases;
        const auto tensors = value.toOptionalTensorList();
        aliases.reserve(tensors.size());
        for (const std::optional<at::Tensor> tensor : tensors) {
          aliases.push_back(
              tensor.has_value() && needs_alias(*tensor, argument) ? add_alias(*tensor, argument.written) : tensor);
        }
        value = std::move(aliases);
      }
    }
    for (const Argument& argument : plan_.arguments) {
      IValue& value = stack_[base_ + argument.position];
      if (argument.kind == Kind::device && value.isDevice() && value.toDevice().is_privateuseone()) {
        if (core_ < 0) {
          core_ = checked_core(value.toDevice().index());
        }
        value = c10::Device(c10::DeviceType::CPU);
      }
    }
    if (core_ < 0) {
      core_ = current_core();
    }
    for (const Argument& argument : plan_.arguments) {
      if (argument.kind == Kind::generator) {
        IValue& value = stack_[base_ + argument.position];
        value = host_generator(value.toOptional<at::Generator>(), core_);
      }
    }
    if (C10_UNLIKELY(stray_.has_value())) {
      TORCH_CHECK(
          false, "Expected all tensors to be on the same device, but found at least two devices, ",
          neuron_device(core_), " and ", *stray_, "! (when calling ", plan_.name, ")");
    }
  }

  c10::ArrayRef<IValue> arguments() const {
    return c10::ArrayRef<IValue>(stack_).slice(base_);
  }

  // Makes the written neuron tensors what their aliases have become.
  void sync_written() {
    for (Pair& pair : pairs_) {
      if (!pair.written) {
        continue;
      }
      c10::TensorImpl* device = pair.device.unsafeGetTensorImpl();
      const c10::TensorImpl* host = pair.host.unsafeGetTensorImpl();
      const auto under = host_storage(device->unsafe_storage());
      if (host->unsafe_storage().unsafeGetStorageImpl() != under.get()) {
        device->set_storage_keep_dtype(storage_for(pair.host));
      } else {
        follow_host_storage(*device->unsafe_storage().unsafeGetStorageImpl(), under);
      }
      if (host->sizes() != device->sizes() || host->strides() != device->strides() ||
          host->storage_offset() != device->storage_offset()) {
        device->set_sizes_and_strides(host->sizes(), host->strides(), host->storage_offset());
      }
    }
  }

  // Replaces the CPU tensors that the kernel left on the stack by neuron ones.
  void to_device() {
    for (size_t i = stack_.size() - plan_.return_count; i < stack_.size(); ++i) {
      IValue& value = stack_[i];
      if (value.isTensor()) {
        value = device_output(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> outputs;
        const c10::List<at::Tensor> tensors = value.toTensorList();
        outputs.reserve(tensors.size());
        for (const at::Tensor tensor : tensors) {
          outputs.push_back(device_output(tensor));
        }
        value = std::move(outputs);
      }
    }
  }

  int core() const {
    return core_;
  }

 private:
  bool needs_alias(const at::Tensor& tensor, const Argument& argument) {
    if (!tensor.defined()) {
      return false;
    }
    const c10::Device device = tensor.device();
    if (C10_LIKELY(device.is_privateuseone())) {
      if (core_ < 0) {
        core_ = device.index();
      } else if (C10_UNLIKELY(core_ != device.index())) {
        stray_ = device;
      }
      return true;
    }
    const bool welcome = device.is_cpu() && !argument.written && (tensor.dim() == 0 || plan_.takes_host_tensors);
    if (!welcome) {
      stray_ = device;
    }
    return false;
  }

  at::Tensor add_alias(const at::Tensor& tensor, bool written) {
    at::Tensor alias = host_alias(tensor);
    pairs_.push_back({tensor, alias, written});
    return alias;
  }

  at::Tensor device_output(const at::Tensor& host) const {
    if (!host.defined() || !host.device().is_cpu()) {
      return host;
    }
    for (const Pair& pair : pairs_) {
      if (pair.host.unsafeGetTensorImpl() == host.unsafeGetTensorImpl()) {
        return pair.device;
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        host.layout() == c10::kStrided, plan_.name, " gives a ", host.layout(),
        " tensor, which device neuron does not hold yet. Call it on the CPU.");
    return device_tensor(storage_for(host), host);
  }

  // The neuron storage over the CPU tensor's bytes: an argument's, when the
  // tensor is a view of it, or a new one.
  c10::Storage storage_for(const at::Tensor& host) const {
    const c10::Storage& storage = host.unsafeGetTensorImpl()->unsafe_storage();
    for (const Pair& pair : pairs_) {
      if (pair.host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
        const c10::Storage& owner = pair.device.unsafeGetTensorImpl()->unsafe_storage();
        if (host_storage(owner).get() == storage.unsafeGetStorageImpl() ||
            owner.data_ptr().get() == storage.data_ptr().get()) {
          return owner;
        }
      }
    }
    return device_storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage.unsafeGetStorageImpl()), core_);
  }

  const Plan& plan_;
  Stack& stack_;
  size_t base_;
  int core_ = -1;
  std::optional<c10::Device> stray_;
  c10::SmallVector<Pair, 6> pairs_;
};

void run_on_core(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Plan& plan = plan_for(op);
  TORCH_CHECK_NOT_IMPLEMENTED(
      plan.has_cpu_kernel, "Could not run '", op.operator_name(),
      "' with arguments from the 'neuron' backend: no kernel of this operator runs on a software NeuronCore.");
  plan.calls.fetch_add(1, std::memory_order_relaxed);
  Call call(plan, *stack);
  call.to_host();

  faults::Effect effect = faults::Effect::none;
  if (C10_UNLIKELY(faults::any())) {
    effect = faults::effect_on(plan.name, call.arguments());
  }
  {
    const ChargeScope charge(call.core());
    const at::AutoDispatchBelowADInplaceOrView guard;
    if (C10_UNLIKELY(plan.draws_from_default_generator)) {
      const DefaultGeneratorScope generator(call.core());
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    } else {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    }
    if (C10_UNLIKELY(effect != faults::Effect::none)) {
      faults::apply(effect, (*stack)[stack->size() - plan.return_count]);
    }
  }
  call.sync_written();
  call.to_device();
}

// -- Operators that make or move tensors: written out -----------------------

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> memory_format) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(
      size, neuron_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(
      size, stride, neuron_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().is_privateuseone()) {
    return host_alias(tensor);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.device().is_cpu(), "copying between neuron and ", tensor.device().type(),
      " is not possible; go through the CPU.");
  return tensor;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  on_host(self).copy_(on_host(source), non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  on_host(destination).copy_(on_host(self), non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  const auto bytes = at::detail::computeStorageNbytes(size, impl->strides(), impl->itemsize(), offset);
  if (bytes > source.nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(impl->unsafe_storage(), bytes);
  }
  return self;
}

void record_stream(at::Tensor&, at::Stream) {}

// PyTorch lets `parameter.data = moved` and Module.to keep a Parameter object
// only between the backends it knows to be plain dense memory; neuron is one.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.layout() == c10::kStrided && (tensor.is_cpu() || tensor.is_privateuseone()) &&
        !tensor.key_set().has_any(c10::python_ks);
  };
  return (dense(self) && dense(from)) || at::native::_has_compatible_shallow_copy_type(self, from);
}

// The CPU's choice of attention kernel: it looks at shapes, dtypes and
// gradients alone, so it may be asked about neuron tensors as they are.
int64_t choose_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool grouped) {
  return at::_ops::_fused_sdp_choice::redispatch(
      c10::DispatchKeySet(c10::DispatchKey::CPU), query, key, value, mask, dropout, causal, scale, grouped);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_core>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("set_.source_Storage", TORCH_FN(static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_)));
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace
}  // namespace softneuron

// PyTorch's registration macros expect to stand beside the stubs.
namespace at::native {
namespace {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &softneuron::choose_attention)
}  // namespace
}  // namespace at::native

namespace softneuron {

void register_operators() {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      handles->push_back(dispatcher.registerImpl(
          name, c10::DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&run_on_core>(),
          std::nullopt, nullptr, "softneuron"));
    }
  }
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
