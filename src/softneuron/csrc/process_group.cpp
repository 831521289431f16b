#include "process_group.h"

#include "alias.h"
#include "cores.h"
#include "faults.h"
#include "memory.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <limits>
#include <numeric>
#include <thread>

namespace softneuron {
namespace {

using c10::intrusive_ptr;
using c10d::OpType;
using c10d::ReduceOp;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;

intrusive_ptr<c10::ivalue::Future> future_for(const Tensors& outputs) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& output : outputs) {
    if (output.device().is_privateuseone() &&
        std::find(devices.begin(), devices.end(), output.device()) == devices.end()) {
      devices.push_back(output.device());
    }
  }
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
}

// The bytes of a contiguous CPU tensor as a flat uint8 tensor (no copy): Gloo
// moves bytes of any dtype, but knows few dtypes by name.
at::Tensor flat_bytes(const at::Tensor& tensor) {
  auto bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>());
  const auto count = static_cast<int64_t>(tensor.nbytes());
  const auto offset = static_cast<int64_t>(tensor.storage_offset() * tensor.itemsize());
  const int64_t step = 1;
  bytes.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(count), c10::IntArrayRef(step), offset);
  return bytes;
}

// The same tensors without the Python objects that the caller's have. Work that
// ends in a thread of its own lets its tensors go there, and to let go of a
// Python object takes the interpreter's lock: while the interpreter shuts down,
// a thread that asks for the lock is ended instead, and the process with it.
Tensors without_python(const Tensors& tensors) {
  Tensors bare;
  bare.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    const auto* impl = tensor.unsafeGetTensorImpl();
    bare.emplace_back(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/false));
  }
  return bare;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor plain(const at::Tensor& tensor) {
  return is_plain(tensor) ? tensor : tensor.resolve_conj().resolve_neg().contiguous();
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// A tensor on its way through a reduction: in a dtype that Gloo can add up,
// with the operator that gives the wanted result there.
class Summand {
 public:
  // With `own`, the bytes of `source` stay as they are.
  Summand(const at::Tensor& source, const ReduceOp& op, int ranks, bool own) : ranks_(ranks), dtype_(source.scalar_type()) {
    const ReduceOp::RedOpType wanted = op;
    average_ = wanted == ReduceOp::AVG;
    op_ = average_ || wanted == ReduceOp::PREMUL_SUM ? ReduceOp::SUM : wanted;
    const bool bitwise = wanted == ReduceOp::BAND || wanted == ReduceOp::BOR || wanted == ReduceOp::BXOR;
    TORCH_CHECK(
        !bitwise || c10::isIntegralType(dtype_, /*includeBool=*/true), "a bitwise reduction takes whole numbers, not ",
        dtype_);
    TORCH_CHECK(
        !c10::isComplexType(dtype_) || op_ == ReduceOp::SUM, "complex numbers can be summed and averaged, nothing else");
    TORCH_CHECK(!average_ || dtype_ != at::kBool, "ReduceOp.AVG of booleans means nothing; use SUM or MAX");

    tensor_ = plain(source);
    switch (dtype_) {
      case at::kFloat:
      case at::kDouble:
      case at::kHalf:
      case at::kBFloat16:
      case at::kChar:
      case at::kByte:
      case at::kInt:
      case at::kLong:
        break;
      case at::kBool:
        // As in NCCL: a sum of booleans is "any", a product is "all".
        op_ = op_ == ReduceOp::SUM ? ReduceOp::MAX : op_ == ReduceOp::PRODUCT ? ReduceOp::MIN : op_;
        tensor_ = tensor_.view(at::kByte);
        break;
      case at::kComplexFloat:
      case at::kComplexDouble:
        tensor_ = at::view_as_real(tensor_);
        break;
      case at::kShort:
      case at::kUInt16:
        tensor_ = tensor_.to(at::kInt);
        break;
      case at::kUInt32:
        tensor_ = tensor_.to(at::kLong);
        break;
      case at::kUInt64:
        tensor_ = tensor_.view(at::kLong);
        // Shifted so that signed order is unsigned order.
        shifted_ = op_ == ReduceOp::MIN || op_ == ReduceOp::MAX;
        if (shifted_) {
          tensor_ = tensor_.bitwise_xor(std::numeric_limits<int64_t>::min());
        }
        break;
      case at::kFloat8_e4m3fn:
      case at::kFloat8_e5m2:
      case at::kFloat8_e4m3fnuz:
      case at::kFloat8_e5m2fnuz:
        tensor_ = tensor_.to(at::kFloat);
        break;
      default:
        TORCH_CHECK(false, "the process group neuron cannot reduce ", dtype_);
    }
    if (wanted == ReduceOp::PREMUL_SUM) {
      const auto* scale = static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      tensor_ = scale->tensor_factor.defined()
          ? tensor_.mul(scale->tensor_factor.is_privateuseone() ? host_alias(scale->tensor_factor) : scale->tensor_factor)
          : tensor_.mul(scale->double_factor);
    }
    if (own && same_bytes(tensor_, source)) {
      tensor_ = tensor_.clone();
    }
  }

  ReduceOp op() const {
    return op_;
  }
  const at::Tensor& tensor() const {
    return tensor_;
  }

  // Writes the result into `target`; elements from `first` on along dimension 0
  // when `target` takes only a part.
  void deliver(at::Tensor target, int64_t first = -1) {
    at::Tensor value = tensor_;
    if (first >= 0) {
      value = value.narrow(0, first, target.numel());
    }
    if (average_) {
      if (c10::isIntegralType(value.scalar_type(), /*includeBool=*/false)) {
        value.div_(ranks_, "trunc");
      } else {
        value.div_(ranks_);
      }
    }
    if (shifted_) {
      value.bitwise_xor_(std::numeric_limits<int64_t>::min());
    }
    if (same_bytes(value, target)) {
      return;
    }
    if (c10::isComplexType(dtype_)) {
      value = at::view_as_complex(value);
    } else if (dtype_ == at::kUInt64) {
      value = value.view(at::kUInt64);
    }
    target.copy_(value.reshape(target.sizes()));
  }

 private:
  int ranks_;
  at::ScalarType dtype_;
  ReduceOp::RedOpType op_ = ReduceOp::SUM;
  bool average_ = false;
  bool shifted_ = false;
  at::Tensor tensor_;
};

// What a failed collective says: which one, whose fault, and what Gloo saw.
struct Report {
  std::shared_ptr<RollCall> roll;
  const char* name;
  uint64_t number;
  std::chrono::milliseconds patience;

  std::exception_ptr wrap(const std::exception_ptr& cause) const {
    std::string seen;
    try {
      std::rethrow_exception(cause);
    } catch (const c10::Error& error) {
      seen = error.what_without_backtrace();
    } catch (const std::exception& error) {
      seen = error.what();
    } catch (...) {
      seen = "unknown error";
    }
    const int rank = roll->peers()[roll->rank()].global_rank;
    const std::string blame = roll->blame(patience);
    try {
      TORCH_CHECK_WITH(
          DistBackendError, false, name, " (number ", number, " of its process group) failed on rank ", rank, ": ",
          blame, ". Gloo, which moves the bytes, says: ", seen);
    } catch (...) {
      return std::current_exception();
    }
  }
};

using Afterwards = std::vector<std::function<void()>>;

void run_all(Afterwards& steps, int core) {
  const ChargeScope charge(core);
  const c10::InferenceMode no_autograd(false);
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (const auto& step : steps) {
    step();
  }
}

// A collective that ends in one of Gloo's threads.
class CarriedWork final : public Work {
 public:
  CarriedWork(
      int rank,
      OpType operation,
      const char* title,
      Report report,
      int core,
      const Tensors& outputs,
      Afterwards afterwards)
      : Work(rank, operation, title),
        report_(std::move(report)),
        core_(core),
        outputs_(without_python(outputs)),
        afterwards_(std::move(afterwards)),
        future_(future_for(outputs_)) {}

  // Ends when `carried` does; at once when there is nothing to carry.
  void follow(const intrusive_ptr<Work>& carried) {
    if (!carried) {
      settle(nullptr);
      return;
    }
    carried->getFuture()->addCallback(
        [self = intrusive_ptr<CarriedWork>::reclaim_copy(this)](c10::ivalue::Future& future) {
          self->settle(future.hasError() ? self->report_.wrap(future.exception_ptr()) : nullptr);
        });
  }

  Tensors result() override {
    return outputs_;
  }
  intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }
  uint64_t getSequencenumber() const override {
    return report_.number;
  }

 private:
  void settle(std::exception_ptr error) {
    if (error == nullptr) {
      try {
        run_all(afterwards_, core_);
      } catch (...) {
        error = std::current_exception();
      }
    }
    afterwards_.clear();
    finish(error);
    if (error != nullptr) {
      future_->setError(error);
    } else {
      future_->markCompleted(c10::IValue(outputs_));
    }
  }

  Report report_;
  int core_;
  Tensors outputs_;
  Afterwards afterwards_;
  intrusive_ptr<c10::ivalue::Future> future_;
};

// Work that ends when somebody waits for it; a future needs a thread that does.
class WaitedWork : public Work {
 public:
  WaitedWork(int rank, OpType operation, const char* title, const Tensors& outputs)
      : Work(rank, operation, title), outputs_(without_python(outputs)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const std::lock_guard<std::mutex> lock(waiting_);
    if (!Work::isCompleted()) {
      std::exception_ptr error;
      try {
        await(timeout);
      } catch (...) {
        error = std::current_exception();
      }
      finish(error);
    }
    if (!isSuccess()) {
      std::rethrow_exception(exception());
    }
    return true;
  }
  Tensors result() override {
    return outputs_;
  }
  intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard<std::mutex> lock(asking_);
    if (!future_) {
      future_ = future_for(outputs_);
      std::thread([self = intrusive_ptr<WaitedWork>::reclaim_copy(this), future = future_] {
        try {
          self->wait(kNoTimeout);
        } catch (...) {
          future->setError(std::current_exception());
          return;
        }
        future->markCompleted(c10::IValue(self->outputs_));
      }).detach();
    }
    return future_;
  }

 protected:
  virtual void await(std::chrono::milliseconds timeout) = 0;

 private:
  Tensors outputs_;
  std::mutex waiting_;
  std::mutex asking_;
  intrusive_ptr<c10::ivalue::Future> future_;
};

// A send or a receive.
class PeerWork final : public WaitedWork {
 public:
  PeerWork(
      int rank, OpType operation, Report report, int core, const Tensors& outputs, Afterwards afterwards,
      intrusive_ptr<Work> carried)
      : WaitedWork(rank, operation, report.name, outputs),
        report_(std::move(report)),
        core_(core),
        afterwards_(std::move(afterwards)),
        carried_(std::move(carried)) {}

  int sourceRank() const override {
    return carried_->sourceRank();
  }
  uint64_t getSequencenumber() const override {
    return report_.number;
  }

 private:
  void await(std::chrono::milliseconds timeout) override {
    try {
      carried_->wait(timeout);
    } catch (...) {
      std::rethrow_exception(report_.wrap(std::current_exception()));
    }
    run_all(afterwards_, core_);
    afterwards_.clear();
  }

  Report report_;
  int core_;
  Afterwards afterwards_;
  intrusive_ptr<Work> carried_;
};

// Several collectives as one.
class JoinedWork final : public WaitedWork {
 public:
  JoinedWork(int rank, OpType operation, std::vector<intrusive_ptr<Work>> works, const Tensors& outputs)
      : WaitedWork(rank, operation, "neuron:joined", outputs), works_(std::move(works)) {}

  bool isCompleted() override {
    return WaitedWork::isCompleted() ||
        (std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); }) &&
         (wait(kNoTimeout), true));
  }

 private:
  void await(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) {
      work->wait(timeout);
    }
  }

  std::vector<intrusive_ptr<Work>> works_;
};

int64_t total(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

at::Tensor& only(Tensors& tensors, const char* name) {
  TORCH_CHECK_VALUE(tensors.size() == 1, name, " takes one tensor per rank, got ", tensors.size());
  return tensors[0];
}

std::chrono::milliseconds patience_of(std::chrono::milliseconds timeout) {
  return std::clamp(timeout / 4, std::chrono::milliseconds(1000), std::chrono::milliseconds(5000));
}

}  // namespace

// The tensors of one call as Gloo sees them, and what is left to do when the
// bytes have arrived.
class ProcessGroupNeuron::Staging {
 public:
  explicit Staging(const char* name) : name_(name) {}

  // The CPU side of `tensor`.
  at::Tensor host(const at::Tensor& tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        tensor.layout() == c10::kStrided, name_, " on the process group neuron takes dense tensors, not ",
        tensor.layout());
    if (tensor.is_cpu()) {
      return tensor.detach();
    }
    TORCH_CHECK(
        tensor.is_privateuseone(), name_, " on the process group neuron takes tensors on neuron or the CPU, not on ",
        tensor.device());
    const int core = tensor.device().index();
    TORCH_CHECK(
        core_ == kHost || core_ == core, "Expected all tensors to be on the same device, but found at least two devices, ",
        neuron_device(core_), " and ", tensor.device(), "! (when calling ", name_, ")");
    core_ = core;
    return host_alias(tensor);
  }

  // The bytes of an input.
  at::Tensor input(const at::Tensor& tensor) {
    const at::Tensor alias = host(tensor);
    const ChargeScope charge(core_);
    return flat_bytes(plain(alias));
  }

  // Where the bytes of an output go; with `keep` they start as what is there.
  at::Tensor output(const at::Tensor& tensor, bool keep = false) {
    const at::Tensor alias = host(tensor);
    if (is_plain(alias)) {
      return flat_bytes(alias);
    }
    const ChargeScope charge(core_);
    const at::Tensor contiguous = keep ? plain(alias).clone(at::MemoryFormat::Contiguous)
                                       : at::empty(alias.sizes(), alias.options());
    afterwards.emplace_back([alias, contiguous] { at::Tensor(alias).copy_(contiguous); });
    return flat_bytes(contiguous);
  }

  std::shared_ptr<Summand> summand(const at::Tensor& host, const ReduceOp& op, int ranks, bool own) const {
    const ChargeScope charge(core_);
    return std::make_shared<Summand>(host, op, ranks, own);
  }

  int core() const {
    return core_;
  }

  Tensors outputs;
  Afterwards afterwards;

 private:
  const char* name_;
  int core_ = kHost;
};

ProcessGroupNeuron::ProcessGroupNeuron(
    intrusive_ptr<c10d::Backend> carrier, std::shared_ptr<RollCall> roll, std::chrono::milliseconds timeout)
    : Backend(carrier->getRank(), carrier->getSize()),
      carrier_(std::move(carrier)),
      roll_(std::move(roll)),
      options_(c10::make_intrusive<GroupOptions>(timeout)) {
  init();
}

void ProcessGroupNeuron::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  carrier_->setTimeout(timeout);
}

intrusive_ptr<c10d::Backend> ProcessGroupNeuron::split(
    const intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks, const intrusive_ptr<Options>& options) {
  // PyTorch splits once for neuron and once for the CPU, at the same place in
  // the store: each split needs its own there.
  const auto place = c10::make_intrusive<c10d::PrefixStore>("neuron/" + std::to_string(++splits_), store);
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    return nullptr;
  }
  const auto carrier = carrier_->split(place, ranks, carrier_->getBackendOptions());
  std::vector<Peer> peers;
  for (const int rank : ranks) {
    peers.push_back(roll_->peers().at(rank));
  }
  auto roll = std::make_shared<RollCall>(place, static_cast<int>(mine - ranks.begin()), std::move(peers));
  auto group = c10::make_intrusive<ProcessGroupNeuron>(carrier, std::move(roll), options->timeout);
  group->options_->group_name = options->group_name;
  group->options_->global_ranks_in_group = options->global_ranks_in_group;
  group->setTimeout(options->timeout);
  return group;
}

intrusive_ptr<Work> ProcessGroupNeuron::watch(
    OpType operation, const char* name, Staging& staging, intrusive_ptr<Work> carried) {
  auto work = c10::make_intrusive<CarriedWork>(
      rank_, operation, name, Report{roll_, name, ++sequence_, patience_of(options_->timeout)},
      staging.core(), std::move(staging.outputs), std::move(staging.afterwards));
  work->follow(carried);
  return remember(work);
}

intrusive_ptr<Work> ProcessGroupNeuron::remember(intrusive_ptr<Work> work) {
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

intrusive_ptr<Work> ProcessGroupNeuron::join(
    OpType operation, std::vector<intrusive_ptr<Work>> works, const Tensors& outputs) {
  return c10::make_intrusive<JoinedWork>(rank_, operation, std::move(works), outputs);
}

void ProcessGroupNeuron::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}

intrusive_ptr<Work> ProcessGroupNeuron::endCoalescing() {
  coalescing_ = false;
  Tensors outputs;
  return join(OpType::COALESCED, std::exchange(coalesced_, {}), outputs);
}

intrusive_ptr<Work> ProcessGroupNeuron::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  static constexpr const char* kName = "neuron:broadcast";
  const at::AutoDispatchBelowADInplaceOrView guard;
  Staging staging(kName);
  const at::Tensor& tensor = only(tensors, kName);
  Tensors bytes{rank_ == options.rootRank ? staging.input(tensor) : staging.output(tensor)};
  staging.outputs = tensors;
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  return watch(
      OpType::BROADCAST, kName, staging, bytes[0].numel() > 0 ? carrier_->broadcast(bytes, options) : nullptr);
}

intrusive_ptr<Work> ProcessGroupNeuron::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  static constexpr const char* kName = "neuron:all_reduce";
  const at::AutoDispatchBelowADInplaceOrView guard;
  Staging staging(kName);
  const at::Tensor host = staging.host(only(tensors, kName));
  // The fault `garbled_text`: every rank keeps its own part of a sum.
  const bool lost = faults::on(faults::Fault::garbled_text) && host.is_floating_point();
  const auto summand = staging.summand(host, options.reduceOp, size_, /*own=*/lost);
  if (C10_UNLIKELY(lost)) {
    faults::fire(faults::Fault::garbled_text);
  } else {
    staging.afterwards.emplace_back([summand, host] { summand->deliver(host); });
  }
  staging.outputs = tensors;
  auto forwarded = options;
  forwarded.reduceOp = summand->op();
  Tensors wire{summand->tensor()};
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  return watch(
      OpType::ALLREDUCE, kName, staging, host.numel() > 0 ? carrier_->allreduce(wire, forwarded) : nullptr);
}

intrusive_ptr<Work> ProcessGroupNeuron::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        tensor.is_cpu(), "device neuron holds no sparse tensors; all_reduce them on the CPU");
  }
  return carrier_->allreduce_sparse(tensors, options);
}

intrusive_ptr<Work> ProcessGroupNeuron::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  std::vector<intrusive_ptr<Work>> works;
  for (const at::Tensor& tensor : tensors) {
    Tensors one{tensor};
    works.push_back(allreduce(one, options));
  }
  return join(OpType::ALLREDUCE_COALESCED, std::move(works), tensors);
}

intrusive_ptr<Work> ProcessGroupNeuron::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  static constexpr const char* kName = "neuron:reduce";
  const at::AutoDispatchBelowADInplaceOrView guard;
  Staging staging(kName);
  const at::Tensor host = staging.host(only(tensors, kName));
  // Gloo adds up in place on every rank; only the root's tensor may change.
  const bool root = rank_ == options.rootRank;
  const auto summand = staging.summand(host, options.reduceOp, size_, /*own=*/!root);
  if (root) {
    staging.afterwards.emplace_back([summand, host] { summand->deliver(host); });
  }
  staging.outputs = tensors;
  auto forwarded = options;
  forwarded.reduceOp = summand->op();
  Tensors wire{summand->tensor()};
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  return watch(OpType::REDUCE, kName, staging, host.numel() > 0 ? carrier_->reduce(wire, forwarded) : nullptr);
}

intrusive_ptr<Work> ProcessGroupNeuron::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  static constexpr const char* kName = "neuron:all_gather";
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor& input = only(inputs, kName);
  TORCH_CHECK_VALUE(
      outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_, kName, " takes a list of ", size_,
      " output tensors, one per rank");
  const bool even = std::all_of(outputs[0].begin(), outputs[0].end(), [&](const at::Tensor& output) {
    return output.numel() == input.numel();
  });
  for (const at::Tensor& output : outputs[0]) {
    TORCH_CHECK_VALUE(
        output.scalar_type() == input.scalar_type(), kName, " takes outputs of the input's dtype ",
        input.scalar_type(), ", got ", output.scalar_type());
  }
  if (!even) {
    // Every rank's part has its own size: each rank broadcasts its part.
    Staging staging(kName);
    outputs[0][rank_].copy_(input);
    std::vector<intrusive_ptr<Work>> works;
    for (int root = 0; root < size_; ++root) {
      c10d::BroadcastOptions part;
      part.rootRank = root;
      part.timeout = options.timeout;
      Tensors one{outputs[0][root]};
      works.push_back(broadcast(one, part));
    }
    return join(OpType::ALLGATHER, std::move(works), outputs[0]);
  }
  Staging staging(kName);
  Tensors bytes{staging.input(input)};
  std::vector<Tensors> parts(1);
  for (const at::Tensor& output : outputs[0]) {
    parts[0].push_back(staging.output(output));
  }
  staging.outputs = outputs[0];
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  return watch(
      OpType::ALLGATHER, kName, staging,
      input.numel() > 0 ? carrier_->allgather(parts, bytes, options) : nullptr);
}

intrusive_ptr<Work> ProcessGroupNeuron::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  static constexpr const char* kName = "neuron:all_gather_single";
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK_VALUE(
      output.scalar_type() == input.scalar_type(), kName, ": output and input differ in dtype: ",
      output.scalar_type(), " and ", input.scalar_type());
  TORCH_CHECK_VALUE(
      output.numel() == input.numel() * size_, kName, ": the output must hold ", size_, " times the input's ",
      input.numel(), " elements, but holds ", output.numel());
  Staging staging(kName);
  at::Tensor from = staging.input(input);
  at::Tensor to = staging.output(output);
  staging.outputs = {output};
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  return watch(
      OpType::_ALLGATHER_BASE, kName, staging,
      input.numel() > 0 ? carrier_->_allgather_base(to, from, options) : nullptr);
}

intrusive_ptr<Work> ProcessGroupNeuron::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  // `outputs` is one list per rank, each with one tensor per input.
  std::vector<intrusive_ptr<Work>> works;
  Tensors all;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> parts(1);
    for (const Tensors& of_rank : outputs) {
      parts[0].push_back(of_rank.at(i));
      all.push_back(of_rank.at(i));
    }
    Tensors one{inputs[i]};
    works.push_back(allgather(parts, one, options));
  }
  return join(OpType::ALLGATHER_COALESCED, std::move(works), all);
}

intrusive_ptr<Work> ProcessGroupNeuron::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "as many outputs as inputs are needed");
  std::vector<intrusive_ptr<Work>> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs[i], inputs[i], options));
  }
  return join(OpType::COALESCED, std::move(works), outputs);
}

intrusive_ptr<Work> ProcessGroupNeuron::gather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  static constexpr const char* kName = "neuron:gather";
  const at::AutoDispatchBelowADInplaceOrView guard;
  Staging staging(kName);
  Tensors bytes{staging.input(only(inputs, kName))};
  std::vector<Tensors> parts;
  if (rank_ == options.rootRank) {
    TORCH_CHECK_VALUE(
        outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_, kName, " takes a list of ", size_,
        " output tensors on its destination, one per rank");
    parts.emplace_back();
    for (const at::Tensor& output : outputs[0]) {
      parts[0].push_back(staging.output(output));
    }
    staging.outputs = outputs[0];
  }
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  return watch(
      OpType::GATHER, kName, staging, bytes[0].numel() > 0 ? carrier_->gather(parts, bytes, options) : nullptr);
}

intrusive_ptr<Work> ProcessGroupNeuron::scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  static constexpr const char* kName = "neuron:scatter";
  const at::AutoDispatchBelowADInplaceOrView guard;
  Staging staging(kName);
  Tensors bytes{staging.output(only(outputs, kName))};
  std::vector<Tensors> parts;
  if (rank_ == options.rootRank) {
    TORCH_CHECK_VALUE(
        inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_, kName, " takes a list of ", size_,
        " input tensors on its source, one per rank");
    parts.emplace_back();
    for (const at::Tensor& input : inputs[0]) {
      parts[0].push_back(staging.input(input));
    }
  }
  staging.outputs = outputs;
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  return watch(
      OpType::SCATTER, kName, staging, bytes[0].numel() > 0 ? carrier_->scatter(bytes, parts, options) : nullptr);
}

intrusive_ptr<Work> ProcessGroupNeuron::reduce_parts(
    const char* name,
    at::Tensor& output,
    const at::Tensor& parts,
    int64_t first,
    const c10d::ReduceScatterOptions& options) {
  Staging staging(name);
  const at::Tensor target = staging.host(output);
  const auto summand = staging.summand(parts, options.reduceOp, size_, /*own=*/true);
  staging.afterwards.emplace_back([summand, target, first] { summand->deliver(target, first); });
  staging.outputs = {output};
  c10d::AllreduceOptions forwarded;
  forwarded.reduceOp = summand->op();
  forwarded.timeout = options.timeout;
  Tensors wire{summand->tensor()};
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  return watch(
      OpType::REDUCE_SCATTER, name, staging, parts.numel() > 0 ? carrier_->allreduce(wire, forwarded) : nullptr);
}

intrusive_ptr<Work> ProcessGroupNeuron::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  static constexpr const char* kName = "neuron:reduce_scatter";
  const at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor& output = only(outputs, kName);
  TORCH_CHECK_VALUE(
      inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_, kName, " takes a list of ", size_,
      " input tensors, one per rank");
  TORCH_CHECK_VALUE(
      inputs[0][rank_].numel() == output.numel(), kName, ": the output has ", output.numel(),
      " elements, but input ", rank_, " has ", inputs[0][rank_].numel());
  Staging staging(kName);
  Tensors flat;
  int64_t first = 0;
  for (int rank = 0; rank < size_; ++rank) {
    flat.push_back(staging.host(inputs[0][rank]).reshape({-1}));
    first += rank < rank_ ? flat.back().numel() : 0;
  }
  staging.host(output);
  const ChargeScope charge(staging.core());
  return reduce_parts(kName, output, at::cat(flat), first, options);
}

intrusive_ptr<Work> ProcessGroupNeuron::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  static constexpr const char* kName = "neuron:reduce_scatter_single";
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK_VALUE(
      output.scalar_type() == input.scalar_type(), kName, ": output and input differ in dtype: ",
      output.scalar_type(), " and ", input.scalar_type());
  TORCH_CHECK_VALUE(
      input.numel() == output.numel() * size_, kName, ": the input must hold ", size_, " times the output's ",
      output.numel(), " elements, but holds ", input.numel());
  Staging staging(kName);
  const at::Tensor host = staging.host(input);
  staging.host(output);
  const ChargeScope charge(staging.core());
  return reduce_parts(kName, output, host.reshape({-1}), rank_ * output.numel(), options);
}

intrusive_ptr<Work> ProcessGroupNeuron::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "as many outputs as inputs are needed");
  std::vector<intrusive_ptr<Work>> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  }
  return join(OpType::REDUCE_SCATTER_TENSOR_COALESCED, std::move(works), outputs);
}

intrusive_ptr<Work> ProcessGroupNeuron::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  static constexpr const char* kName = "neuron:all_to_all_single";
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK_VALUE(
      output.scalar_type() == input.scalar_type(), kName, ": output and input differ in dtype: ",
      output.scalar_type(), " and ", input.scalar_type());
  const auto in_bytes = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits, const char* which) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    std::vector<int64_t> counts = splits;
    if (counts.empty()) {
      TORCH_CHECK_VALUE(
          rows % size_ == 0, kName, ": the ", which, "'s first dimension ", rows, " does not divide by ", size_,
          " ranks; say how to split it");
      counts.assign(size_, rows / size_);
    }
    TORCH_CHECK_VALUE(
        static_cast<int>(counts.size()) == size_ && total(counts) == rows, kName, ": the ", which, " splits must be ",
        size_, " numbers that add up to its first dimension ", rows);
    const int64_t row = rows == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / rows;
    for (int64_t& count : counts) {
      count *= row;
    }
    return counts;
  };
  std::vector<int64_t> to_counts = in_bytes(output, output_splits, "output");
  std::vector<int64_t> from_counts = in_bytes(input, input_splits, "input");
  Staging staging(kName);
  at::Tensor from = staging.input(input);
  at::Tensor to = staging.output(output);
  staging.outputs = {output};
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  return watch(
      OpType::ALLTOALL_BASE, kName, staging, carrier_->alltoall_base(to, from, to_counts, from_counts, options));
}

intrusive_ptr<Work> ProcessGroupNeuron::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  static constexpr const char* kName = "neuron:all_to_all";
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK_VALUE(
      static_cast<int>(outputs.size()) == size_ && static_cast<int>(inputs.size()) == size_, kName, " takes ", size_,
      " input and ", size_, " output tensors, one per rank");
  Staging staging(kName);
  Tensors from;
  std::vector<int64_t> from_counts;
  for (const at::Tensor& input : inputs) {
    from.push_back(staging.input(input));
    from_counts.push_back(from.back().numel());
  }
  std::vector<int64_t> to_counts;
  Tensors targets;
  for (const at::Tensor& output : outputs) {
    targets.push_back(staging.output(output));
    to_counts.push_back(targets.back().numel());
  }
  const ChargeScope charge(staging.core());
  const CarriedCharge carried(staging.core());
  at::Tensor sent = at::cat(from);
  at::Tensor received = at::empty({total(to_counts)}, at::kByte);
  // Before what `output` left to do: it copies from these bytes on.
  staging.afterwards.insert(staging.afterwards.begin(), [targets, received, to_counts] {
    int64_t first = 0;
    for (size_t i = 0; i < targets.size(); ++i) {
      at::Tensor(targets[i]).copy_(received.narrow(0, first, to_counts[i]));
      first += to_counts[i];
    }
  });
  staging.outputs = outputs;
  return watch(
      OpType::ALLTOALL, kName, staging, carrier_->alltoall_base(received, sent, to_counts, from_counts, options));
}

intrusive_ptr<Work> ProcessGroupNeuron::send(Tensors& tensors, int peer, int tag) {
  static constexpr const char* kName = "neuron:send";
  const at::AutoDispatchBelowADInplaceOrView guard;
  Staging staging(kName);
  Tensors bytes{staging.input(only(tensors, kName))};
  const CarriedCharge charge(staging.core());
  return remember(c10::make_intrusive<PeerWork>(
      rank_, OpType::SEND, Report{roll_, kName, ++sequence_, patience_of(options_->timeout)}, staging.core(), tensors,
      Afterwards{}, carrier_->send(bytes, peer, tag)));
}

intrusive_ptr<Work> ProcessGroupNeuron::receive(Tensors& tensors, std::optional<int> peer, int tag) {
  static constexpr const char* kName = "neuron:recv";
  const at::AutoDispatchBelowADInplaceOrView guard;
  Staging staging(kName);
  Tensors bytes{staging.output(only(tensors, kName))};
  const CarriedCharge charge(staging.core());
  auto carried = peer.has_value() ? carrier_->recv(bytes, *peer, tag) : carrier_->recvAnysource(bytes, tag);
  return remember(c10::make_intrusive<PeerWork>(
      rank_, peer.has_value() ? OpType::RECV : OpType::RECVANYSOURCE,
      Report{roll_, kName, ++sequence_, patience_of(options_->timeout)}, staging.core(), tensors,
      std::move(staging.afterwards),
      std::move(carried)));
}

intrusive_ptr<Work> ProcessGroupNeuron::recv(Tensors& tensors, int peer, int tag) {
  return receive(tensors, peer, tag);
}

intrusive_ptr<Work> ProcessGroupNeuron::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, std::nullopt, tag);
}

intrusive_ptr<Work> ProcessGroupNeuron::barrier(const c10d::BarrierOptions& options) {
  Staging staging("neuron:barrier");
  return watch(OpType::BARRIER, "neuron:barrier", staging, carrier_->barrier(options));
}

}  // namespace softneuron
