#include "cli/checkpoint_files.h"

#include <spdlog/spdlog.h>

#include <optional>

#include "base/checkpoint_file.h"
#include "base/file.h"
#include "base/typed_command.h"
#include "launch/worker_identity.h"

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

/// Refuses damaged files before a process starts or a config is read from them.
void check_file(const fs::path& path, const CommandLine& line, const char* flag,
                const std::string& key) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;  // reported when it is read
  const MappedFile file = MappedFile::open(path, ExitCode::kCheckpoint);
  if (is_legacy_torch_file(file.bytes())) refuse_file(path, kLegacyTorchFile);
  const auto damage = damage_of(path, file.bytes());
  if (!damage) return;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const auto other = newest_whole_checkpoint(folder);
  refuse_file(path, "is damaged: " + *damage +
                        (other ? "; to use an intact one from the same folder:\n" +
                                     typed_with(line, flag, key + path_to_type(*other).string())
                               : "; no step-*.safetensors or best.safetensors in its folder is "
                                 "intact"));
}

/// `flag` names the path, as its value or as that of a key of the config ("KEY=").
void find_file(std::string& path, const CommandLine& line, const char* flag,
               const std::string& key = "") {
  const bool to_resume = flag == std::string("--resume");
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) path = file_of_run(path, to_resume).string();
  check_file(path, line, flag, key);
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
  if (line.checkpoint_file) find_file(*line.checkpoint_file, line, "--checkpoint");
  if (line.resume && *line.resume != "auto") find_file(*line.resume, line, "--resume");
}

void find_model_weights(const CommandLine& line, settings::RunConfig& config) {
  if (!config.model.weights) return;
  std::string path = config.model.weights->string();
  find_file(path, line, "--set", "model.weights=");
  config.model.weights = path;
}

}  // namespace mnist_train::cli
