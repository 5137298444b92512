#include "cli/checkpoint_config.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace mnist_train::cli {

namespace {

constexpr const char* kStateKey = "mnist-train.state";

/// The JSON header of a safetensors file; a discarded value when it is something else.
nlohmann::json header_of(const MappedFile& file) {
  std::uint64_t length = 0;
  const auto bytes = file.bytes();
  if (bytes.size() < sizeof length) return nullptr;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - sizeof length) return nullptr;
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + sizeof length;
  return nlohmann::json::parse(text, text + length, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::shared_ptr<const config::Source> config_of_checkpoint(const std::filesystem::path& path) {
  const MappedFile file = MappedFile::open(path, ExitCode::kCheckpoint);
  try {
    const nlohmann::json header = header_of(file);
    const auto& state = header.at("__metadata__").at(kStateKey).get_ref<const std::string&>();
    auto source = std::make_shared<config::Source>();
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
