// torch.profiler reads device activity through Kineto, which hands out the
// correlation number of the operator that is running.
#define USE_KINETO
#define FMT_HEADER_ONLY
#include "profiling.h"

#include "cores.h"

#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

namespace softneuron::profiling {
namespace {

using libkineto::ActivityType;

struct Record {
  Kind kind;
  std::string name;
  int core;
  int64_t start;
  int64_t end;
  uint64_t correlation;
};

std::atomic<bool> active{false};
std::mutex mutex;
std::vector<Record> records;
thread_local std::vector<uint64_t> correlations;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    const std::lock_guard<std::mutex> lock(mutex);
    records.clear();
    active = true;
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    active = false;
    const std::lock_guard<std::mutex> lock(mutex);
    records_.swap(records);
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override {
    return {};
  }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) -> const libkineto::ITraceActivity* { return nullptr; }, 0, 0);
  }
  void processTrace(
      libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t, int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(
        records_.empty() ? 0 : records_.front().start, records_.empty() ? 0 : records_.back().end, "neuron");
    buffer_->gpuOpCount = static_cast<int>(records_.size());
    for (const Record& record : records_) {
      buffer_->emplace_activity(
          buffer_->span, record.kind == Kind::kernel ? ActivityType::CONCURRENT_KERNEL : ActivityType::GPU_MEMCPY,
          record.name);
      libkineto::GenericTraceActivity& activity = *buffer_->activities.back();
      activity.startTime = record.start;
      activity.endTime = record.end;
      activity.device = record.core;
      activity.resource = 0;
      activity.id = static_cast<int32_t>(record.correlation);
      activity.linked = linked(activity.id);
      activity.flow.id = static_cast<uint32_t>(record.correlation);
      activity.flow.type = libkineto::kLinkAsyncCpuGpu;
      activity.flow.start = false;
      activity.addMetadata("correlation", record.correlation);
      logger.handleActivity(activity);
    }
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return nullptr;
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> rows;
    for (int core = 0; core < core_count(); ++core) {
      rows.push_back({0, libkineto::kExceedMaxPid + core, core, "neuron:" + std::to_string(core)});
    }
    return rows;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }
  void pushCorrelationId(uint64_t id) override {
    correlations.push_back(id);
  }
  void popCorrelationId() override {
    if (!correlations.empty()) {
      correlations.pop_back();
    }
  }

 private:
  std::vector<Record> records_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class NeuronProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "neuron";
    return name;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> activities{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY};
    return activities;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    if (wanted.count(ActivityType::CONCURRENT_KERNEL) == 0) {
      return nullptr;
    }
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted, const libkineto::Config& config) override {
    return configure(wanted, config);
  }
};

REGISTER_PRIVATEUSE1_PROFILER(NeuronProfiler);

}  // namespace

bool on() noexcept {
  return active.load(std::memory_order_relaxed);
}

int64_t Span::now() {
  return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

namespace {

// `neuron::mm` for the kernel of `aten::mm`: a table of a profile puts both in
// one column.
std::string name_of_kernel(const std::string& name) {
  static const std::string aten = "aten::";
  return name.rfind(aten, 0) == 0 ? "neuron::" + name.substr(aten.size()) : name;
}

}  // namespace

void Span::end() noexcept {
  const int64_t end = now();
  const uint64_t correlation = correlations.empty() ? 0 : correlations.back();
  const std::lock_guard<std::mutex> lock(mutex);
  if (active) {
    records.push_back({kind_, name_of_kernel(name_), core_, start_, end, correlation});
  }
}

}  // namespace softneuron::profiling
