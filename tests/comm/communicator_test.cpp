#include "comm/communicator.h"

#include <cstdio>
#include <fstream>
#include <sstream>

#include "accelerator/device.h"
#include "support/error_of.h"
#include "support/gpu.h"
#include "support/ranks.h"
#include "support/scoped_environment.h"

namespace mnist_train::comm {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using namespace testing;

/// Local addresses of this process's listening TCP sockets, as /proc shows them.
std::set<std::string> listening_addresses() {
  std::set<std::string> own;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    own.insert(fs::read_symlink(entry.path(), error).string());
  }
  std::set<std::string> addresses;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      constexpr const char* kListening = "0A";
      if (state != kListening || own.count("socket:[" + inode + "]") == 0) continue;
      addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

TEST_CASE("each rank receives the next one's tensor, whatever its number of rows") {
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

TEST_CASE("a world of one rank needs no other") {
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

TEST_CASE("sums are over all ranks, broadcasts of rank 0, in every element type that is used") {
  for (const int world_size : {2, 3}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
      const auto results = results_of_ranks(world_size, [&](Communicator& communicator) {
        at::Tensor tensor = at::arange(1000, type) + communicator.rank();
        at::Tensor first = tensor.clone();
        communicator.all_reduce_sum(tensor);
        communicator.broadcast(first);
        return std::pair(tensor, first);
      });
      const at::Tensor expected =
          at::arange(1000, type) * world_size + world_size * (world_size - 1) / 2;
      for (const auto& [sum, first] : results) {
        CHECK(sum.equal(expected));
        CHECK(first.equal(at::arange(1000, type)));
      }
    }
  }
}

TEST_CASE("texts are exchanged whole, again and again") {
  const std::vector<std::string> texts{"",
                                       "one",
                                       std::string("\0\xff\n", 3),
                                       std::string(1 << 20, 'x'),
                                       "one",
                                       std::string(4 << 20, 'y'),  // exactly one piece
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
  for (std::size_t i = 0; i < texts.size(); ++i) {  // too long to print
    const std::string& text = texts[i];
    for (const auto& rank : seen) CHECK((rank[i].first == text));
    CHECK((seen[0][i].second == std::vector<std::string>{"0" + text, "1" + text, "2" + text}));
    CHECK(seen[1][i].second.empty());
    CHECK(seen[2][i].second.empty());
  }
}

TEST_CASE("on one machine nothing listens beyond loopback") {
  std::set<std::string> addresses;
  on_connected_ranks(2, [&](Communicator& communicator) {
    at::Tensor tensor = at::ones({1});
    communicator.all_reduce_sum(tensor);  // both are connected
    if (communicator.rank() == 0) addresses = listening_addresses();
    communicator.all_reduce_sum(tensor);  // both are still here
  });
  CHECK(addresses == std::set<std::string>{"0100007F"});
}

TEST_CASE("a rank that went away makes the others fail as its victims") {
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

TEST_CASE("waiting for a missing rank ends with the time-out") {
  constexpr double kTimeout_s = 1;
  Failure failure;
  double waited_s = 0;
  on_connected_ranks(
      2,
      [&](Communicator& communicator) {
        if (communicator.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2500));
          return;
        }
        at::Tensor tensor = at::ones({10});
        const auto begin = std::chrono::steady_clock::now();
        failure = error_of([&] { communicator.all_reduce_sum(tensor); });
        waited_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      },
      kTimeout_s);
  CHECK(failure.is_peer_error);
  CHECK(waited_s > 0.5);
  CHECK(waited_s < 2.4);
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

TEST_CASE("NCCL sums over one rank", "[gpu]") {
  if (!have_gpu()) return;
  launch::ListenSocket listener = launch::listen_on_loopback();
  const auto store = rendezvous(testing::rendezvous_of(0, 1, listener.port, listener.fd.release(),
                                                       /*timeout_s=*/30))
                         .store;
  const auto make = reinterpret_cast<MakeNcclBackend>(
      accelerator::cuda_module_function("mnist_train_make_nccl_backend"));
  const auto backend = make(store, 0, 1, /*timeout_s=*/60);
  std::vector<at::Tensor> tensors{at::arange(1000, at::kFloat).to(at::kCUDA)};
  backend->allreduce(tensors)->wait();
  CHECK(accelerator::to_host(tensors[0]).equal(at::arange(1000, at::kFloat)));
}

constexpr std::array kVariables{"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
                                "TORCH_FR_BUFFER_SIZE",
                                "TORCH_NCCL_TRACE_BUFFER_SIZE",
                                "TORCH_NCCL_DUMP_ON_TIMEOUT",
                                "TORCH_FR_DUMP_TEMP_FILE",
                                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
                                "NCCL_SOCKET_IFNAME"};

/// All of them as `value`, and as they were afterwards.
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

TEST_CASE("NCCL uses loopback on one host, and records its last collectives if there is a folder") {
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

TEST_CASE("variables that the user set stay, under their earlier names, too") {
  const auto mine = all_set_to("mine");
  set_nccl_defaults(/*one_host=*/true, "/run/logs");
  for (const char* name : kVariables) CHECK(value_of(name) == "mine");
  const ScopedEnvironment buffer("TORCH_FR_BUFFER_SIZE", nullptr);
  const ScopedEnvironment dump("TORCH_FR_DUMP_TEMP_FILE", nullptr);
  set_nccl_defaults(/*one_host=*/true, "/run/logs");
  CHECK(value_of("TORCH_FR_BUFFER_SIZE").empty());
  CHECK(value_of("TORCH_FR_DUMP_TEMP_FILE").empty());
}

const std::string kNoMemory =
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 64 bytes. Error code 12 (Cannot allocate memory)";

TEST_CASE("a time-out is recognised by the messages of backends") {
  CHECK(is_timeout(std::runtime_error("Timed out waiting 30000ms for recv operation")));
  CHECK(
      is_timeout(std::runtime_error("Watchdog caught collective operation timeout: WorkNCCL(…)")));
  CHECK_FALSE(is_timeout(std::runtime_error("Connection closed by peer")));
}

TEST_CASE("a rank's own lack of memory is not the loss of another rank") {
  const auto failure_of = [](const auto& error) {
    return error_of([&] { translate_failures("all-reduce", [&] { throw error; }); });
  };
  const auto lost = failure_of(std::runtime_error("[a/pair.cc:5] Connection closed by peer"));
  CHECK(lost.is_peer_error);
  CHECK(lost.message == "lost another rank in all-reduce: Connection closed by peer");
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

TEST_CASE("a lack of memory in LibTorch's allocator is recognised by its message") {
  bool found = false;
  try {
    at::empty({std::int64_t{1} << 55}, at::kByte);
  } catch (const std::exception& error) {
    found = is_out_of_memory(error);
  }
  CHECK(found);
}

}  // namespace
}  // namespace mnist_train::comm
