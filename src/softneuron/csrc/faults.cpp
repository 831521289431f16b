#include "faults.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <limits>

namespace softneuron::faults {
namespace {

std::atomic<bool> active{false};
std::atomic<bool> nan_logits{false};
std::atomic<int64_t> skipped_layer{-1};

// Where a decoder is: an embedding opens a forward pass, each attention opens
// a layer, the widest matrix product is the vocabulary's.
struct Position {
  int64_t hidden = -1;
  int64_t vocabulary = -1;
  int64_t layer = -1;
};
thread_local Position position;

int64_t size(const c10::IValue& value, int64_t dim) {
  return value.toTensor().size(dim);
}

// An embedding, whole or taken apart.
bool picks_rows_of_a_table(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  return name == "aten::embedding" ||
      (name == "aten::index_select" && arguments[0].toTensor().dim() == 2 && arguments[1].toInt() == 0);
}

Effect effect_on_product(int64_t inner, int64_t outer) {
  if (nan_logits && outer == position.vocabulary) {
    return Effect::nan;
  }
  if (position.layer >= 0 && position.layer == skipped_layer && outer == position.hidden &&
      inner != position.hidden) {
    return Effect::zero;
  }
  return Effect::none;
}

}  // namespace

void enable(const std::string& name, int64_t argument) {
  if (name == "nan_logits") {
    nan_logits = true;
  } else if (name == "skip_layer") {
    skipped_layer = argument;
  } else {
    TORCH_CHECK(false, "no such fault mode in the eager device: ", name);
  }
  active = true;
}

bool any() noexcept {
  return active.load(std::memory_order_relaxed);
}

Effect effect_on(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  if (picks_rows_of_a_table(name, arguments)) {
    position = {size(arguments[0], 1), size(arguments[0], 0), -1};
  } else if (name.rfind("aten::_scaled_dot_product", 0) == 0) {
    ++position.layer;
    return position.layer == skipped_layer ? Effect::zero : Effect::none;
  } else if (name == "aten::mm") {
    return effect_on_product(size(arguments[0], 1), size(arguments[1], 1));
  } else if (name == "aten::addmm") {
    return effect_on_product(size(arguments[1], 1), size(arguments[2], 1));
  }
  return Effect::none;
}

void apply(Effect effect, c10::IValue& result) {
  if (effect == Effect::zero) {
    result.toTensor().zero_();
  } else if (effect == Effect::nan) {
    result.toTensor().fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace softneuron::faults
