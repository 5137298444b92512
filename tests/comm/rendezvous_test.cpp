#include <sys/socket.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/system.h"
#include "comm/communicator.h"
#include "launch/supervisor.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace mnist_train::comm {
namespace {

using namespace testing;

constexpr double kLong_s = 30;
constexpr double kShort_s = 1;

/// torchrun's agent: it serves one store to all attempts.
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

/// Ranks that meet at the store of rank 0, which lives until all are through.
struct Meeting {
  explicit Meeting(int world_size) : ranks(world_size), results(static_cast<std::size_t>(ranks)) {}

  /// Meets as `rank`, after `change(options)`.
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

const auto kAsItIs = [](RendezvousOptions&) {};

TEST_CASE("ranks that rendezvous share a store") {
  Meeting meeting(3);
  std::vector<std::string> seen(3);
  on_ranks(3, [&](int rank) {
    const auto& store = meeting.meet(rank, kAsItIs).store;
    if (rank == 2) store->set("key", std::string("from rank 2"));
    seen[static_cast<std::size_t>(rank)] = store->get_to_str("key");
  });
  CHECK(seen == std::vector<std::string>(3, "from rank 2"));
}

TEST_CASE("missing ranks are named") {
  Meeting meeting(3);
  const Failure failure = error_of([&] { meeting.meet(0, kAsItIs, kShort_s); });
  CHECK_FALSE(failure.is_peer_error);
  CHECK_THAT(failure, IsError(ExitCode::kDistributed,
                              "1 of 3 ranks joined within 1 s (launch.rendezvous_timeout_s), "
                              "missing: rank 1, rank 2"));
}

TEST_CASE(
    "a rank with another config, world size or backend is refused at once, and none continues") {
  using Change = void (*)(RendezvousOptions&);
  const auto [change, message] = GENERATE(table<Change, const char*>({
      {[](RendezvousOptions& options) { options.fingerprint = "another config"; },
       "rank 1 has a different config"},
      {[](RendezvousOptions& options) {
         options.identity.world_size = 3;
         options.timeout_s = 1;
       },
       "rank 1 expects 3 processes, but rank 0 expects 2"},
      {[](RendezvousOptions& options) { options.backend = "gloo"; },
       "rank 1 uses backend gloo, rank 0 uses nccl"},
  }));
  Meeting meeting(2);
  std::vector<Failure> failures(2);
  on_ranks(2, [&, &change = change](int rank) {
    failures[static_cast<std::size_t>(rank)] = error_of([&] {
      meeting.meet(rank, [&](RendezvousOptions& options) {
        options.backend = "nccl";
        if (rank == 1) change(options);
      });
    });
  });
  CHECK_THAT(failures[0], IsError(ExitCode::kConfig, message));
  CHECK_FALSE(failures[1].message.empty());  // the same, or that the store went away with rank 0
}

TEST_CASE("all ranks learn which GPUs are the same, before rank 0 may take the store away") {
  struct Case {
    std::vector<std::vector<std::string>> seen;
    std::vector<std::size_t> taken;
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
      meeting.meet(rank, change).store.reset();
    });
    for (const RendezvousResult& result : meeting.results) {
      CHECK(result.gpus.taken == known.taken);
      CHECK(result.gpus.first == known.first);
      CHECK(result.gpus.second == known.second);
    }
  }
}

TEST_CASE("a store that nobody serves is named by its address") {
  launch::ListenSocket listener = launch::listen_on_loopback();
  const int port = listener.port;
  listener.fd.reset();
  CHECK_THAT(
      error_of([&] { rendezvous(rendezvous_of(1, 2, port, -1, kShort_s)); }),
      IsError(ExitCode::kDistributed, "cannot reach the store at 127.0.0.1:" + std::to_string(port),
              "MASTER_ADDR, MASTER_PORT"));
}

/// A program that listens in place of the store; it answers each connection by `serve`.
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

TEST_CASE("another program in place of the store is reported in time") {
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
  CHECK(monotonic_seconds() - begin_s < kShort_s + 1);
  CHECK_THAT(failure, IsError(ExitCode::kDistributed, "cannot reach the store at 127.0.0.1:" +
                                                          std::to_string(stranger.port()) +
                                                          " (MASTER_ADDR, MASTER_PORT) within 1 s "
                                                          "(launch.rendezvous_timeout_s): "));
}

TEST_CASE("a host name that does not resolve is reported on every rank, within one time-out") {
  for (const int rank : {0, 1}) {
    RendezvousOptions options = rendezvous_of(rank, 2, 29500, -1, kShort_s);
    options.identity.master_address = "no-such-host.invalid";
    const double begin_s = monotonic_seconds();
    const Failure failure = error_of([&] { rendezvous(options); });
    CHECK(monotonic_seconds() - begin_s < kShort_s + 1);
    CHECK_THAT(failure, IsError(ExitCode::kDistributed, "no-such-host.invalid:29500"));
  }
}

TEST_CASE("a store that starts late is found within the time-out") {
  const int port = launch::listen_on_loopback().port;
  std::vector<c10::intrusive_ptr<c10d::Store>> stores(2);
  on_ranks(2, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stores[static_cast<std::size_t>(rank)] =
        rendezvous(rendezvous_of(rank, 2, port, -1, kLong_s)).store;
  });
  CHECK(stores[1] != nullptr);
}

TEST_CASE("a port that is taken is named") {
  const launch::ListenSocket taken = launch::listen_on_loopback();
  CHECK_THAT(error_of([&] { rendezvous(rendezvous_of(0, 2, taken.port, -1, kShort_s)); }),
             IsError(ExitCode::kDistributed,
                     "cannot serve the store at 127.0.0.1:" + std::to_string(taken.port)));
}

TEST_CASE(
    "an agent's store serves one attempt after another, and none takes the last one's ranks") {
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

}  // namespace
}  // namespace mnist_train::comm
