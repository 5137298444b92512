#include "comm/communicator.h"

#include <sys/socket.h>

#include <cstdio>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accelerator/device.h"
#include "base/system.h"
#include "launch/supervisor.h"
#include "support/error_of.h"
#include "support/gpu.h"
#include "support/ranks.h"
#include "support/scoped_environment.h"

namespace mnist_train::comm {
namespace {

using Catch::Matchers::ContainsSubstring;
using namespace testing;

TEST_CASE("each rank receives the next rank's tensor, whatever its number of rows") {
  const std::vector<std::int64_t> rows{2, 0, 3};
  for (const at::ScalarType type : {at::kByte, at::kFloat, at::kLong}) {
    for (const std::size_t ranks : {1, 2, 3}) {
      const auto received = results_of_ranks(static_cast<int>(ranks), [&](Communicator&
                                                                              communicator) {
        const auto rank = static_cast<std::size_t>(communicator.rank());
        const at::Tensor mine = at::full({rows[rank], 2, 2}, 10 * communicator.rank() + 1, type);
        return communicator.receive_from_next(mine, rows[(rank + 1) % ranks]);
      });
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const std::size_t next = (rank + 1) % ranks;
        CHECK(received[rank].equal(
            at::full({rows[next], 2, 2}, 10 * static_cast<std::int64_t>(next) + 1, type)));
      }
    }
  }
}

TEST_CASE("with one rank, collectives are no-ops") {
  Communicator communicator;
  CHECK(communicator.alone());
  CHECK(communicator.rank() == 0);
  CHECK(communicator.world_size() == 1);
  CHECK(communicator.process_group() == nullptr);
  at::Tensor tensor = at::arange(5, at::kFloat);
  communicator.all_reduce_sum(tensor);
  communicator.broadcast(tensor);
  CHECK(tensor.equal(at::arange(5, at::kFloat)));
  CHECK(communicator.broadcast_text("text") == "text");
  CHECK(communicator.gather_text("text") == std::vector<std::string>{"text"});
}

TEST_CASE("a broadcast sends rank 0's tensor, whatever its type") {
  for (const at::ScalarType type : {at::kBool, at::kShort, at::kBFloat16, at::kDouble}) {
    const auto received = results_of_ranks(2, [&](Communicator& communicator) {
      at::Tensor tensor = at::arange(2, 8).view({2, 3}).remainder(communicator.rank() + 3).to(type);
      communicator.broadcast(tensor);
      return tensor;
    });
    for (const at::Tensor& tensor : received) {
      CHECK(tensor.equal(at::arange(2, 8).view({2, 3}).remainder(3).to(type)));
    }
  }
}

TEST_CASE("all_reduce_sum adds over ranks") {
  for (const int world_size : {2, 3}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
      const auto results = results_of_ranks(world_size, [&](Communicator& communicator) {
        at::Tensor tensor = at::arange(1000, type) + communicator.rank();
        communicator.all_reduce_sum(tensor);
        return tensor;
      });
      const at::Tensor expected =
          at::arange(1000, type) * world_size + world_size * (world_size - 1) / 2;
      for (const at::Tensor& sum : results) CHECK(sum.equal(expected));
    }
  }
}

TEST_CASE("texts of any length can be exchanged, repeatedly") {
  const std::vector<std::string> texts{"",
                                       "one",
                                       std::string("\0\xff\n", 3),
                                       std::string(1 << 20, 'x'),
                                       "one",
                                       std::string(4 << 20, 'y'),  // exactly one chunk
                                       std::string(20 << 20, 'z') + "end"};
  const auto seen = results_of_ranks(3, [&](Communicator& communicator) {
    const std::string rank = std::to_string(communicator.rank());
    std::vector<std::pair<std::string, std::vector<std::string>>> exchanged;
    for (const std::string& text : texts) {
      const std::string mine = communicator.rank() == 0 ? text : "not rank 0's text";
      std::string broadcast = communicator.broadcast_text(mine);
      exchanged.emplace_back(std::move(broadcast), communicator.gather_text(rank + text));
    }
    return exchanged;
  });
  for (std::size_t i = 0; i < texts.size(); ++i) {  // CHECK would print the long texts
    const std::string& text = texts[i];
    for (const auto& rank : seen) CHECK((rank[i].first == text));
    CHECK((seen[0][i].second == std::vector<std::string>{"0" + text, "1" + text, "2" + text}));
    CHECK(seen[1][i].second.empty());
    CHECK(seen[2][i].second.empty());
  }
}

TEST_CASE("if a rank exits, the others fail as its victims") {
  Failure failure;
  on_connected_ranks(2, [&](Communicator& communicator) {
    at::Tensor tensor = at::ones({1000});
    communicator.all_reduce_sum(tensor);
    if (communicator.rank() == 1) {
      const Communicator gone = std::move(communicator);
      return;
    }
    failure = error_of([&] {
      for (int i = 0; i < 100; ++i) communicator.all_reduce_sum(tensor);
    });
  });
  CHECK(failure.is_peer_error);
  CHECK_THAT(failure, IsError(ExitCode::kDistributed, "lost another rank during all-reduce"));
  CHECK_THAT(failure.message, !ContainsSubstring("\n"));
}

TEST_CASE("waiting for a missing rank times out") {
  constexpr double kTimeout_s = 0.5;
  Failure failure;
  double waited_s = 0;
  on_connected_ranks(
      2,
      [&](Communicator& communicator) {
        if (communicator.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1200));
          return;
        }
        at::Tensor tensor = at::ones({10});
        const auto begin = std::chrono::steady_clock::now();
        failure = error_of([&] { communicator.all_reduce_sum(tensor); });
        waited_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      },
      kTimeout_s);
  CHECK(failure.is_peer_error);
  CHECK(waited_s > 0.25);
  CHECK(waited_s < 1.15);
}

TEST_CASE("Gloo sums tensors on a GPU", "[gpu]") {
  if (!have_gpu()) return;
  const auto results = results_of_ranks(2, [](Communicator& communicator) {
    accelerator::cuda_module().set_device(0);
    at::Tensor tensor = at::full({1000}, communicator.rank() + 1, at::kFloat).to(at::kCUDA);
    communicator.all_reduce_sum(tensor);
    communicator.broadcast(tensor);
    return tensor.cpu();
  });
  for (const at::Tensor& result : results) CHECK(result.equal(at::full({1000}, 3, at::kFloat)));
}

constexpr std::array kVariables{"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_FR_BUFFER_SIZE",
                                "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE",
                                "NCCL_SOCKET_IFNAME"};

/// Sets all `kVariables` to `value` until the result is destroyed.
std::vector<std::unique_ptr<ScopedEnvironment>> all_set_to(const char* value) {
  std::vector<std::unique_ptr<ScopedEnvironment>> scopes;
  for (const char* name : kVariables) {
    scopes.push_back(std::make_unique<ScopedEnvironment>(name, value));
  }
  return scopes;
}

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

TEST_CASE("NCCL uses loopback on one host, and dumps its last collectives if a folder is given") {
  const auto [one_host, folder, interface, file] =
      GENERATE(table<bool, const char*, const char*, const char*>(
          {{true, "/run/logs", "lo", "/run/logs/nccl-rank-"}, {false, "", "", ""}}));
  const auto clean = all_set_to(nullptr);
  set_nccl_defaults(one_host, folder);
  CHECK(value_of("NCCL_SOCKET_IFNAME") == interface);
  CHECK(value_of("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC") == "1000");
  CHECK(value_of("TORCH_FR_BUFFER_SIZE") == "2000");
  CHECK(value_of("TORCH_NCCL_DUMP_ON_TIMEOUT") == "1");
  CHECK(value_of("TORCH_FR_DUMP_TEMP_FILE") == file);
}

TEST_CASE("environment variables that the user has set are not changed") {
  const auto mine = all_set_to("mine");
  set_nccl_defaults(/*one_host=*/true, "/run/logs");
  for (const char* name : kVariables) CHECK(value_of(name) == "mine");
}

const std::string kNoMemory =
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 64 bytes. Error code 12 (Cannot allocate memory)";

TEST_CASE("a timeout is recognised from the backend's message") {
  CHECK(is_timeout(std::runtime_error("Timed out waiting 30000ms for recv operation")));
  CHECK(
      is_timeout(std::runtime_error("Watchdog caught collective operation timeout: WorkNCCL(…)")));
  CHECK_FALSE(is_timeout(std::runtime_error("Connection closed by peer")));
}

TEST_CASE("a rank that runs out of memory does not report the loss of another rank") {
  const auto failure_of = [](const auto& error) {
    return error_of([&] { translate_failures("all-reduce", [&] { throw error; }); });
  };
  const auto lost = failure_of(std::runtime_error("[a/pair.cc:5] Connection closed by peer"));
  CHECK(lost.is_peer_error);
  CHECK(lost.message == "lost another rank during all-reduce: Connection closed by peer");
  CHECK_FALSE(failure_of(Error(ExitCode::kConfig, "own")).is_peer_error);
  const c10::SourceLocation here{"", "", 0};
  CHECK_THROWS_AS(failure_of(c10::Error(here, kNoMemory)), c10::Error);
  CHECK_THROWS_AS(failure_of(c10::OutOfMemoryError(here, "CUDA out of memory")),
                  c10::OutOfMemoryError);
  CHECK_THROWS_AS(failure_of(std::bad_alloc()), std::bad_alloc);
  CHECK_THROWS_AS(failure_of(c10::AcceleratorError(here, 700, "CUDA error")),
                  c10::AcceleratorError);
  CHECK(failure_of(c10::Error(here, "another one")).is_peer_error);
}

TEST_CASE("running out of memory in LibTorch's allocator is recognised") {
  bool found = false;
  try {
    at::empty({std::int64_t{1} << 55}, at::kByte);
  } catch (const std::exception& error) {
    found = is_out_of_memory(error);
  }
  CHECK(found);
}

constexpr double kLong_s = 30;
constexpr double kShort_s = 0.3;

/// The store of a torchrun agent, which serves all attempts.
c10::intrusive_ptr<c10d::TCPStore> agent_store(const launch::ListenSocket& listener, int fd) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.port = static_cast<std::uint16_t>(listener.port);
  options.masterListenFd = fd;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

RendezvousOptions agent_worker(int rank, int port, const std::string& prefix, double timeout_s) {
  RendezvousOptions options = rendezvous_of(rank, 2, port, -1, timeout_s);
  options.identity.store_served_by_agent = true;
  options.identity.store_prefix = prefix;
  return options;
}

/// Ranks that meet at rank 0's store, which exists as long as this object.
struct Meeting {
  explicit Meeting(int world_size) : ranks(world_size), results(static_cast<std::size_t>(ranks)) {}

  /// Performs the rendezvous as `rank`, with options modified by `change(options)`.
  template <class Change>
  RendezvousResult& meet(int rank, const Change& change, double timeout_s = kLong_s) {
    RendezvousOptions options = rendezvous_of(rank, ranks, listener.port, fd, timeout_s);
    change(options);
    return results[static_cast<std::size_t>(rank)] = rendezvous(options);
  }

  int ranks;
  launch::ListenSocket listener = launch::listen_on_loopback();
  int fd = listener.fd.release();
  std::vector<RendezvousResult> results;
};

TEST_CASE("the error about an incomplete rendezvous lists the missing ranks") {
  Meeting meeting(3);
  const Failure failure = error_of([&] {
    meeting.meet(
        0, [](RendezvousOptions&) {}, kShort_s);
  });
  CHECK_FALSE(failure.is_peer_error);
  CHECK_THAT(failure, IsError(ExitCode::kDistributed,
                              "1 of 3 ranks joined within 0.3 s (launch.rendezvous_timeout_s), "
                              "missing: rank 1, rank 2"));
}

TEST_CASE("all ranks report it if one has a different config, world size, build or backend") {
  using Change = void (*)(RendezvousOptions&);
  const auto [change, message] = GENERATE(table<Change, const char*>({
      {[](RendezvousOptions& options) { options.fingerprint = "another config"; },
       "rank 1 has a different config"},
      {[](RendezvousOptions& options) {
         options.identity.world_size = 3;
         options.timeout_s = 1;
       },
       "rank 1 expects 3 processes, but rank 0 expects 2"},
      {[](RendezvousOptions& options) { options.build = "0.2.0 abc"; },
       "rank 1 runs mnist-train 0.2.0 abc, but rank 0 runs 0.1.0"},
      {[](RendezvousOptions& options) { options.backend = "gloo"; },
       "rank 1 uses backend gloo, but rank 0 uses nccl"},
  }));
  Meeting meeting(2);
  std::vector<Failure> failures(2);
  on_ranks(2, [&, &change = change](int rank) {
    failures[static_cast<std::size_t>(rank)] = error_of([&] {
      meeting.meet(rank, [&](RendezvousOptions& options) {
        options.backend = "nccl";
        options.build = "0.1.0";
        if (rank == 1) change(options);
      });
    });
  });
  for (const Failure& failure : failures) CHECK_THAT(failure, IsError(ExitCode::kConfig, message));
}

TEST_CASE("a rank number that several processes have is reported") {
  const bool is_complete = GENERATE(true, false);
  const int ranks = is_complete ? 2 : 3;
  std::vector<Failure> failures(3);
  Meeting meeting(ranks);
  on_ranks(3, [&](int process) {
    if (process == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    failures[static_cast<std::size_t>(process)] = error_of([&] {
      meeting.meet(
          std::min(process, 1), [](RendezvousOptions&) {},
          process == 0 && !is_complete ? 1 : kLong_s);
    });
  });
  if (is_complete) {
    CHECK_THAT(failures[2],
               IsError(ExitCode::kConfig, "another process has also joined as rank 1"));
  } else {
    CHECK_THAT(failures[0], IsError(ExitCode::kDistributed,
                                    "missing: rank 2; multiple processes joined as rank 1"));
  }
}

TEST_CASE("a rank 0 that is not on MASTER_ADDR's machine says so") {
  RendezvousOptions options = rendezvous_of(0, 2, 25100, -1, 1);
  options.identity.master_address = "192.0.2.1";  // for documentation: no machine has it
  CHECK_THAT(error_of([&] { rendezvous(options); }),
             IsError(ExitCode::kDistributed, "MASTER_ADDR must be an address of rank 0's machine"));
}

TEST_CASE("ranks that joined report the missing ones although rank 0's timeout expires earlier") {
  Meeting meeting(3);
  std::vector<Failure> failures(2);
  on_ranks(2, [&](int rank) {
    failures[static_cast<std::size_t>(rank)] = error_of([&] {
      meeting.meet(
          rank, [](RendezvousOptions&) {}, rank == 0 ? 1 : kLong_s);
    });
  });
  for (const Failure& failure : failures) {
    CHECK_THAT(failure, IsError(ExitCode::kDistributed, "2 of 3 ranks joined within 1 s"));
    CHECK_FALSE(failure.is_peer_error);
  }
}

TEST_CASE("a refusal of rank 0 reaches a rank that joins later") {
  const int port = launch::listen_on_loopback().port;
  Failure failure;
  on_ranks(2, [&](int rank) {
    const RendezvousOptions options = rendezvous_of(rank, 2, port, -1, kLong_s);
    if (rank == 0) return publish_refusal(options, ExitCode::kData, "no images");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    failure = error_of([&] { rendezvous(options); });
  });
  CHECK_THAT(failure, IsError(ExitCode::kData, "rank 0 cannot start the run: no images"));
}

TEST_CASE("all ranks learn which GPUs are shared before rank 0 may destroy the store") {
  struct Case {
    std::vector<std::vector<std::string>> seen;
    std::vector<std::size_t> indices;
    int first, second;
  };
  const std::string a = "0000:01:00.0";
  const std::string b = "0000:02:00.0";
  for (const Case& known : {Case{{{a, b}, {b}, {b, "0000:03:00.0"}}, {0, 0, 1}, -1, -1},
                            Case{{{a}, {b}, {b}}, {0, 0, 0}, 1, 2}}) {
    Meeting meeting(3);
    on_ranks(3, [&](int rank) {
      const auto change = [&](RendezvousOptions& options) {
        options.gpus = known.seen[static_cast<std::size_t>(rank)];
      };
      auto& store = meeting.meet(rank, change).store;
      if (known.first >= 0) store.reset();
    });
    for (const RendezvousResult& result : meeting.results) {
      CHECK(result.gpus.indices == known.indices);
      CHECK(result.gpus.first == known.first);
      CHECK(result.gpus.second == known.second);
    }
  }
}

/// A program that listens in place of the store and handles each connection with `serve`.
class Stranger {
 public:
  explicit Stranger(std::function<void(int connection)> serve)
      : thread_([this, serve = std::move(serve)] {
          std::vector<UniqueFd> connections;
          while (true) {
            UniqueFd connection(::accept(listener_.fd.get(), nullptr, nullptr));
            if (!connection.valid()) return;
            serve(connection.get());
            connections.push_back(std::move(connection));
          }
        }) {}
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() {
    ::shutdown(listener_.fd.get(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return listener_.port; }

 private:
  launch::ListenSocket listener_ = launch::listen_on_loopback();
  std::thread thread_;
};

TEST_CASE("another program in place of the store is reported within the timeout") {
  const auto serve = GENERATE(values<void (*)(int)>({
      [](int) {},
      [](int fd) { ::shutdown(fd, SHUT_RDWR); },
      [](int fd) { (void)::send(fd, "HTTP/1.1 400", 12, MSG_NOSIGNAL); },
      [](int fd) { (void)::send(fd, "abc", 3, MSG_NOSIGNAL); },
  }));
  const Stranger stranger(serve);
  const double begin_s = monotonic_seconds();
  const Failure failure =
      error_of([&] { rendezvous(rendezvous_of(1, 2, stranger.port(), -1, kShort_s)); });
  CHECK(monotonic_seconds() - begin_s >= kShort_s - 0.01);
  CHECK(monotonic_seconds() - begin_s < 2);
  CHECK_THAT(failure,
             IsError(ExitCode::kDistributed,
                     "cannot reach the store at 127.0.0.1:" + std::to_string(stranger.port()) +
                         " (MASTER_ADDR, MASTER_PORT) within 0.3 s "
                         "(launch.rendezvous_timeout_s): "));
}

TEST_CASE("every rank reports a host name that does not resolve within one timeout") {
  for (const int rank : {0, 1}) {
    RendezvousOptions options = rendezvous_of(rank, 2, 29500, -1, kShort_s);
    options.identity.master_address = "no-such-host.invalid";
    const double begin_s = monotonic_seconds();
    const Failure failure = error_of([&] { rendezvous(options); });
    CHECK(monotonic_seconds() - begin_s < 2);
    CHECK_THAT(failure, IsError(ExitCode::kDistributed, "no-such-host.invalid:29500"));
  }
}

TEST_CASE("a store that starts late is found within the timeout") {
  const int port = launch::listen_on_loopback().port;
  std::vector<c10::intrusive_ptr<c10d::Store>> stores(2);
  on_ranks(2, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stores[static_cast<std::size_t>(rank)] =
        rendezvous(rendezvous_of(rank, 2, port, -1, kLong_s)).store;
  });
  CHECK(stores[1] != nullptr);
}

TEST_CASE("the error about a port in use names the port") {
  const launch::ListenSocket taken = launch::listen_on_loopback();
  CHECK_THAT(error_of([&] { rendezvous(rendezvous_of(0, 2, taken.port, -1, kShort_s)); }),
             IsError(ExitCode::kDistributed,
                     "cannot serve the store at 127.0.0.1:" + std::to_string(taken.port)));
}

TEST_CASE("an agent's store serves consecutive attempts without mixing their ranks") {
  launch::ListenSocket listener = launch::listen_on_loopback();
  const auto agent = agent_store(listener, listener.fd.release());
  for (const char* attempt : {"mnist-train/job/0/", "mnist-train/job/1/"}) {
    on_ranks(2, [&](int rank) {
      (void)rendezvous(agent_worker(rank, listener.port, attempt, kLong_s));
    });
  }
  CHECK_THAT(
      error_of([&] { rendezvous(agent_worker(0, listener.port, "mnist-train/job/2/", kShort_s)); }),
      IsError(ExitCode::kDistributed, "missing: rank 1"));
}

TEST_CASE("rank 0 leaves soon and releases the others if another rank has died") {
  testing::on_connected_ranks(3, [](Communicator& communicator) {
    if (communicator.rank() == 1) return;
    const double begin_s = monotonic_seconds();
    communicator.leave();
    CHECK(monotonic_seconds() - begin_s < 15);
  });
}

}  // namespace
}  // namespace mnist_train::comm
