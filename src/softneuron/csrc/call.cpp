#include "call.h"

#include "cores.h"
#include "faults.h"
#include "faulty_call.h"
#include "generator.h"

namespace softneuron {

using c10::IValue;

void Call::to_host() {
  for (const Argument& argument : plan_.arguments) {
    IValue& value = stack_[base_ + argument.position];
    if (argument.kind == Kind::tensor && value.isTensor()) {
      if (needs_face(value.toTensor(), argument)) {
        const bool differentiable = plan_.asks_for_gradients && value.toTensor().requires_grad();
        at::Tensor face = faces_.host(std::move(value).toTensor(), argument.written);
        if (C10_UNLIKELY(differentiable)) {
          face.set_requires_grad(true);
        }
        if (C10_UNLIKELY(faults::on(faults::Fault::ignore_storage_offset)) && !argument.written) {
          face = faults::without_offset(face);
        }
        value = std::move(face);
      }
    } else if (argument.kind == Kind::tensors && value.isTensorList()) {
      c10::List<at::Tensor> faces;
      const c10::List<at::Tensor> tensors = value.toTensorList();
      faces.reserve(tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        const at::Tensor tensor = tensors.get(i);
        faces.push_back(needs_face(tensor, argument) ? faces_.host(tensor, argument.written) : tensor);
      }
      value = std::move(faces);
    } else if (argument.kind == Kind::tensors && value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> faces;
      const auto tensors = value.toOptionalTensorList();
      faces.reserve(tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        std::optional<at::Tensor> tensor = tensors.get(i);
        if (tensor.has_value() && needs_face(*tensor, argument)) {
          tensor = faces_.host(*tensor, argument.written);
        }
        faces.push_back(std::move(tensor));
      }
      value = std::move(faces);
    }
  }
  for (const Argument& argument : plan_.arguments) {
    IValue& value = stack_[base_ + argument.position];
    if (argument.kind != Kind::device || !value.isDevice()) {
      continue;
    }
    const c10::Device device = value.toDevice();
    stays_on_host_ = device.is_cpu();
    if (device.is_privateuseone()) {
      // What it makes like a tensor may be asked for on another core.
      core_ = checked_core(device.index());
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
    refuse_stray();
  }
}

bool Call::is_taken_to_host() const {
  return faults::argument(faults::Fault::silent_cpu) == static_cast<int64_t>(faults::Silent::operators) &&
      (plan_.name == "aten::mm" || plan_.name == "aten::addmm");
}

bool Call::needs_face(const at::Tensor& tensor, const Argument& argument) {
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

void Call::refuse_stray() const {
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, ",
      neuron_device(core_), " and ", *stray_, "! (when calling ", plan_.name, ")");
}

void Call::to_device() {
  faces_.sync(core_);
  if (C10_UNLIKELY(stays_on_host_)) {
    return;
  }
  for (size_t i = stack_.size() - plan_.return_count; i < stack_.size(); ++i) {
    IValue& value = stack_[i];
    if (value.isTensor()) {
      value = faces_.device(value.toTensor(), core_);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> outputs;
      const c10::List<at::Tensor> tensors = value.toTensorList();
      outputs.reserve(tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        outputs.push_back(faces_.device(tensors.get(i), core_));
      }
      value = std::move(outputs);
    }
  }
}

}  // namespace softneuron
