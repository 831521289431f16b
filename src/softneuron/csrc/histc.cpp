// Histograms of integers. The CPU has none, but programs that look at the
// device's name ask every accelerator for them (Transformers' experts do).
#include "alias.h"
#include "faces.h"
#include "memory.h"
#include "words.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

namespace softneuron {
namespace {

// Element x falls into bin (x - low) * bins / (high - low), in whole numbers,
// as on CUDA; the highest value belongs to the last bin.
at::Tensor count_integers(const at::Tensor& values, int64_t bins, int64_t low, int64_t high) {
  TORCH_CHECK(bins > 0, "bins must be > 0");
  if (low == high && values.numel() > 0) {
    low = values.min().item<int64_t>();
    high = values.max().item<int64_t>();
  }
  if (low == high) {
    --low;
    ++high;
  }
  TORCH_CHECK(low < high, "max must be larger than min");
  const at::Tensor flat = values.contiguous();
  at::Tensor counts = at::zeros({bins}, values.options());
  AT_DISPATCH_INTEGRAL_TYPES(values.scalar_type(), "histc_neuron", [&] {
    const scalar_t* in = flat.const_data_ptr<scalar_t>();
    scalar_t* out = counts.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < flat.numel(); ++i) {
      const auto value = static_cast<int64_t>(in[i]);
      if (value >= low && value <= high) {
        const auto offset = static_cast<__int128>(value) - low;
        const auto bin = static_cast<int64_t>(offset * bins / (static_cast<__int128>(high) - low));
        ++out[std::min(bin, bins - 1)];
      }
    }
  });
  return counts;
}

at::Tensor on_host(const at::Tensor& values, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  return at::isIntegralType(values.scalar_type(), /*includeBool=*/false)
      ? count_integers(values, bins, low.to<int64_t>(), high.to<int64_t>())
      : at::histc(values, bins, low, high);
}

at::Tensor histc_on_core(const at::Tensor& self, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto core = self.device().index();
  Faces faces;
  try {
    const ChargeScope charge(core);
    return faces.device(on_host(faces.host(self, false), bins, low, high), core);
  } catch (const c10::Error& error) {
    throw_in_neuron_words(error);
  }
}

at::Tensor& histc_out_on_core(
    const at::Tensor& self, int64_t bins, const at::Scalar& low, const at::Scalar& high, at::Tensor& out) {
  const at::Tensor counts = histc_on_core(self, bins, low, high);
  TORCH_CHECK(
      out.scalar_type() == counts.scalar_type(), "torch.histogram: input tensor and hist tensor should have the same "
      "dtype, but got input ", counts.scalar_type(), " and hist ", out.scalar_type());
  out.resize_(counts.sizes());
  return out.copy_(counts);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("histc", &histc_on_core);
  m.impl("histc.out", &histc_out_on_core);
}

}  // namespace
}  // namespace softneuron
