// The process group `neuron`: collectives between cores. The bytes travel
// through PyTorch's Gloo group, on CPU aliases of the neuron tensors.
#pragma once

#include "roll_call.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace softneuron {

class ProcessGroupNeuron final : public c10d::Backend {
 public:
  // What PyTorch copies from a group to the groups split off from it.
  struct GroupOptions final : public Options {
    explicit GroupOptions(std::chrono::milliseconds timeout) : Options("neuron", timeout) {}
  };

  // `carrier` moves the bytes; it spans the same ranks. `roll` knows who they are.
  ProcessGroupNeuron(
      c10::intrusive_ptr<c10d::Backend> carrier, std::shared_ptr<RollCall> roll, std::chrono::milliseconds timeout);

  const std::string getBackendName() const override {
    return "neuron";
  }
  bool supportsSplitting() const override {
    return true;
  }
  bool supportsCoalescing() const override {
    return true;
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return options_;
  }
  const c10::intrusive_ptr<GroupOptions>& options() const {
    return options_;
  }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    return sequence_;
  }
  c10d::ErrorType getError() override {
    return c10d::ErrorType::SUCCESS;
  }
  void abort() override {
    carrier_->abort();
  }
  void shutdown() override {
    carrier_->shutdown();
  }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& options) override;

  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(
      std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(
      std::vector<at::Tensor>& outputs,
      std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs,
      std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  class Staging;

  c10::intrusive_ptr<c10d::Work> watch(
      c10d::OpType operation, const char* name, Staging& staging, c10::intrusive_ptr<c10d::Work> carried);
  c10::intrusive_ptr<c10d::Work> remember(c10::intrusive_ptr<c10d::Work> work);
  c10::intrusive_ptr<c10d::Work> join(
      c10d::OpType operation, std::vector<c10::intrusive_ptr<c10d::Work>> works, const std::vector<at::Tensor>& outputs);
  c10::intrusive_ptr<c10d::Work> reduce_parts(
      const char* name,
      at::Tensor& output,
      const at::Tensor& parts,
      int64_t first,
      const c10d::ReduceScatterOptions& options);
  c10::intrusive_ptr<c10d::Work> receive(std::vector<at::Tensor>& tensors, std::optional<int> peer, int tag);

  c10::intrusive_ptr<c10d::Backend> carrier_;
  std::shared_ptr<RollCall> roll_;
  c10::intrusive_ptr<GroupOptions> options_;
  std::atomic<uint64_t> sequence_{0};
  int splits_ = 0;
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<c10d::Work>> coalesced_;
};

}  // namespace softneuron
