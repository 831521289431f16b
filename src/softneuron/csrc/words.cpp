#include "words.h"

#include <string>
#include <utility>

namespace softneuron {
namespace {

constexpr std::pair<const char*, const char*> kWords[] = {
    {"arguments from the 'CPU' backend", "arguments from the 'neuron' backend"},
    {"arguments from the 'SparseCPU' backend", "arguments from the 'Sparseneuron' backend"},
    {"arguments from the 'SparseCsrCPU' backend", "arguments from the 'SparseCsrneuron' backend"},
    {"arguments from the 'QuantizedCPU' backend", "arguments from the 'Quantizedneuron' backend"},
    {"arguments from the 'NestedTensorCPU' backend", "arguments from the 'NestedTensorneuron' backend"},
    {"for backend CPU", "for backend neuron"},
    {"_cpu\" not implemented for", "_neuron\" not implemented for"},
    {"_cpu_\" not implemented for", "_neuron_\" not implemented for"},
    {"on CPU", "on neuron"},
    {"on the CPU", "on neuron"},
    {"on cpu", "on neuron"},
    {"for CPU", "for neuron"},
    {"found at least two devices, cpu and", "found at least two devices, neuron and"},
};

std::string in_neuron_words(std::string text) {
  for (const auto& [cpu, neuron] : kWords) {
    const std::string from = cpu;
    const std::string to = neuron;
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

template <typename Type>
void throw_if(const c10::Error& error, const std::string& text) {
  if (dynamic_cast<const Type*>(&error) != nullptr) {
    throw Type(text, error.backtrace(), error.caller());
  }
}

}  // namespace

void throw_in_neuron_words(const c10::Error& error) {
  const std::string text = in_neuron_words(error.msg());
  if (text == error.msg()) {
    throw;  // the one being handled, untouched
  }
  throw_if<c10::NotImplementedError>(error, text);
  throw_if<c10::IndexError>(error, text);
  throw_if<c10::ValueError>(error, text);
  throw_if<c10::TypeError>(error, text);
  throw_if<c10::LinAlgError>(error, text);
  throw_if<c10::OutOfMemoryError>(error, text);
  throw c10::Error(text, error.backtrace(), error.caller());
}

}  // namespace softneuron
