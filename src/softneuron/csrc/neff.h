// A compiled graph: an AOTInductor package that runs on a core's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::inductor {
class AOTIModelPackageLoader;
}

namespace softneuron {

class Neff {
 public:
  // Loads the package at `path`; throws when it is damaged.
  explicit Neff(const std::string& path);
  ~Neff();

  // Runs the graph on `core`. Inputs on other devices than the core's and the
  // host's are refused. `on_device[i]` says whether output i is a neuron tensor. With
  // `draws_random` the graph continues the core's random sequence. `written[i]` says that it changes input i.
  std::vector<at::Tensor> run(
      std::vector<at::Tensor> inputs, int core, const std::vector<bool>& on_device, bool draws_random,
      const std::vector<bool>& written);

 private:
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
  std::string name_;  // of its module in the cache
};

}  // namespace softneuron
