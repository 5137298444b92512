#include <signal.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/file.h"
#include "base/print.h"
#include "base/system.h"
#include "cli/cli.h"
#include "data/convert.h"
#include "data/dataset.h"
#include "doctor/doctor.h"
#include "launch/supervisor.h"
#include "report/records.h"

namespace mnist_train::cli {

namespace {

data::ConvertOptions convert_options(const CommandLine& line) {
  const auto parts_of = [](const std::string& argument) {  // FORMAT:DIR
    const std::size_t end = std::min(argument.find(':'), argument.size() - 1);
    return std::pair(argument.substr(0, end), argument.substr(end + 1));
  };
  const auto [source, from] = parts_of(line.from);
  const auto [target, to] = parts_of(line.to);
  if (source != "idx" || from.empty()) {
    refuse("mnist-train convert: --from {}: expected idx:DIR", line.from);
  }
  const bool is_lmdb = target == "lmdb";
  if ((!is_lmdb && target != "image-folder") || to.empty()) {
    refuse("mnist-train convert: --to {}: expected lmdb:DIR or image-folder:DIR", line.to);
  }
  return {.from = from,
          .target = is_lmdb ? data::ConvertTarget::kLmdb : data::ConvertTarget::kImageFolder,
          .to = to,
          .jpeg = line.encoding.empty() ? is_lmdb : line.encoding == "jpeg"};
}

/// Replaces this process with mnist-train-fetch.
[[noreturn]] void run_fetch(const CommandLine& line) {
  const std::string program = find_program_file("mnist-train-fetch").string();
  std::vector<std::string> words{"mnist-train-fetch", line.data_set, line.to};
  words.insert(words.end(), line.mirrors.begin(), line.mirrors.end());
  ::execv(program.c_str(), launch::pointers_to(words).data());
  refuse("mnist-train-fetch: cannot start: {}; scripts/setup builds it", std::strerror(errno));
}

/// Throws if a stop signal is pending. The stop signals must be blocked.
void throw_if_stopped() {
  const sigset_t signals = launch::stop_signal_set();
  const timespec zero_timeout{};
  const int signal = ::sigtimedwait(&signals, nullptr, &zero_timeout);
  if (signal <= 0) return;
  throw Error(static_cast<ExitCode>(launch::stopped_exit_code(signal)),
              std::string("mnist-train convert: stopped by SIG") + ::sigabbrev_np(signal) +
                  "; nothing was written");
}

/// Prints {"format", "train", "test", "folder"}.
void run_convert(const CommandLine& line) {
  data::ConvertOptions options = convert_options(line);
  launch::block_supervised_signals();
  options.before_each = throw_if_stopped;
  const data::Converted converted = data::convert(options);
  print_result({{"format", options.target == data::ConvertTarget::kLmdb ? "lmdb" : "image-folder"},
                {"train", converted.train},
                {"test", converted.test},
                {"folder", options.to.string()}});
}

/// Returns the folders that contain a run, and warns about the others.
std::vector<fs::path> find_run_folders(const CommandLine& line) {
  std::vector<fs::path> folders;
  std::string skipped;
  for (const std::string& folder : line.run_folders) {
    std::error_code ignored;
    if (fs::symlink_status(folder, ignored).type() == fs::file_type::not_found) {
      refuse("mnist-train report: {}: no such folder; expected run folders", folder);
    }
    if (report::holds_run(folder)) {
      folders.emplace_back(folder);
    } else {
      skipped += (skipped.empty() ? "" : ", ") + folder;
    }
  }
  if (folders.empty()) refuse("mnist-train report: no run in {}; expected run folders", skipped);
  if (!skipped.empty()) spdlog::warn("skipped folders without a run: {}", skipped);
  return folders;
}

void run_report(const CommandLine& line) {
  const auto folders = find_run_folders(line);
  const std::string output = line.output.value_or("");
  if (output != "-") check_output_file(output);
  std::vector<std::string> problems;
  const std::string page = report::render_report(folders, &problems);
  if (output != "-") write_file_atomically(output, page, ExitCode::kRunFailed);
  if (output == "-") print_text(page);
  if (!problems.empty()) {
    throw Error(ExitCode::kData,
                fmt::format("{}: a report without {} that cannot be read:\n{}", output,
                            counted(std::ssize(problems), "run"), fmt::join(problems, "\n")));
  }
  if (output == "-") return;
  const std::int64_t runs = std::ssize(folders);
  if (prints_json(line)) return print_result({{"output", output}, {"runs", runs}});
  print_text(on_one_line(output) + ": a report of " + counted(runs, "run") + "\n");
}

/// Returns 1 if a run would fail, else 0.
int run_doctor(const CommandLine& line, const settings::RunConfig& config) {
  const bool colours = ::isatty(STDOUT_FILENO) == 1 && report::terminal_style().colours;
  const doctor::Findings findings = doctor::examine(config);
  print_text(line.json ? doctor::to_json(findings) : doctor::to_text(findings, colours));
  return doctor::count(findings, doctor::Verdict::kProblem) > 0 ? 1 : 0;
}

std::vector<std::int64_t> sizes_of(const network::SampleShape& shape) {
  if (!shape.is_image) return {shape.channels};
  return {shape.channels, shape.height, shape.width};
}

/// Adds a row for each layer, then for its inner layers. `next`: settings of the next parameter.
void add_rows(const std::vector<network::SizedLayer>& layers, const settings::TrainOptions& options,
              std::vector<settings::ParameterSettings>::const_iterator& next,
              std::vector<report::ModuleRow>& rows) {
  for (const network::SizedLayer& sized : layers) {
    report::ModuleRow& row = rows.emplace_back(
        report::ModuleRow{sized.path, settings::name_of(sized.kind), sizes_of(sized.out),
                          sized.parameters, sized.multiply_adds, !sized.layers.empty()});
    for (const std::string& name : sized.parameter_names()) {
      row.tensors.push_back(report::parameter_row(name, *next++, options));
    }
    add_rows(sized.layers, options, next, rows);
    add_rows(sized.shortcut, options, next, rows);
  }
}

/// Returns the output of `describe` for a network of layers: a table for people, or a JSON object
/// that also has the layers in the form of `model.layers`. Throws like `checked_network`.
std::string describe(const CommandLine& line, const settings::RunConfig& config) {
  const network::Network described = checked_network(config);
  report::ModuleTable table{
      sizes_of(described.layers.front().in), {}, described.parameters, described.multiply_adds};
  const auto parameters = settings::parameter_settings(config.train.parameters,
                                                       network::parameter_names(described.layers));
  auto next = parameters.begin();
  add_rows(described.layers, config.train, next, table.rows);
  if (!line.json) return report::to_text(table);
  OrderedJson json = report::to_json(table);
  json["layers"] = OrderedJson::parse(
      settings::write_layers(network::layers_of(config.model, described.images)));
  return json_text(json, 2) + "\n";
}

/// Returns the output of `describe --data`, which a run writes to its dataset.json. Warns about
/// files that are in two sets. Decodes all images if a run would do so at its start. Throws
/// Error(kData) and ConfigKeyError.
std::string describe_data(settings::DataOptions options) {
  const bool decodes =
      options.is_encoded() && (options.decode == settings::Decode::kOnce ||
                               options.on_bad_sample == settings::OnBadSample::kSkip);
  if (options.is_encoded()) options.decode = settings::Decode::kStream;
  data::DatasetReader reader(options);
  std::vector<data::SampleFailure> failed;
  if (decodes) failed = reader.check(0, 1, usable_cores(), [] {});
  data::Dataset dataset = reader.stream(failed);
  reader.note_repeated_files(dataset);
  for (const std::string& note : dataset.notes) spdlog::warn("{}", note);
  if (!dataset.skipped.empty()) {
    spdlog::warn("skipped: {}", first_names(dataset.skipped, /*max_names=*/10));
  }
  return data::write_dataset_record(dataset, options);
}

int run_with_config(const CommandLine& line, LayeredConfig& layered) {
  settings::RunConfig& config = layered.config;
  if (line.command == Command::kDescribe && (line.describes_data || config.model.has_layers())) {
    print_text(line.describes_data ? describe_data(config.data) : describe(line, config));
    return 0;
  }
  if (line.dry_run) {
    report::check_run_folder(config, config_name(line), line.resume);
    print_text(settings::write_run_config(config, true));
    return 0;
  }
  if (line.command == Command::kDoctor) return run_doctor(line, config);
  if (line.command == Command::kTrain) find_model_weights(config, !line.resume.empty());
  return launch_command(line, layered);
}

int read_config_and_run(CommandLine& line) {
  std::error_code reason;  // LibTorch needs the folder, too
  (void)fs::current_path(reason);
  if (reason) {
    refuse("mnist-train: the working folder cannot be used ({}); cd to another one",
           reason.message());
  }
  find_checkpoints(line);
  LayeredConfig layered = read_layers(line, config_files(line));
  try {
    return run_with_config(line, layered);
  } catch (const ConfigKeyError& error) {
    throw Error(error.code(), launch::message_of(error, key_positions(layered)));
  }
}

/// Sets environment variables that tune the workers' libraries, unless the user has set them.
void tune_workers() {
  // Lets OpenMP's threads spin 1,000 times (tens of microseconds) before they sleep. With the
  // default of 300,000, they would take CPU time on a busy machine from the threads they wait for.
  if (!environment_variable("OMP_WAIT_POLICY")) ::setenv("GOMP_SPINCOUNT", "1000", 0);
  // Lets malloc request huge pages: fewer TLB misses save 5 to 8 % of an epoch's time with large
  // linear layers, and a short run has half as many page faults.
  std::string tunables = environment_variable("GLIBC_TUNABLES").value_or("");
  constexpr const char* kHugePages = "glibc.malloc.hugetlb";
  if (tunables.find(kHugePages) != std::string::npos) return;
  if (!tunables.empty()) tunables += ':';
  ::setenv("GLIBC_TUNABLES", (tunables + kHugePages + "=1").c_str(), /*overwrite=*/1);
}

int run(std::vector<std::string> arguments) {
  LogSetup log;
  set_up_logging(log);
  CommandLine line = parse_command_line(std::move(arguments));
  log.level = line.quiet ? "warning" : line.log_level;
  set_up_logging(log);
  if (line.command == Command::kShowText) {
    print_text(line.text);
  } else if (line.command == Command::kConfigSchema) {
    print_text(settings::write_run_config_schema());
  } else if (line.command == Command::kFetch) {
    run_fetch(line);
  } else if (line.command == Command::kConvert) {
    run_convert(line);
  } else if (line.command == Command::kReport) {
    run_report(line);
  } else {
    return read_config_and_run(line);
  }
  return 0;
}

}  // namespace

}  // namespace mnist_train::cli

int main(int argc, char** argv) {
  using namespace mnist_train;
  // A run must continue if the pipe for its progress is closed (`| head`). Workers inherit this.
  ::signal(SIGPIPE, SIG_IGN);
  // If a file would exceed ulimit -f, write() then fails instead of killing the process.
  ::signal(SIGXFSZ, SIG_IGN);
  open_standard_streams();
  cli::tune_workers();
  try {
    return cli::run({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const std::exception& error) {
    const auto* app_error = dynamic_cast<const Error*>(&error);
    if (app_error != nullptr && app_error->code() == ExitCode::kDone) return 0;  // see print_text
    // Config errors may have multiple lines, which are not indented.
    const bool is_config = app_error != nullptr && app_error->code() == ExitCode::kConfig;
    std::cerr << (app_error == nullptr ? "mnist-train: " : "")
              << (is_config ? escape_control_bytes(error.what()) : as_block(error.what())) << '\n';
    launch::write_elastic_error_file(error.what());
    return static_cast<int>(app_error != nullptr ? app_error->code() : ExitCode::kRunFailed);
  }
}
