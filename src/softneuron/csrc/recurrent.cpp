// LSTM, GRU and RNN. PyTorch writes them as composites that look at the
// device's type and give every accelerator fused cells; the CPU has none, and
// its own path (oneDNN's layers among them) rounds differently. So these few
// operators run as a piece of CPU autograd graph on the core's memory: two
// differentiable steps that copy nothing lead into it and out again.
#include "alias.h"
#include "cores.h"
#include "generator.h"
#include "memory.h"
#include "plan.h"
#include "profiling.h"
#include "words.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <unordered_set>
#include <vector>

namespace softneuron {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor enter(const at::Tensor& device);
at::Tensor leave(const at::Tensor& host, int core);

struct Enter : torch::autograd::Function<Enter> {
  static Variable forward(AutogradContext* context, const Variable& device) {
    context->saved_data["core"] = static_cast<int64_t>(device.device().index());
    const at::AutoDispatchBelowADInplaceOrView guard;
    return host_alias(device);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {leave(gradients[0], static_cast<int>(context->saved_data["core"].toInt()))};
  }
};

struct Leave : torch::autograd::Function<Leave> {
  static Variable forward(AutogradContext*, const Variable& host, int64_t core) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return device_tensor(
        device_storage(
            c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()),
            static_cast<int>(core)),
        host);
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0].defined() ? enter(gradients[0]) : gradients[0], Variable()};
  }
};

at::Tensor enter(const at::Tensor& device) {
  return Enter::apply(device);
}

at::Tensor leave(const at::Tensor& host, int core) {
  return host.defined() ? Leave::apply(host, static_cast<int64_t>(core)) : host;
}

// The nodes of the graph run in the engine's threads, outside of any call that
// we see: each is told to charge the core.
struct OpenCharge final : torch::autograd::FunctionPreHook {
  explicit OpenCharge(int number) : core(number) {}
  variable_list operator()(const variable_list& gradients) override {
    open_node_charge(core);
    return gradients;
  }
  int core;
};

struct CloseCharge final : torch::autograd::FunctionPostHook {
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    close_node_charge();
    return outputs;
  }
};

void charge_backward(const at::Tensor& output, int core, std::unordered_set<torch::autograd::Node*>& seen) {
  std::vector<torch::autograd::Node*> left{output.grad_fn().get()};
  while (!left.empty()) {
    torch::autograd::Node* node = left.back();
    left.pop_back();
    const bool leads_out = dynamic_cast<torch::autograd::CppNode<Enter>*>(node) != nullptr;
    if (node == nullptr || leads_out || !seen.insert(node).second) {
      continue;
    }
    node->add_pre_hook(std::make_unique<OpenCharge>(core));
    node->add_post_hook(std::make_unique<CloseCharge>());
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      left.push_back(edge.function.get());
    }
  }
}

void run_as_cpu_graph(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Plan& plan = plan_for(op);
  plan.calls.fetch_add(1, std::memory_order_relaxed);
  const size_t base = stack->size() - plan.argument_count;
  int core = -1;
  const auto to_host = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_privateuseone()) {
      return tensor;
    }
    const int found = tensor.device().index();
    TORCH_CHECK(
        core < 0 || core == found, "Expected all tensors to be on the same device, but found at least two devices, ",
        neuron_device(core), " and ", neuron_device(found), "! (when calling ", plan.name, ")");
    core = found;
    return enter(tensor);
  };
  for (const Argument& argument : plan.arguments) {
    c10::IValue& value = (*stack)[base + argument.position];
    if (value.isTensor()) {
      // The lengths of a packed sequence stay on the host, on every device.
      const bool lengths = op.schema().arguments()[argument.position].name() == "batch_sizes";
      const at::Tensor& tensor = value.toTensor();
      TORCH_CHECK(
          lengths || !tensor.defined() || tensor.device().is_privateuseone(),
          "Input and parameter tensors are not at the same device, found ", tensor.device(), " among neuron tensors");
      value = lengths ? tensor : to_host(tensor);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> faces;
      const c10::List<at::Tensor> tensors = value.toTensorList();
      for (size_t i = 0; i < tensors.size(); ++i) {
        const at::Tensor tensor = tensors.get(i);
        TORCH_CHECK(
            !tensor.defined() || tensor.device().is_privateuseone(),
            "Input and parameter tensors are not at the same device, found parameter tensor at ", tensor.device(),
            " among neuron tensors");
        faces.push_back(to_host(tensor));
      }
      value = std::move(faces);
    }
  }
  core = core < 0 ? current_core() : core;
  try {
    use_cores();
    const ChargeScope charge(core);
    const profiling::Span span(profiling::Kind::kernel, plan.name, core);
    const DefaultGeneratorScope generator(core);
    op.callBoxed(stack);
  } catch (const c10::Error& error) {
    throw_in_neuron_words(error);
  }
  std::unordered_set<torch::autograd::Node*> seen;
  for (size_t i = stack->size() - plan.return_count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      charge_backward(value.toTensor(), core, seen);
      value = leave(value.toTensor(), core);
    }
  }
}

const char* const kOperators[] = {
    "lstm.input", "lstm.data",   "gru.input",    "gru.data",      "rnn_tanh.input", "rnn_tanh.data",
    "rnn_relu.input", "rnn_relu.data", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
};

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  for (const char* name : kOperators) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_as_cpu_graph>());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : kOperators) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_as_cpu_graph>());
  }
}

}  // namespace
}  // namespace softneuron
