// What the Python side of softneuron calls.
#include "cores.h"
#include "faults.h"
#include "generator.h"
#include "kernels.h"
#include "memory.h"
#include "neff.h"
#include "plan.h"

#include <torch/extension.h>

namespace py = pybind11;
using namespace softneuron;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The C++ core of softneuron.";

  m.def("install", [] {
    install_allocators();
    register_operators();
  });
  m.def("configure_cores", &configure_cores, py::arg("count"), py::arg("default_core"));
  m.def("configure_failed", &configure_failed, py::arg("message"));
  m.def("set_core_limit", &set_core_limit, py::arg("core"), py::arg("bytes"));
  m.def("set_poison", &set_poison, py::arg("on"));

  m.def("core_count", &core_count);
  m.def("current_core", &current_core);
  m.def("exchange_core", &exchange_core, py::arg("core"));
  m.def("checked_core", &checked_core, py::arg("index"));

  m.def("core_memory", [](int core) {
    const CoreMemory memory = core_memory(checked_core(core));
    py::dict result;
    result["limit"] = memory.limit;
    result["allocated"] = memory.allocated;
    result["peak"] = memory.peak;
    result["allocated_total"] = memory.allocated_total;
    result["freed_total"] = memory.freed_total;
    result["blocks"] = memory.blocks;
    result["blocks_peak"] = memory.blocks_peak;
    result["blocks_total"] = memory.blocks_total;
    result["out_of_memory"] = memory.out_of_memory;
    return result;
  });
  m.def("reset_core_peak", [](int core) { reset_core_peak(checked_core(core)); });
  m.def("reset_core_totals", [](int core) { reset_core_totals(checked_core(core)); });

  m.def("default_generator", [](int core) { return default_generator(core); });

  m.def("executed_operators", &executed_operators);
  m.def("clear_executed_operators", &clear_executed_operators);
  m.def("enable_fault", &faults::enable, py::arg("name"), py::arg("argument"));

  py::class_<Neff>(m, "Neff")
      .def(py::init<const std::string&>(), py::arg("path"), py::call_guard<py::gil_scoped_release>())
      .def(
          "run", &Neff::run, py::arg("inputs"), py::arg("core"), py::arg("on_device"), py::arg("draws_random"),
          py::call_guard<py::gil_scoped_release>());
}
