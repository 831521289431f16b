// What the Python side of softneuron calls.
#include "autocast.h"
#include "cores.h"
#include "faults.h"
#include "faulty_call.h"
#include "generator.h"
#include "kernels.h"
#include "memory.h"
#include "neff.h"
#include "tracking.h"
#include "plan.h"
#include "process_group.h"

#include <pybind11/chrono.h>
#include <torch/extension.h>

namespace py = pybind11;
using namespace softneuron;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The C++ core of softneuron.";

  m.def("install", [] {
    install_allocators();
    register_operators();
    choose_autocast_dtype();
  });
  m.def("configure_cores", &configure_cores, py::arg("count"), py::arg("default_core"));
  m.def("configure_failed", &configure_failed, py::arg("message"));
  m.def("set_core_limit", &set_core_limit, py::arg("core"), py::arg("bytes"));
  m.def("set_poison", &set_poison, py::arg("on"));

  m.def("cores_used", &cores_used);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("use_cores", &use_cores);
  m.def("configuration_failure", &configuration_failure);
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
  m.def("live_blocks", [](int core) {
    std::vector<std::pair<uintptr_t, int64_t>> blocks;
    for (const Block& block : live_blocks(checked_core(core))) {
      blocks.emplace_back(block.address, block.bytes);
    }
    return blocks;
  });
  m.def(
      "set_describer",
      [](py::function describe) {
        // Never freed: a core may be out of memory while the interpreter ends.
        auto* function = new py::function(std::move(describe));
        set_describer([function](int core, const std::vector<Block>& biggest) -> std::string {
          if (!Py_IsInitialized()) {
            return "";
          }
          const py::gil_scoped_acquire gil;
          std::vector<std::pair<uintptr_t, int64_t>> blocks;
          for (const Block& block : biggest) {
            blocks.emplace_back(block.address, block.bytes);
          }
          return (*function)(core, blocks).cast<std::string>();
        });
      },
      py::arg("describe"));
  m.def("reset_core_peak", [](int core) { reset_core_peak(checked_core(core)); });
  m.def("reset_core_totals", [](int core) { reset_core_totals(checked_core(core)); });

  m.def("default_generator", [](int core) { return default_generator(core); });

  m.def("executed_operators", &executed_operators);
  m.def("clear_executed_operators", &clear_executed_operators);
  m.def(
      "start_tracking",
      [](py::function first_seen) {
        // Called from threads that run operators, which do not hold the GIL.
        auto* held = new py::function(std::move(first_seen));
        std::shared_ptr<py::function> call(held, [](py::function* function) {
          const py::gil_scoped_acquire gil;
          delete function;
        });
        tracking::start([call](const std::string& operator_and_shapes) {
          const py::gil_scoped_acquire gil;
          (*call)(operator_and_shapes);
        });
      },
      py::arg("first_seen"));
  m.def("stop_tracking", &tracking::stop, py::call_guard<py::gil_scoped_release>());
  m.def("traffic", [] {
    const tracking::Traffic crossed = tracking::traffic();
    py::dict result;
    result["to_core_copies"] = crossed.to_core_copies;
    result["to_core_bytes"] = crossed.to_core_bytes;
    result["to_host_copies"] = crossed.to_host_copies;
    result["to_host_bytes"] = crossed.to_host_bytes;
    return result;
  });
  m.def(
      "enable_fault",
      [](const std::string& name, int64_t argument) {
        faults::forget_position();
        faults::enable(name, argument);
      },
      py::arg("name"), py::arg("argument"));
  m.def("disable_faults", &faults::disable_all);
  m.def("faults_fired", &faults::fired);
  m.def("operators_on_host", &faults::operators_on_host);
  m.def("wrong_this_time", &faults::wrong_this_time, py::call_guard<py::gil_scoped_release>());

  py::class_<Neff>(m, "Neff")
      .def(py::init<const std::string&>(), py::arg("path"), py::call_guard<py::gil_scoped_release>())
      .def(
          "run", &Neff::run, py::arg("inputs"), py::arg("core"), py::arg("on_device"), py::arg("draws_random"),
          py::arg("written"), py::call_guard<py::gil_scoped_release>());

  using GroupOptions = ProcessGroupNeuron::GroupOptions;
  py::class_<GroupOptions, c10::intrusive_ptr<GroupOptions>, c10d::Backend::Options>(m, "ProcessGroupNeuronOptions")
      .def("__deepcopy__", [](const GroupOptions& self, const py::dict&) {
        return c10::make_intrusive<GroupOptions>(self);
      });
  py::class_<ProcessGroupNeuron, c10::intrusive_ptr<ProcessGroupNeuron>, c10d::Backend>(m, "ProcessGroupNeuron")
      .def(
          py::init([](c10::intrusive_ptr<c10d::Backend> carrier, c10::intrusive_ptr<c10d::Store> store,
                      std::chrono::milliseconds timeout,
                      const std::vector<std::tuple<int, std::string, int64_t>>& peers) {
            std::vector<Peer> known;
            for (const auto& [global_rank, host, process] : peers) {
              known.push_back({global_rank, host, process});
            }
            auto roll = std::make_shared<RollCall>(std::move(store), carrier->getRank(), std::move(known));
            return c10::make_intrusive<ProcessGroupNeuron>(std::move(carrier), std::move(roll), timeout);
          }),
          py::arg("carrier"), py::arg("store"), py::arg("timeout"), py::arg("peers"),
          py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("options", &ProcessGroupNeuron::options);
}
