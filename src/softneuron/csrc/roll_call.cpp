#include "roll_call.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <thread>

namespace softneuron {
namespace {

std::string this_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Whether a process of this host has ended; one that its parent has not
// collected yet has ended too.
bool has_ended(int64_t process) {
  if (::kill(static_cast<pid_t>(process), 0) != 0) {
    return errno == ESRCH;
  }
  std::ifstream status("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(status, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() &&
      (text[name_end + 2] == 'Z' || text[name_end + 2] == 'X');
}

std::string list(const std::vector<const Peer*>& peers) {
  std::string text = peers.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < peers.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(peers[i]->global_rank) + " (process " +
        std::to_string(peers[i]->process) + ")";
  }
  return text;
}

}  // namespace

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<Peer> peers)
    : store_(std::move(store)), rank_(rank), peers_(std::move(peers)) {}

std::string RollCall::blame(std::chrono::milliseconds patience) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!verdict_.empty()) {
    return verdict_;
  }
  const std::string here = this_host();
  const auto key = [](int rank) { return "softneuron/failed/" + std::to_string(rank); };
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::vector<const Peer*> silent;
  try {
    store_->set(key(rank_), "1");
    while (true) {
      std::vector<const Peer*> ended;
      silent.clear();
      for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
        const Peer& peer = peers_[rank];
        if (rank == rank_) {
          continue;
        }
        if (peer.host == here && has_ended(peer.process)) {
          ended.push_back(&peer);
        } else if (!store_->check({key(rank)})) {
          silent.push_back(&peer);
        }
      }
      if (!ended.empty()) {
        return verdict_ = list(ended) + (ended.size() == 1 ? " has ended" : " have ended");
      }
      if (silent.empty()) {
        return verdict_ = "every rank is alive and reports a failure of its own";
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        return verdict_ = list(silent) + (silent.size() == 1 ? " does" : " do") + " not answer";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  } catch (const std::exception&) {
    return verdict_ = "the store that the ranks met at is gone, and the process that held it with it";
  }
}

}  // namespace softneuron
