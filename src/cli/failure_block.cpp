#include "cli/failure_block.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/log.h"
#include "base/system.h"
#include "launch/worker_process.h"
#include "report/run_folder.h"

namespace mnist_train::cli {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kLogLines = 10;

std::string log_tail(const fs::path& run_folder, int rank) {
  const fs::path path = run_folder / report::files::kLogs / launch::log_file_name(rank);
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kLogLines) lines.erase(lines.begin());
  }
  if (lines.empty()) return "";
  std::string text = "  end of " + path.string() + ":\n";
  for (const std::string& line : lines) text += "    " + escape_control_bytes(line) + "\n";
  return text;
}

std::string indented(const std::string& lines) {
  std::istringstream stream(escape_control_bytes(lines));
  std::string text;
  for (std::string line; std::getline(stream, line);) text += "    " + line + "\n";
  return text;
}

}  // namespace

std::string failure_block(const launch::RunFailure& failure, const launch::Job& job) {
  std::string text =
      "mnist-train failed: " + as_block(failure.cause) + "\n  host: " + host_name() + "\n";
  if (!failure.victims.empty()) {
    text += "  because of that:\n" + indented(failure.victims);
  }
  if (job.command != "train") return text;
  if (failure.died_silently) text += log_tail(job.run_folder, failure.rank);
  return text + report::way_on(job.run_folder, launch::resume_command(job.run_folder));
}

}  // namespace mnist_train::cli
