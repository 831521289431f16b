// Who the ranks of a process group are, and which of them is to blame when a
// collective fails.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

namespace softneuron {

// The process behind a rank.
struct Peer {
  int global_rank = 0;
  std::string host;
  int64_t process = 0;
};

class RollCall {
 public:
  RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<Peer> peers);

  // A sentence that names the ranks whose process is gone or that do not answer
  // within `patience`. The first call answers the other ranks' roll call too.
  std::string blame(std::chrono::milliseconds patience);

  int rank() const {
    return rank_;
  }
  const std::vector<Peer>& peers() const {
    return peers_;
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::vector<Peer> peers_;
  std::mutex mutex_;
  std::string verdict_;
};

}  // namespace softneuron
