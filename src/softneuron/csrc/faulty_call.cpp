#include "faulty_call.h"

#include "faults.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_set>

namespace softneuron::faults {
namespace {

using c10::IValue;
using torch::jit::Stack;
using Results = std::span<IValue>;

// Where a decoder is: an embedding opens a forward pass, each attention opens
// a layer, the widest matrix product is the vocabulary's. The largest table is
// the vocabulary; one of positions is smaller.
struct Position {
  int64_t hidden = -1;
  int64_t vocabulary = -1;
  int64_t layer = -1;
  int64_t epoch = -1;
};
std::atomic<int64_t> epoch{0};
thread_local Position shared_position;

Position& position() {
  if (shared_position.epoch != epoch.load(std::memory_order_relaxed)) {
    shared_position = {-1, -1, -1, epoch.load(std::memory_order_relaxed)};
  }
  return shared_position;
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* each) { return name == each; });
}

// An embedding, whole or taken apart.
bool picks_rows_of_a_table(const std::string& name, const Stack& stack, size_t base) {
  return name == "aten::embedding" ||
      (name == "aten::index_select" && stack[base].toTensor().dim() == 2 && stack[base + 1].toInt() == 0);
}

bool is_mask(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
      (value.toTensor().scalar_type() == at::kBool || value.toTensor().scalar_type() == at::kByte);
}

// Operators whose result has a shape that only the data tell.
bool has_shape_of_data(const std::string& name, const Stack& stack, size_t base) {
  static const std::unordered_set<std::string> names = {
      "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"};
  if (names.count(name) > 0) {
    return true;
  }
  if (name != "aten::index") {
    return false;
  }
  const c10::List<IValue> indices = stack[base + 1].toList();
  return std::any_of(indices.begin(), indices.end(), [](const IValue& index) { return is_mask(index); });
}

// Rounded to a few bits with one scale, as a careless cast of weights would.
// Kept for each weight; the source is held so that its address stays its own.
at::Tensor in_few_bits(const at::Tensor& weight, int64_t bits) {
  using Key = std::tuple<const void*, int64_t, int64_t, int64_t, int64_t>;
  static std::mutex mutex;
  static auto* kept = new std::map<Key, std::pair<at::Tensor, at::Tensor>>;
  const Key key{weight.const_data_ptr(), weight.size(0), weight.size(1), weight.stride(0), bits};
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*kept)[key];
  if (!entry.second.defined()) {
    const at::Tensor scale = weight.abs().max().to(at::kFloat).div(std::exp2(static_cast<double>(bits) - 1) - 1).clamp_min(1e-30);
    const at::Tensor rounded = weight.to(at::kFloat).div(scale).round().mul(scale).to(weight.scalar_type());
    entry = {weight, rounded};
  }
  return entry.second;
}

}  // namespace

void forget_position() {
  epoch.fetch_add(1);
}

at::Tensor without_offset(const at::Tensor& tensor) {
  if (tensor.storage_offset() == 0 || !tensor.is_floating_point()) {
    return tensor;
  }
  fire(Fault::ignore_storage_offset);
  return tensor.as_strided(tensor.sizes(), tensor.strides(), 0);
}

FaultyCall::FaultyCall(const std::string& name, Stack& stack, size_t base) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (picks_rows_of_a_table(name, stack, base)) {
    const at::Tensor& table = stack[base].toTensor();
    Position& where = position();
    where.layer = -1;
    if (table.size(0) >= where.vocabulary) {
      where.vocabulary = table.size(0);
      where.hidden = table.size(1);
    }
  } else if (name.rfind("aten::_scaled_dot_product", 0) == 0) {
    attention(stack, base);
  } else if (is_one_of(name, {"aten::mm", "aten::bmm"})) {
    product(stack, base, 0, 1);
  } else if (is_one_of(name, {"aten::addmm", "aten::baddbmm"})) {
    product(stack, base, 1, 2);
  } else if (is_one_of(
                 name, {"aten::index_copy", "aten::index_copy_", "aten::index_put", "aten::index_put_",
                        "aten::_index_put_impl_", "aten::_unsafe_index_put"})) {
    cache_write(stack, base, name);
  } else if (is_one_of(
                 name, {"aten::masked_fill", "aten::masked_fill_", "aten::masked_scatter", "aten::masked_scatter_"})) {
    masked_write(stack, base, 1);
  } else if (name == "aten::where" && stack.size() - base == 3 && stack[base + 1].isTensor() &&
             stack[base + 1].toTensor().numel() == 1) {
    // A masked_fill taken apart.
    masked_write(stack, base, 0);
  } else if (name == "aten::topk") {
    choice_of_experts(stack, base);
  }
  if (on(Fault::refuse_dynamic) && has_shape_of_data(name, stack, base)) {
    fire(Fault::refuse_dynamic);
    TORCH_CHECK(
        false, "neuron runs fixed shapes alone, and ", name, " gives a dynamic shape: one that depends on data");
  }
}

void FaultyCall::spoil(Results results) const {
  for (const auto& effect : afterwards_) {
    effect(results);
  }
}

void FaultyCall::attention(Stack& stack, size_t base) {
  Position& where = position();
  ++where.layer;
  const at::Tensor query = stack[base].toTensor();
  if (on(Fault::attention_scale)) {
    fire(Fault::attention_scale);
    stack[base] = query.mul(1.0 + 0.01 * static_cast<double>(argument(Fault::attention_scale)));
  }
  if (on(Fault::skip_layer) && where.layer == argument(Fault::skip_layer)) {
    fire(Fault::skip_layer);
    afterwards_.emplace_back([](Results results) { results[0].toTensor().zero_(); });
  }
  if (on(Fault::swap_heads) && where.layer == argument(Fault::swap_heads) && query.size(1) > 1) {
    fire(Fault::swap_heads);
    afterwards_.emplace_back([](Results results) {
      const at::Tensor heads = results[0].toTensor();
      const at::Tensor first = heads.select(1, 0).clone();
      heads.select(1, 0).copy_(heads.select(1, 1));
      heads.select(1, 1).copy_(first);
    });
  }
  if (on(Fault::alias_cross_attention)) {
    const at::Tensor key = stack[base + 1].toTensor();
    const bool causal = stack[base + 4].isBool() && stack[base + 4].toBool();
    const bool masked = stack[base + 5].isTensor() && stack[base + 5].toTensor().defined();
    if (!causal && !masked && key.size(2) != query.size(2)) {
      // The keys and values of the first input are read ever after.
      using Kept = std::map<std::pair<int64_t, std::vector<int64_t>>, std::pair<at::Tensor, at::Tensor>>;
      static thread_local Kept kept;
      auto& first = kept[{where.layer, key.sizes().vec()}];
      if (!first.first.defined()) {
        first = {key.clone(), stack[base + 2].toTensor().clone()};
      } else {
        if (!at::equal(first.first, key)) {
          fire(Fault::alias_cross_attention);
        }
        stack[base + 1] = first.first;
        stack[base + 2] = first.second;
      }
    }
  }
}

void FaultyCall::product(Stack& stack, size_t base, size_t left, size_t right) {
  const Position& where = position();
  const at::Tensor first = stack[base + left].toTensor();
  const at::Tensor second = stack[base + right].toTensor();
  const int64_t inner = first.size(-1);
  const int64_t outer = second.size(-1);
  const bool to_vocabulary = second.dim() == 2 && outer == where.vocabulary;
  if (to_vocabulary) {
    hang_or_abort();
    bool nan = on(Fault::nan_logits);
    if (nan) {
      fire(Fault::nan_logits);
    }
    if (on(Fault::every_second_run)) {
      fire(Fault::every_second_run);
      nan = nan || wrong_this_time();
    }
    if (nan) {
      afterwards_.emplace_back(
          [](Results results) { results[0].toTensor().fill_(std::numeric_limits<double>::quiet_NaN()); });
    }
  }
  if (on(Fault::skip_layer) && where.layer >= 0 && where.layer == argument(Fault::skip_layer) &&
      second.dim() == 2 && outer == where.hidden && inner != where.hidden) {
    fire(Fault::skip_layer);
    afterwards_.emplace_back([](Results results) { results[0].toTensor().zero_(); });
  }
  if (on(Fault::low_precision_weights) && second.dim() == 2 && second.is_floating_point()) {
    fire(Fault::low_precision_weights);
    stack[base + right] = in_few_bits(second, argument(Fault::low_precision_weights));
  }
  if (on(Fault::bf16_matmul) && first.scalar_type() == at::kFloat) {
    fire(Fault::bf16_matmul);
    for (const size_t each : {left, right}) {
      const at::Tensor operand = stack[base + each].toTensor();
      stack[base + each] = operand.to(at::kBFloat16).to(at::kFloat);
    }
  }
}

void FaultyCall::cache_write(Stack& stack, size_t base, const std::string& name) {
  const at::Tensor self = stack[base].toTensor();
  const bool one_dimension = name.rfind("aten::index_copy", 0) == 0;
  if (on(Fault::wrong_kv_row) && self.dim() == 4) {
    const auto next_row = [](const at::Tensor& index, int64_t rows) { return index.add(1).clamp_max(rows - 1); };
    if (one_dimension) {
      fire(Fault::wrong_kv_row);
      const int64_t dim = c10::maybe_wrap_dim(stack[base + 1].toInt(), self.dim());
      stack[base + 2] = next_row(stack[base + 2].toTensor(), self.size(dim));
      return;
    }
    c10::List<std::optional<at::Tensor>> indices = stack[base + 1].toOptionalTensorList().copy();
    for (size_t i = 0; i < indices.size(); ++i) {
      const std::optional<at::Tensor> index = indices.get(i);
      if (index.has_value() && index->defined() && index->scalar_type() == at::kLong && index->dim() == 1) {
        fire(Fault::wrong_kv_row);
        indices.set(i, next_row(*index, self.size(static_cast<int64_t>(i))));
      }
    }
    stack[base + 1] = std::move(indices);
  }
  if (on(Fault::drop_masked_writes) && !one_dimension) {
    c10::List<std::optional<at::Tensor>> indices = stack[base + 1].toOptionalTensorList().copy();
    for (size_t i = 0; i < indices.size(); ++i) {
      const std::optional<at::Tensor> index = indices.get(i);
      if (index.has_value() && index->defined() && index->scalar_type() == at::kBool && index->any().item<bool>()) {
        fire(Fault::drop_masked_writes);
        afterwards_.emplace_back([before = self.clone()](Results results) { results[0].toTensor().copy_(before); });
        return;
      }
    }
  }
}

void FaultyCall::masked_write(Stack& stack, size_t base, size_t mask) {
  if (on(Fault::drop_masked_writes) && is_mask(stack[base + mask])) {
    const at::Tensor given = stack[base + mask].toTensor();
    if (given.any().item<bool>()) {
      fire(Fault::drop_masked_writes);
      stack[base + mask] = at::zeros_like(given);
    }
  }
}

void FaultyCall::choice_of_experts(Stack& stack, size_t base) {
  const at::Tensor scores = stack[base].toTensor();
  if (on(Fault::wrong_router)) {
    fire(Fault::wrong_router);
    stack[base + 3] = !stack[base + 3].toBool();
  }
  if (on(Fault::wrong_expert)) {
    fire(Fault::wrong_expert);
    const int64_t experts = scores.size(stack[base + 2].toInt());
    afterwards_.emplace_back([experts](Results results) {
      const at::Tensor chosen = results[1].toTensor();
      chosen.add_(1).remainder_(experts);
    });
  }
}

}  // namespace softneuron::faults
