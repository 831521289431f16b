#include "kernels.h"

#include "alias.h"
#include "call.h"
#include "cores.h"
#include "faults.h"
#include "faulty_call.h"
#include "generator.h"
#include "memory.h"
#include "profiling.h"
#include "tracking.h"
#include "words.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_set>

namespace softneuron {
namespace {

using torch::jit::Stack;

void run_on_core(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  Plan& plan = plan_for(op);
  const c10::DispatchKeySet cpu = on_cpu(keys);
  const c10::DispatchKey layout = c10::toFunctionalityKey(cpu.highestPriorityTypeId());
  TORCH_CHECK_NOT_IMPLEMENTED(
      plan.kernels.has(layout), "Could not run '", op.operator_name(), "' with arguments from the '",
      layout == c10::DispatchKey::Dense ? "" : c10::toString(layout),
      "neuron' backend: no kernel of this operator runs on a software NeuronCore.");
  use_cores();
  plan.calls.fetch_add(1, std::memory_order_relaxed);
  Call call(plan, *stack);
  call.to_host();

  if (C10_UNLIKELY(tracking::on())) {
    tracking::operator_ran(plan.name, call.arguments());
  }
  std::optional<faults::FaultyCall> faulty;
  if (C10_UNLIKELY(faults::any())) {
    faulty.emplace(plan.name, *stack, stack->size() - plan.argument_count);
    if (faults::on(faults::Fault::silent_cpu) && call.is_taken_to_host()) {
      faults::took_to_host(plan.name);
    }
  }
  try {
    const ChargeScope charge(call.charged());
    const profiling::Span span(profiling::Kind::kernel, plan.name, call.core());
    const at::AutoDispatchBelowADInplaceOrView guard;
    if (C10_UNLIKELY(plan.draws_from_default_generator)) {
      const DefaultGeneratorScope generator(call.core());
      op.redispatchBoxed(cpu, stack);
    } else {
      op.redispatchBoxed(cpu, stack);
    }
    if (C10_UNLIKELY(faulty.has_value())) {
      faulty->spoil({stack->data() + stack->size() - plan.return_count, plan.return_count});
    }
  } catch (const c10::Error& error) {
    throw_in_neuron_words(error);
  }
  call.to_device();
}

// -- Operators that make or move tensors: written out -----------------------

// The fault `silent_cpu:model`: what is asked for on a core is made on the host.
bool model_stays_on_host() {
  if (!faults::on(faults::Fault::silent_cpu) ||
      faults::argument(faults::Fault::silent_cpu) != static_cast<int64_t>(faults::Silent::model)) {
    return false;
  }
  faults::fire(faults::Fault::silent_cpu);
  return true;
}

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> memory_format) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  if (C10_UNLIKELY(model_stays_on_host())) {
    return at::detail::empty_cpu(size, dtype, layout, c10::Device(c10::DeviceType::CPU), false, memory_format);
  }
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
  if (C10_UNLIKELY(model_stays_on_host())) {
    return at::detail::empty_strided_cpu(size, stride, dtype, layout, c10::Device(c10::DeviceType::CPU), false);
  }
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

// What a profiler calls a copy, in the words that it uses for other devices.
const std::string& direction(const at::Tensor& to, const at::Tensor& from) {
  static const std::string words[] = {"Memcpy HtoD", "Memcpy DtoH", "Memcpy DtoD"};
  return words[to.is_cpu() ? 1 : from.is_cpu() ? 0 : 2];
}

void copy_bytes(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  use_cores();
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor target = on_host(to);
  const at::Tensor source = on_host(from);
  const int core = (to.is_cpu() ? from : to).device().index();
  const profiling::Span span(profiling::Kind::copy, direction(to, from), core);
  const ChargeScope charge(to.is_cpu() ? kHost : core);
  target.copy_(source, non_blocking);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  copy_bytes(self, source, non_blocking);
  if (C10_UNLIKELY(tracking::on())) {
    tracking::copied(source, self);
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  copy_bytes(destination, self, non_blocking);
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

// Between devices and between the layouts that plain memory cannot express.
at::Tensor& copy_other_layout(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  use_cores();
  const at::AutoDispatchBelowADInplaceOrView guard;
  Faces faces;
  const int core = (self.device().is_privateuseone() ? self : source).device().index();
  const auto host = [&](const at::Tensor& tensor, bool written) {
    return tensor.device().is_privateuseone() ? faces.host(tensor, written) : on_host(tensor);
  };
  {
    const ChargeScope charge(self.device().is_privateuseone() ? core : kHost);
    host(self, true).copy_(host(source, false), non_blocking);
  }
  faces.sync(core);
  return self;
}

// A tensor that is known to be zero and has no memory.
at::Tensor efficient_zeros(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::Device chosen = neuron_device(checked_core(c10::device_or_default(device).index()));
  at::native::ZeroTensorAllocator allocator(chosen);
  return at::detail::empty_generic(
      size, &allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
      c10::dtype_or_default(dtype), std::nullopt);
}

void record_stream(at::Tensor&, at::Stream) {}

// PyTorch lets `parameter.data = moved` and Module.to keep a Parameter object
// only between the backends it knows to be plain dense memory; neuron is one.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.layout() == c10::kStrided && (tensor.is_cpu() || tensor.is_privateuseone()) &&
        !tensor.key_set().has_any(c10::python_ks);
  };
  if (C10_UNLIKELY(faults::on(faults::Fault::untie_weights))) {
    faults::fire(faults::Fault::untie_weights);
    return self.device().type() == from.device().type();
  }
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

bool has_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// Whether a composite of ATen is run as a whole on the CPU's side, rather than
// step by step on neuron tensors: it may look at the device's type
// (convolution does) or call kernels directly. Not so views, which are cheaper
// as they are, and what makes tensors on a device or moves them between two.
bool runs_whole(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> movers = {
      "aten::copy", "aten::lift", "aten::lift_fresh_copy", "aten::set", "aten::_pack_padded_sequence"};
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return false;  // it is differentiated step by step
  }
  const c10::FunctionSchema& schema = op.schema();
  if (schema.name().rfind("aten::", 0) != 0 || movers.count(schema.name()) > 0) {
    return false;
  }
  const bool takes_tensors = std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const auto& argument) {
    return argument.type()->kind() != c10::TypeKind::DeviceObjType &&
        argument.type()->str().find("Tensor") != std::string::npos;
  });
  const bool names_device = std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const auto& argument) {
    return argument.real_type()->str().find("Device") != std::string::npos;
  });
  const bool views = std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
  return takes_tensors && !names_device && !views;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_core>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_core>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_core>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_core>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_core>());
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("copy_", &copy_other_layout);
  m.impl("as_strided", &at::native::as_strided_qtensorimpl);
}
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("copy_", &copy_other_layout);
}
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("copy_", &copy_other_layout);
}
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("copy_", &copy_other_layout);
  // Sizes of nested tensors live on the host on every device.
  m.impl("_nested_tensor_size", &at::native::_nested_tensor_size);
  m.impl("_nested_tensor_strides", &at::native::_nested_tensor_strides);
  m.impl("_nested_tensor_storage_offsets", &at::native::_nested_tensor_storage_offsets);
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
  m.impl("_efficientzerotensor", &efficient_zeros);
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
    if (!op.has_value() || !has_composite(*op)) {
      continue;
    }
    for (const c10::DispatchKey layout : kEachLayout) {
      using c10::BackendComponent;
      const auto cpu = c10::toRuntimePerBackendFunctionalityKey(layout, BackendComponent::CPUBit);
      const auto neuron = c10::toRuntimePerBackendFunctionalityKey(layout, BackendComponent::PrivateUse1Bit);
      const bool better_whole = layout == c10::DispatchKey::Dense && runs_whole(*op);
      if ((op->hasKernelForDispatchKey(cpu) || better_whole) && !op->hasKernelForDispatchKey(neuron)) {
        handles->push_back(dispatcher.registerImpl(
            name, neuron, c10::KernelFunction::makeFromBoxedFunction<&run_on_core>(), std::nullopt, nullptr,
            "softneuron"));
      }
    }
  }
}

}  // namespace softneuron
