#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "settings/run_config.h"
#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::settings {

/// Parses the text of a config file; relative paths are resolved against "/base folder".
inline RunConfig read(const std::string& text) {
  return parse_run_config({"f", text, "/base folder"});
}

/// Returns the lines of the error message for a config file's text; none if it is valid.
inline std::vector<std::string> lines_for(const std::string& text) {
  const auto failure = testing::error_of([&] { read(text); });
  if (!failure.message.empty()) CHECK(failure.code == ExitCode::kConfig);
  std::vector<std::string> lines;
  std::istringstream stream(failure.message);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace mnist_train::settings
