#include "cli/data_commands.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/print.h"
#include "base/shared_library.h"
#include "data/convert.h"

namespace mnist_train::cli {

namespace {

/// What follows "FORMAT:" in an argument of `flag`; nothing where it is another format.
std::optional<std::string> behind(const std::string& format, const std::string& argument) {
  if (!argument.starts_with(format + ":") || argument.size() == format.size() + 1) {
    return std::nullopt;
  }
  return argument.substr(format.size() + 1);
}

data::ConvertOptions convert_options(const CommandLine& line) {
  const auto from = behind("idx", line.from);
  if (!from) {
    throw Error(ExitCode::kConfig,
                "mnist-train convert: --from " + line.from + ": expected idx:DIR");
  }
  const auto lmdb = behind("lmdb", line.to);
  const auto folder = behind("image-folder", line.to);
  if (!lmdb && !folder) {
    throw Error(ExitCode::kConfig,
                "mnist-train convert: --to " + line.to + ": expected lmdb:DIR or image-folder:DIR");
  }
  data::ConvertOptions options;
  options.from = *from;
  options.target = lmdb ? data::ConvertTarget::kLmdb : data::ConvertTarget::kImageFolder;
  options.to = lmdb ? *lmdb : *folder;
  options.jpeg = line.encoding.empty() ? lmdb.has_value() : line.encoding == "jpeg";
  options.quality = line.jpeg_quality;
  return options;
}

}  // namespace

void run_fetch(const CommandLine& line) {
  const std::string program = find_program_file("mnist-train-fetch").string();
  std::vector<std::string> words{"mnist-train-fetch", line.data_set, line.to};
  words.insert(words.end(), line.mirrors.begin(), line.mirrors.end());
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw Error(ExitCode::kConfig, std::string("mnist-train-fetch: cannot start: ") +
                                     std::strerror(errno) + "; scripts/setup builds it");
}

std::string run_convert(const CommandLine& line) {
  const data::ConvertOptions options = convert_options(line);
  const data::Converted converted = data::convert(options);
  const nlohmann::ordered_json json = {
      {"format", options.target == data::ConvertTarget::kLmdb ? "lmdb" : "image-folder"},
      {"train", converted.train},
      {"test", converted.test},
      {"folder", options.to.string()}};
  return json_text(json) + "\n";
}

}  // namespace mnist_train::cli
