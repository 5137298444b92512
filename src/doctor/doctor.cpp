#include "doctor/doctor.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "base/log.h"
#include "base/print.h"
#include "base/system.h"
#include "launch/placement.h"
#include "launch/supervisor.h"

namespace mnist_train::doctor {

namespace {

const char* name_of(Verdict verdict) {
  static constexpr std::array kNames{"ok", "note", "warning", "problem"};
  return enum_name(kNames, verdict);
}

std::string counted(int number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

Finding describe_program() {
  const BuildInfo& build = build_info();
  const std::string commit = *build.commit == '\0' ? "" : fmt::format(" ({})", build.commit);
  Finding finding{"program", Verdict::kGood,
                  fmt::format("mnist-train {}{}", build.version, commit)};
  finding.values["version"] = build.version;
  return finding;
}

/// Tells which processes a run with this config would start here.
Finding check_plan(const settings::RunConfig& config, const Driver& driver) {
  return problem_if_throws("a run here", "change the config", [&] {
    launch::Machine machine = launch::this_machine();
    machine.gpus = static_cast<int>(driver.gpus.size());
    const int processes = launch::choose_process_count(config, machine);
    const auto placement = launch::choose_placement(config, machine, 0, processes);
    Finding finding{"a run here"};
    finding.text = fmt::format("{} process{} on {}, backend {}, {} each", processes,
                               processes == 1 ? "" : "es", placement.cuda ? "cuda" : "cpu",
                               placement.backend, counted(placement.threads, "thread"));
    finding.values["processes"] = processes;
    return finding;
  });
}

void append(Findings& findings, Findings more) {
  std::move(more.begin(), more.end(), std::back_inserter(findings));
}

/// Indents every line after the first to `column`.
std::string hanging(const std::string& text, std::size_t column) {
  std::string result;
  std::istringstream lines(escape_control_bytes(text));
  for (std::string line; std::getline(lines, line);) {
    result += (result.empty() ? "" : "\n" + std::string(column, ' ')) + line;
  }
  return result;
}

}  // namespace

Findings examine(const settings::RunConfig& config) {
  launch::block_supervised_signals();
  const Driver driver = examine_driver();
  Findings findings{describe_program()};
  append(findings, check_host());
  append(findings, check_gpus(driver, build_info()));
  findings.push_back(check_shared_memory(driver, free_space("/dev/shm")));
  findings.push_back(check_nccl(driver, build_info()));
  append(findings, check_network());
  findings.push_back(check_run_folder(config));
  findings.push_back(check_file_locks(config));
  append(findings, check_data(config));
  findings.push_back(check_plan(config, driver));
  append(findings, check_workers(config, driver));
  return findings;
}

int count(const Findings& findings, Verdict verdict) {
  return static_cast<int>(
      std::count_if(findings.begin(), findings.end(),
                    [verdict](const Finding& finding) { return finding.verdict == verdict; }));
}

std::string to_text(const Findings& findings, bool colours) {
  static constexpr std::array kColours{"\x1b[32m", "\x1b[36m", "\x1b[33m", "\x1b[31m"};
  constexpr std::size_t kVerdictWidth = 9;
  std::size_t topic_width = 0;
  for (const Finding& finding : findings) {
    topic_width = std::max(topic_width, finding.topic.size() + 2);
  }
  const std::size_t column = kVerdictWidth + topic_width;
  std::string text;
  for (const Finding& finding : findings) {
    const std::string verdict = fmt::format("{:<{}}", name_of(finding.verdict), kVerdictWidth);
    text += colours ? enum_name(kColours, finding.verdict) + verdict + "\x1b[0m" : verdict;
    text += fmt::format("{:<{}}{}\n", finding.topic, topic_width, hanging(finding.text, column));
    if (finding.remedy.empty()) continue;
    text += std::string(column, ' ') + "-> " + hanging(finding.remedy, column + 3) + "\n";
  }
  return text + host_name() + ": " + counted(count(findings, Verdict::kProblem), "problem") + ", " +
         counted(count(findings, Verdict::kWarning), "warning") + "\n";
}

std::string to_json(const Findings& findings) {
  nlohmann::ordered_json json = {{"host", host_name()},
                                 {"problems", count(findings, Verdict::kProblem)},
                                 {"warnings", count(findings, Verdict::kWarning)},
                                 {"findings", nlohmann::ordered_json::array()}};
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"topic", finding.topic},
                                {"verdict", name_of(finding.verdict)},
                                {"text", finding.text},
                                {"remedy", finding.remedy},
                                {"values", finding.values}});
  }
  return json_text(json, 2) + "\n";
}

}  // namespace mnist_train::doctor
