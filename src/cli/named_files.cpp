#include "cli/named_files.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/checkpoint_file.h"
#include "base/file.h"
#include "launch/worker_identity.h"
#include "report/run_folder.h"

namespace mnist_train::cli {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse_file(const fs::path& path, const std::string& reason) {
  throw Error(ExitCode::kCheckpoint, path.string() + ": " + reason);
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Returns the file to use for a run folder, or for its folder of checkpoints.
fs::path file_of_run(const fs::path& folder, bool to_resume) {
  const fs::path inside = folder / settings::run_files::kCheckpoints;
  const fs::path& checkpoints = is_there(inside) ? inside : folder;
  fs::path file = checkpoints / kBestCheckpoint;
  const char* kind = "best checkpoint";
  if (to_resume || !is_there(file)) {
    file = newest_checkpoint(checkpoints).value_or("");
    kind = "newest checkpoint";
  }
  if (file.empty() && !to_resume) {
    file = folder / settings::RunConfig{}.model_file;
    kind = "final weights";
  }
  if (!is_there(file)) {
    refuse_file(folder,
                "is a folder without a checkpoint; expected a checkpoint, or the folder of a run "
                "that has saved one");
  }
  const auto identity = launch::identity_from_environment();
  const bool speaks_for_all = !identity || identity->rank == 0;
  if (speaks_for_all) spdlog::info("{}: using its {}, {}", folder.string(), kind, file.string());
  return file;
}

/// Returns the damage of a checkpoint; nothing if it is intact or another kind of file.
std::optional<std::string> damage_of(const fs::path& path, std::span<const std::uint8_t> bytes) {
  const nlohmann::json header = parse_header(bytes);
  if (!header.is_object()) {
    if (path.extension() != ".safetensors" || is_zip_file(bytes)) return std::nullopt;
    return "its header cannot be read";
  }
  if (!header.contains(kSealName) || matches_seal(bytes)) return std::nullopt;
  return "its bytes do not match its seal";
}

/// Replaces a run folder by one of its files, and refuses damaged files before a process starts or
/// a config is read from them.
void find_file(std::string& path, bool to_resume) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) path = file_of_run(path, to_resume).string();
  if (!fs::is_regular_file(path, ignored)) return;  // reported when it is read
  const MappedFile file = MappedFile::open(path, ExitCode::kCheckpoint);
  if (is_legacy_torch_file(file.bytes())) refuse_file(path, kLegacyTorchFile);
  const auto damage = damage_of(path, file.bytes());
  if (!damage) return;
  const auto other = newest_whole_checkpoint(fs::absolute(path).parent_path());
  refuse_file(path, "is damaged: " + *damage + "; " +
                        (other ? other->string() + " is intact"
                               : "there is no intact checkpoint in its folder"));
}

struct OutputKind {
  std::string_view writer;  // the command that writes such files; "": none
  std::vector<std::string_view> extensions;
};

const std::vector<OutputKind>& output_kinds() {
  static const std::vector<OutputKind> kinds{
      {"export --format pt", {".pt", ".pth"}},
      {"export --format safetensors", {".safetensors"}},
      {"export --format onnx", {".onnx"}},
      {"export --format python", {".py"}},
      {"preview", {".png"}},
      {"report", {".html", ".htm"}},
      {"", {".json", ".jsonl", ".bin", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".gz", ".zip"}}};
  return kinds;
}

std::string writer_of(const CommandLine& line) {
  if (line.command == Command::kExport) return "export --format " + line.export_format;
  if (line.command == Command::kPreview) return "preview";
  return line.command == Command::kReport ? "report" : "";
}

}  // namespace

nlohmann::json parse_header(std::span<const std::uint8_t> file) {
  using Json = nlohmann::json;
  const auto text = safetensors_header(file);
  if (!text) return {};
  const auto keep = [](int depth, Json::parse_event_t event, const Json& parsed) {
    const bool is_entry = depth == 1 && event == Json::parse_event_t::key;
    return !is_entry || parsed == kMetadataName || parsed == kSealName;
  };
  return Json::parse(*text, keep, /*allow_exceptions=*/false);
}

void find_checkpoints(CommandLine& line) {
  if (line.checkpoint_file) find_file(*line.checkpoint_file, /*to_resume=*/false);
  if (line.resume && *line.resume != "auto") find_file(*line.resume, /*to_resume=*/true);
}

void find_model_weights(settings::RunConfig& config) {
  if (!config.model.weights) return;
  std::string path = config.model.weights->string();
  find_file(path, /*to_resume=*/false);
  config.model.weights = path;
}

std::optional<std::string> misused_extension(const CommandLine& line) {
  const std::string writer = writer_of(line);
  if (writer.empty() || !line.output) return std::nullopt;
  std::string extension = fs::path(*line.output).extension();
  std::ranges::transform(extension, extension.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  const auto has_it = [&](const OutputKind& kind) {
    return std::ranges::count(kind.extensions, extension) > 0;
  };
  const auto other = std::ranges::find_if(output_kinds(), has_it);
  if (other == output_kinds().end() || other->writer == writer) return std::nullopt;
  const auto own = std::ranges::find(output_kinds(), writer, &OutputKind::writer);
  std::string text = fmt::format("--output {}: {} writes {} files", *line.output, writer,
                                 fmt::join(own->extensions, " or "));
  if (!other->writer.empty()) {
    text += fmt::format("; {} files are written by {}", extension, other->writer);
  }
  return text;
}

void check_output_file(const fs::path& path) {
  if (path == "-") throw Error(ExitCode::kConfig, "--output -: expected the name of a file");
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    throw Error(ExitCode::kConfig, path.string() + ": is a folder; expected the name of a file");
  }
  if (const auto run = report::run_that_wrote(path)) {
    throw Error(ExitCode::kConfig, "--output " + path.string() + ": is a file of the run in " +
                                       run->string() +
                                       ", which is never overwritten; choose another name");
  }
  const AtomicFile trial(path, ExitCode::kConfig);  // without commit nothing changes
}

}  // namespace mnist_train::cli
