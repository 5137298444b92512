#include "support/fake_gpu/report.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/fake_gpu/message.h"
#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr std::array<const char*, 4> kCounterNames{"replays", "copies", "pageable_copies",
                                                   "synchronizations"};

struct CapturedGraph {
  std::array<std::size_t, kNodeKinds> nodes;
  std::size_t streams;
};

/// Counts of this process's calls so far.
struct Counts {
  std::array<std::atomic<std::uint64_t>, kCounterNames.size()> calls{};
  std::atomic<std::uint64_t> eager_launches{0};
  std::atomic<bool> launched{false};                   // captured or not
  std::mutex mutex;                                    // for the members below
  std::map<std::string_view, std::uint64_t> launches;  // per kernel
  std::vector<CapturedGraph> graphs;

  bool any() const {
    return launched ||
           std::any_of(calls.begin(), calls.end(), [](const auto& count) { return count > 0; });
  }
};

Counts& counts() {
  static auto& counts = *new Counts();
  return counts;
}

/// Writes the report when the process calls `exit` or returns from `main`.
struct ReportAtExit {
  ~ReportAtExit() { write_report(); }
};

const ReportAtExit kReportAtExit;

}  // namespace

void count(Counter counter) { ++counts().calls.at(static_cast<std::size_t>(counter)); }

void count_launch(const char* kernel, bool captured) {
  Counts& all = counts();
  all.launched = true;
  if (!captured) ++all.eager_launches;
  if (settings().report.empty()) return;
  const std::lock_guard lock(all.mutex);
  ++all.launches[kernel];
}

void record_graph(const Graph& graph, std::size_t streams, bool valid) {
  const CapturedGraph captured{graph.counts(), streams};
  say(valid ? "captured " : "captured an invalid graph of ", captured.nodes[0], " kernels, ",
      captured.nodes[1], " copies, ", captured.nodes[2], " fills, ", captured.nodes[3],
      " others on ", streams, " streams");
  if (!valid) return;
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  all.graphs.push_back(captured);
}

void write_report() {
  Counts& all = counts();
  if (settings().report.empty() || !all.any()) return;
  const std::lock_guard lock(all.mutex);
  std::ofstream file(settings().report + "." + std::to_string(::getpid()));
  file << "{\n \"eager_launches\": " << all.eager_launches;
  for (std::size_t i = 0; i < kCounterNames.size(); ++i) {
    file << ",\n \"" << kCounterNames.at(i) << "\": " << all.calls.at(i);
  }
  file << ",\n \"graphs\": [";
  const char* separator = "";
  for (const auto& [nodes, streams] : all.graphs) {
    file << std::exchange(separator, ",") << "\n  {\"kernels\": " << nodes[0]
         << ", \"copies\": " << nodes[1] << ", \"fills\": " << nodes[2]
         << ", \"others\": " << nodes[3] << ", \"streams\": " << streams << "}";
  }
  file << "],\n \"kernels\": {";
  separator = "";
  for (const auto& [name, launches] : all.launches) {
    file << std::exchange(separator, ",") << "\n  \"" << name << "\": " << launches;
  }
  file << "}\n}\n";
}

}  // namespace mnist_train::fake_gpu

/// Replaces the C library's `_exit`, so that mnist-train's workers, which call it, write reports.
extern "C" void _exit(int status) {
  mnist_train::fake_gpu::write_report();
  ::syscall(SYS_exit_group, status);
  __builtin_unreachable();
}
