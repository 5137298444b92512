#include "cli/checkpoint_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/safetensors_header.h"

namespace mnist_train::cli {

namespace {

/// Null or a discarded value when it is something else.
nlohmann::json header_of(const MappedFile& file) {
  const auto header = safetensors_header(file.bytes());
  if (!header) return nullptr;
  return nlohmann::json::parse(*header, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::shared_ptr<const strict_json::Source> config_of_checkpoint(const std::filesystem::path& path) {
  const MappedFile file = MappedFile::open(path, ExitCode::kCheckpoint);
  const nlohmann::json header = header_of(file);
  if (!header.is_object() && path.extension() == ".safetensors") {
    throw Error(ExitCode::kCheckpoint, path.string() + ": is damaged: its header cannot be read");
  }
  try {
    const auto& state =
        header.at("__metadata__").at(kCheckpointState).get_ref<const std::string&>();
    auto source = std::make_shared<strict_json::Source>();
    source->name = path.string();
    source->text = nlohmann::ordered_json::parse(state).at("config").dump();
    source->base_folder = std::filesystem::absolute(path).parent_path();
    return source;
  } catch (const nlohmann::json::exception&) {
    throw Error(ExitCode::kConfig,
                path.string() + ": does not say what it was trained with: give --config");
  }
}

}  // namespace mnist_train::cli
