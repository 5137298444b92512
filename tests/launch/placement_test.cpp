#include <unistd.h>

#include "launch/job.h"
#include "support/error_of.h"
#include "support/scoped_environment.h"

namespace mnist_train::launch {
namespace {

using settings::BackendName;
using settings::DeviceName;
using settings::RunConfig;
using namespace testing;

constexpr Machine kLaptop{8, 0};
constexpr Machine kOneGpu{8, 1};
constexpr Machine kTwoGpus{8, 2};

RunConfig asking(DeviceName device, BackendName backend = BackendName::kAuto,
                 std::vector<std::string> devices = {}) {
  RunConfig config;
  config.train.device = device;
  config.train.backend = backend;
  config.launch.devices = std::move(devices);
  return config;
}

/// "cuda:1 nccl": device and backend of one rank among `world` on one machine.
std::string place(const RunConfig& config, const Machine& machine, int rank, int world) {
  const Placement placement = choose_placement(config, machine, rank, world);
  return placement.device_name() + " " + placement.backend;
}

TEST_CASE("by default the launcher starts one process per GPU, else one per core up to two") {
  const RunConfig config;
  CHECK(choose_process_count(config, {1, 0}) == 1);
  CHECK(choose_process_count(config, {2, 0}) == 2);
  CHECK(choose_process_count(config, {64, 0}) == 2);
  CHECK(choose_process_count(config, {64, 1}) == 1);
  CHECK(choose_process_count(config, {2, 8}) == 8);
  CHECK(choose_process_count(asking(DeviceName::kCpu), {64, 8}) == 2);
}

TEST_CASE("a large network of linear layers gets one process with two threads on two cores") {
  RunConfig config;
  config.model.name = settings::ModelName::kMlp;
  CHECK(choose_process_count(config, {2, 0}) == 1);
  CHECK(choose_placement(config, {2, 0}, 0, 1).threads == 2);
  CHECK(
      placement_note(config, {2, 0}).starts_with("using one process with a thread for each core"));
  CHECK(choose_process_count(config, {4, 0}) == 2);
  CHECK(placement_note(config, {4, 0}).empty());
  CHECK(choose_process_count(config, {2, 3}) == 3);

  RunConfig deterministic = config;
  deterministic.train.deterministic = true;
  CHECK(choose_process_count(deterministic, {2, 0}) == 2);

  RunConfig one_thread = config;
  one_thread.launch.threads_per_process = 1;
  CHECK(choose_process_count(one_thread, {2, 0}) == 2);

  RunConfig batch_each = config;
  batch_each.train.batch_size_per_process = 32;
  CHECK(choose_process_count(batch_each, {2, 0}) == 2);

  RunConfig mixed = config;
  mixed.data.augment = {settings::MixupOptions{1, std::nullopt, settings::MixupScope::kGlobal}};
  CHECK(choose_process_count(mixed, {2, 0}) == 2);
}

TEST_CASE("a number of processes that the config sets is used") {
  RunConfig config;
  config.launch.processes_per_node = 5;
  CHECK(choose_process_count(config, kLaptop) == 5);
  CHECK(choose_process_count(config, kTwoGpus) == 5);
  CHECK(choose_process_count(
            asking(DeviceName::kAuto, BackendName::kAuto, {"cuda:0", "cuda:0", "cpu"}), kOneGpu) ==
        3);
}

TEST_CASE("ranks are placed on GPUs if there are any, in turn if there are too few") {
  const RunConfig config;
  CHECK(place(config, kLaptop, 0, 1) == "cpu gloo");
  CHECK(place(config, kLaptop, 1, 2) == "cpu gloo");
  CHECK(place(config, kOneGpu, 0, 1) == "cuda:0 nccl");
  CHECK(place(config, kTwoGpus, 0, 2) == "cuda:0 nccl");
  CHECK(place(config, kTwoGpus, 1, 2) == "cuda:1 nccl");
  // NCCL refuses two ranks on one GPU, so they meet over Gloo.
  CHECK(place(config, kTwoGpus, 2, 3) == "cuda:0 gloo");
  CHECK(place(config, kOneGpu, 1, 2) == "cuda:0 gloo");
}

TEST_CASE("a device and a backend that the config names are used") {
  CHECK(place(asking(DeviceName::kCpu), kTwoGpus, 1, 2) == "cpu gloo");
  CHECK(place(asking(DeviceName::kCuda, BackendName::kGloo), kTwoGpus, 1, 2) == "cuda:1 gloo");
  CHECK(place(asking(DeviceName::kCuda, BackendName::kNccl), kTwoGpus, 1, 2) == "cuda:1 nccl");
}

TEST_CASE("named devices go to ranks in their order") {
  const RunConfig mixed =
      asking(DeviceName::kAuto, BackendName::kAuto, {"cuda:1", "cpu", "cuda:1"});
  CHECK(place(mixed, kTwoGpus, 0, 3) == "cuda:1 gloo");
  CHECK(place(mixed, kTwoGpus, 1, 3) == "cpu gloo");
  CHECK(place(mixed, kTwoGpus, 2, 3) == "cuda:1 gloo");
  const RunConfig swapped = asking(DeviceName::kAuto, BackendName::kAuto, {"cuda:1", "cuda:0"});
  CHECK(place(swapped, kTwoGpus, 0, 2) == "cuda:1 nccl");
  CHECK(place(swapped, kTwoGpus, 1, 2) == "cuda:0 nccl");
  const RunConfig unnumbered = asking(DeviceName::kAuto, BackendName::kAuto, {"cuda", "cuda"});
  CHECK(place(unnumbered, kTwoGpus, 0, 2) == "cuda:0 nccl");
  CHECK(place(unnumbered, kTwoGpus, 1, 2) == "cuda:1 nccl");
}

TEST_CASE("more ranks than named devices share them over Gloo") {
  const RunConfig one = asking(DeviceName::kAuto, BackendName::kAuto, {"cuda:0"});
  CHECK(place(one, kTwoGpus, 0, 1) == "cuda:0 nccl");
  CHECK(place(one, kTwoGpus, 1, 2) == "cuda:0 gloo");
}

TEST_CASE("numbers of GPUs tell nothing of sharing unless all ranks see the same ones") {
  Machine own_view = kOneGpu;
  own_view.same_for_all = false;
  CHECK(place({}, own_view, 1, 2) == "cuda:0 nccl");
  CHECK(place(asking(DeviceName::kAuto, BackendName::kNccl), own_view, 1, 2) == "cuda:0 nccl");
  CHECK(place(asking(DeviceName::kAuto, BackendName::kGloo), own_view, 1, 2) == "cuda:0 gloo");
  const RunConfig mixed = asking(DeviceName::kAuto, BackendName::kAuto, {"cuda", "cpu"});
  CHECK(place(mixed, own_view, 0, 2) == "cuda:0 gloo");
}

TEST_CASE("ranks take GPUs that no others have taken as long as there are some") {
  using Lists = std::vector<std::vector<std::string>>;
  struct Case {
    Lists allowed;
    std::vector<std::size_t> taken;
    int first;
    int second;
  };
  for (const Case& entry : {
           Case{{{"a", "b"}, {"a", "b"}}, {0, 1}, -1, -1},
           Case{{{"a"}, {"b"}}, {0, 0}, -1, -1},  // --gpus-per-task=1
           Case{{{"a"}, {"a"}}, {0, 0}, 0, 1},    // one GPU for both
           Case{{{"a", "b"}, {"c", "d"}, {"a", "b"}, {"c", "d"}}, {0, 0, 1, 1}, -1, -1},  // closest
           Case{{{"a", "b"}, {"b", "a"}}, {0, 0}, -1, -1},
           Case{{{"a", "b"}, {"a", "b"}, {"a", "b"}}, {0, 1, 0}, 0, 2},
           Case{{{}, {"a"}, {"a"}}, {0, 0, 0}, 1, 2},
           Case{{{}, {}}, {0, 0}, -1, -1},
       }) {
    const GpuShares shares = share_out_gpus(entry.allowed);
    CHECK(shares.taken == entry.taken);
    CHECK(shares.first == entry.first);
    CHECK(shares.second == entry.second);
    CHECK(shares.one_each() == (entry.first < 0));
  }
}

TEST_CASE("ranks that turn out to share a GPU use Gloo, or are refused if NCCL was asked for") {
  GpuShares shares;
  shares.first = 1;
  shares.second = 4;
  CHECK(backend_of_shared_gpu({}, shares) == "gloo");
  CHECK_THAT(error_of([&] {
               (void)backend_of_shared_gpu(asking(DeviceName::kAuto, BackendName::kNccl), shares);
             }),
             IsError(ExitCode::kConfig, "ranks 1 and 4 share one"));
}

TEST_CASE("a device or backend that the config names is refused, but never replaced") {
  struct Case {
    RunConfig config;
    Machine machine;
    int processes;
    const char* reason;
  };
  const std::vector<Case> bad{
      {asking(DeviceName::kCuda), kLaptop, 1, "device \"cuda\", but no GPU is visible"},
      {asking(DeviceName::kAuto, BackendName::kNccl), kLaptop, 2, "backend \"nccl\", but"},
      {asking(DeviceName::kAuto, BackendName::kAuto, {"cpu", "cuda"}), kLaptop, 2, "no GPU"},
      {asking(DeviceName::kAuto, BackendName::kAuto, {"cuda:0", "cuda:2"}), kTwoGpus, 2,
       "\"cuda:2\", but this machine has 2 visible GPUs"},
      {asking(DeviceName::kAuto, BackendName::kNccl), kTwoGpus, 3, "3 processes share 2 GPUs"},
      {asking(DeviceName::kCuda, BackendName::kNccl), kOneGpu, 2,
       "a separate GPU for every process"},
      {asking(DeviceName::kAuto, BackendName::kNccl, {"cuda:0", "cuda:0"}), kTwoGpus, 2,
       "a separate GPU for every process"},
  };
  for (const Case& entry : bad) {
    INFO(entry.reason);
    CHECK_THAT(error_of([&] {
                 for (int rank = 0; rank < entry.processes; ++rank) {
                   (void)place(entry.config, entry.machine, rank, entry.processes);
                 }
               }),
               IsError(ExitCode::kConfig, entry.reason));
  }
  CHECK_THAT(error_of([] { choose_process_count(asking(DeviceName::kCuda), kLaptop); }),
             IsError(ExitCode::kConfig, "\"gloo\""));
}

TEST_CASE("the ranks' threads share the cores unless config or environment set them") {
  const auto threads = [](const RunConfig& config, int world) {
    return choose_placement(config, kLaptop, 0, world).threads;
  };
  RunConfig config;
  RunConfig named;
  named.launch.threads_per_process = 3;
  RunConfig deterministic;
  deterministic.train.deterministic = true;
  {
    const ScopedEnvironment unset("OMP_NUM_THREADS", nullptr);
    CHECK(threads(config, 1) == 8);
    CHECK(threads(config, 2) == 4);
    CHECK(threads(config, 3) == 2);
    CHECK(threads(config, 100) == 1);
    CHECK(threads(deterministic, 1) == 1);
  }
  const ScopedEnvironment set("OMP_NUM_THREADS", "5");
  CHECK(threads(config, 2) == 5);
  CHECK(threads(named, 2) == 3);
  CHECK(threads(deterministic, 2) == 1);
  named.train.deterministic = true;
  CHECK(threads(named, 2) == 3);
}

TEST_CASE("an invalid OMP_NUM_THREADS is ignored") {
  RunConfig config;
  for (const char* value : {"", "many", "0", "-3", "99999999999999999999"}) {
    const ScopedEnvironment set("OMP_NUM_THREADS", value);
    INFO(value);
    CHECK(choose_placement(config, kLaptop, 0, 2).threads == 4);
  }
  const ScopedEnvironment nested("OMP_NUM_THREADS", "3,2");  // OpenMP's levels of nesting
  CHECK(choose_placement(config, kLaptop, 0, 2).threads == 3);
}

TEST_CASE("a machine without NVIDIA's driver shows no GPU") {
  const int gpus = visible_gpus();
  if (::access("/dev/nvidiactl", F_OK) != 0) {
    CHECK(gpus == 0);
  } else {
    CHECK(gpus >= 0);
  }
}

}  // namespace
}  // namespace mnist_train::launch
