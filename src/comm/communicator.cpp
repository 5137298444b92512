#include "comm/communicator.h"

#define USE_C10D_GLOO

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "accelerator/device.h"

namespace mnist_train::comm {

namespace {

/// Creates Gloo's backend, for CPU and CUDA tensors. It listens on the interface named by
/// GLOO_SOCKET_IFNAME; without it, on loopback if there is one host, else on the interface that the
/// host name resolves to. Gloo's headers are needed only here; its code is in libtorch_cpu.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int world_size, bool one_host,
                                                    double timeout_s) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(to_milliseconds(timeout_s));
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface != nullptr ? Gloo::createDeviceForInterface(interface)
                             : one_host           ? Gloo::createDeviceForHostname("127.0.0.1")
                                                  : Gloo::createDefaultDevice());
  return c10::make_intrusive<Gloo>(store, rank, world_size, std::move(options));
}

/// Waits for a collective. A backend may return no work for a collective on the caller's stream.
void wait_for(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}

/// The store accepts up to 8 MiB per request, and handles one request at a time.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20U;
constexpr char kMoreFollows = '+';
constexpr char kLastPiece = '.';

std::string piece_key(const std::string& key, std::size_t number) {
  return key + "/" + std::to_string(number);
}

/// Writes a string of any size to the store. Each piece's first character says if more follow.
void set_text(c10d::Store& store, const std::string& key, std::string_view text) {
  for (std::size_t number = 0;; ++number) {
    const std::string_view piece = text.substr(0, kPieceBytes);
    text.remove_prefix(piece.size());
    store.set(piece_key(key, number),
              std::string(1, text.empty() ? kLastPiece : kMoreFollows).append(piece));
    if (text.empty()) return;
  }
}

/// Waits for all pieces of a string and joins them; the only reader also deletes them.
std::string get_text(c10d::Store& store, const std::string& key, bool is_only_reader) {
  std::string text;
  for (std::size_t number = 0;; ++number) {
    const std::string piece = store.get_to_str(piece_key(key, number));
    if (is_only_reader) store.deleteKey(piece_key(key, number));
    text.append(piece, 1);
    if (piece.front() == kLastPiece) return text;
  }
}

constexpr double kGrace_s = 1;  // for ranks that time out at the same time

/// A rank that timed out closes its connections, so its neighbours may lose theirs before they time
/// out. Every failing rank therefore reports to the store; the others count as silent only if some
/// rank waited for the full timeout. With two ranks, one that lost its connection knows which rank
/// is gone and returns immediately.
std::vector<int> find_silent_ranks(c10d::Store& store, int this_rank, int world_size,
                                   bool timed_out) {
  const std::string timeout = "timed out";
  const auto key = [](int rank) { return "failed/" + std::to_string(rank); };
  store.set(key(this_rank), timed_out ? timeout : "lost a connection");
  if (!timed_out && world_size == 2) return {};
  const double begin_s = monotonic_seconds();
  std::vector<int> silent;
  for (int rank = 0; rank < world_size; ++rank) {
    bool responded = store.check({key(rank)});
    while (!responded && monotonic_seconds() - begin_s < kGrace_s) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      responded = store.check({key(rank)});
    }
    if (!responded) silent.push_back(rank);
    timed_out = timed_out || (responded && store.get_to_str(key(rank)) == timeout);
  }
  return timed_out ? silent : std::vector<int>{};
}

void set_default(const char* name, const char* value) { ::setenv(name, value, /*overwrite=*/0); }

}  // namespace

Communicator::Communicator(const launch::WorkerIdentity& identity, const RendezvousResult& joined,
                           BackendKind backend, double timeout_s)
    : rank_(identity.rank),
      world_size_(identity.world_size),
      backend_(backend),
      one_host_(joined.one_host),
      timeout_s_(timeout_s),
      store_(joined.store) {
  if (alone()) return;
  using BackendType = c10d::ProcessGroup::BackendType;
  translate_failures("process group setup", [&] {
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store_, rank_, world_size_);
    if (backend == BackendKind::kNccl) {
      const auto make = reinterpret_cast<MakeNcclBackend>(
          accelerator::cuda_module_function("mnist_train_make_nccl_backend"));
      group_->setBackend(c10::DeviceType::CUDA, BackendType::NCCL,
                         make(store_, rank_, world_size_, timeout_s));
      group_->setDefaultBackend(BackendType::NCCL);
    } else {
      const auto gloo = make_gloo_backend(store_, rank_, world_size_, one_host_, timeout_s);
      group_->setBackend(c10::DeviceType::CPU, BackendType::GLOO, gloo);
      group_->setBackend(c10::DeviceType::CUDA, BackendType::GLOO, gloo);
      group_->setDefaultBackend(BackendType::GLOO);
    }
  });
  store_->setTimeout(to_milliseconds(timeout_s));
}

void Communicator::all_reduce_sum(at::Tensor& tensor) const {
  if (alone()) return;
  const launch::WaitScope waiting(status_, launch::Wait::kAllReduce);
  translate_failures("all-reduce", [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.asyncOp = false;  // on the caller's stream, so that graphs capture it
    wait_for(group_->allreduce(tensors, options));
  });
}

void Communicator::all_gather(const at::Tensor& local, at::Tensor& gathered) const {
  const launch::WaitScope waiting(status_, launch::Wait::kAllReduce);
  translate_failures("all-gather", [&] {
    at::Tensor input = local;
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    wait_for(group_->_allgather_base(gathered, input, options));
  });
}

double Communicator::sum_over_ranks(double number) const {
  if (alone()) return number;
  const at::Device device = reduces_on_device() ? at::kCUDA : at::kCPU;
  at::Tensor sum = at::full({1}, number, at::TensorOptions(at::kDouble).device(device));
  all_reduce_sum(sum);
  return accelerator::to_host(sum).item<double>();
}

void Communicator::broadcast(at::Tensor& tensor) const {
  if (alone()) return;
  const launch::WaitScope waiting(status_, launch::Wait::kBroadcast);
  translate_failures("broadcast", [&] {
    std::vector<at::Tensor> tensors{tensor.view(-1).view(at::kByte)};  // Gloo lacks some types
    wait_for(group_->broadcast(tensors));
  });
}

at::Tensor Communicator::receive_from_next(const at::Tensor& local, std::int64_t count) const {
  if (alone()) return local;
  const launch::WaitScope waiting(status_, launch::Wait::kSampleExchange);
  const auto ranks = static_cast<std::size_t>(world_size_);
  const auto rank = static_cast<std::size_t>(rank_);
  std::vector<std::int64_t> output_splits(ranks);
  std::vector<std::int64_t> input_splits(ranks);
  output_splits[(rank + 1) % ranks] = count;
  input_splits[(rank + ranks - 1) % ranks] = local.size(0);
  std::vector<std::int64_t> sizes = local.sizes().vec();
  sizes.front() = count;
  at::Tensor received = at::empty(sizes, local.options());
  at::Tensor input = local.contiguous();
  translate_failures("exchange of samples", [&] {
    wait_for(group_->alltoall_base(received, input, output_splits, input_splits));
  });
  return received;
}

std::string Communicator::next_key(const char* what, int rank) {
  return std::string(what) + "/" + std::to_string(exchanges_) + "/" + std::to_string(rank);
}

std::string Communicator::broadcast_text(const std::string& text) {
  if (alone()) return text;
  const launch::WaitScope waiting(status_, launch::Wait::kTextExchange);
  return translate_failures("exchange of text", [&] {
    ++exchanges_;
    const std::string key = next_key("text", 0);
    if (rank_ != 0) return get_text(*store_, key, /*is_only_reader=*/world_size_ == 2);
    set_text(*store_, key, text);
    return text;
  });
}

void Communicator::disable_timeouts() {
  if (alone()) return;
  constexpr double kNoTimeout_s = 1e6;
  group_->setTimeout(to_milliseconds(kNoTimeout_s));
  store_->setTimeout(to_milliseconds(kNoTimeout_s));
}

void Communicator::require_store() {
  if (alone()) return;
  const double now_s = monotonic_seconds();
  if (now_s - checked_store_s_ < timeout_s_ / 4) return;
  checked_store_s_ = now_s;
  const std::string unused = "checked/" + std::to_string(rank_);
  translate_failures("a store check", [&] { (void)store_->check({unused}); });
}

std::vector<int> Communicator::silent_ranks(bool timed_out) noexcept try {
  if (alone()) return {};
  // The deadline is needed because the process that serves the store may be suspended too. After a
  // timeout, an old request may still occupy the connection, so a clone of the store is used.
  Deadline deadline(kGrace_s + 0.5);
  const auto ask = [store = store_, rank = rank_, world_size = world_size_, timed_out] {
    return find_silent_ranks(timed_out ? *store->clone() : *store, rank, world_size, timed_out);
  };
  return finish_before(deadline, ask).value_or(std::vector<int>{});
} catch (const std::exception&) {
  return {};
}

void Communicator::leave() {
  if (alone()) return;
  const launch::WaitScope waiting(status_, launch::Wait::kTextExchange);
  translate_failures("shutdown", [&] {
    ++exchanges_;
    if (rank_ != 0) {
      store_->set(next_key("done", rank_), "");
      store_->wait({next_key("done", 0)});
      store_->set(next_key("left", rank_), "");
    }
  });
  if (rank_ != 0) return;
  // Rank 0 may serve the store, so it leaves last. It writes the results, so the others should be
  // waiting already; one that does not respond has died, but the results are complete.
  bool is_complete = true;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      if (!std::exchange(is_complete, false)) return;
      spdlog::warn("another rank died before the end of this command: {}", short_message(error));
    }
  };
  const auto wait_for_others = [&](const char* what) {
    std::vector<std::string> keys;
    for (int rank = 1; rank < world_size_; ++rank) keys.push_back(next_key(what, rank));
    store_->wait(keys, std::chrono::seconds(is_complete ? 10 : 1));
  };
  attempt([&] { wait_for_others("done"); });
  attempt([&] {
    store_->set(next_key("done", 0), "");  // releases the others, even if one has died
    wait_for_others("left");
  });
}

std::vector<std::string> Communicator::gather_text(const std::string& text) {
  if (alone()) return {text};
  const launch::WaitScope waiting(status_, launch::Wait::kTextExchange);
  return translate_failures("exchange of text", [&] {
    ++exchanges_;
    if (rank_ != 0) {
      set_text(*store_, next_key("text", rank_), text);
      return std::vector<std::string>{};
    }
    std::vector<std::string> texts{text};
    for (int rank = 1; rank < world_size_; ++rank) {
      texts.push_back(get_text(*store_, next_key("text", rank), /*is_only_reader=*/true));
    }
    return texts;
  });
}

void set_nccl_defaults(bool one_host, const std::filesystem::path& dump_folder) {
  // Long enough to write the flight recorder's contents, but short, because a rank waits four times
  // this long before it exits.
  set_default("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000");
  set_default("TORCH_FR_BUFFER_SIZE", "2000");
  set_default("TORCH_NCCL_DUMP_ON_TIMEOUT", "1");
  if (!dump_folder.empty()) {
    const std::string begin = (dump_folder / "nccl-rank-").string();  // the rank is appended
    set_default("TORCH_FR_DUMP_TEMP_FILE", begin.c_str());
  }
  if (one_host) set_default("NCCL_SOCKET_IFNAME", "lo");
}

}  // namespace mnist_train::comm
