// What torch.profiler shows of the cores: a row of kernels and copies for each.
#pragma once

#include <cstdint>
#include <string>

namespace softneuron::profiling {

enum class Kind { kernel, copy };

bool on() noexcept;

// A piece of a core's work, from construction to destruction, while a profiler
// is on; otherwise nothing. `name` must outlive it.
class Span {
 public:
  Span(Kind kind, const std::string& name, int core) : name_(name), kind_(kind), core_(core) {
    if (on()) {
      start_ = now();
    }
  }
  ~Span() {
    if (start_ != 0) {
      end();
    }
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  static int64_t now();
  void end() noexcept;

  const std::string& name_;
  Kind kind_;
  int core_;
  int64_t start_ = 0;
};

}  // namespace softneuron::profiling
