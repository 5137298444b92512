#include "base/print.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace mnist_train {

std::string replaced(std::string text, std::string_view part, std::string_view by) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.replace(at, part.size(), by);
    at += by.size();
  }
  return text;
}

std::string shell_quoted(std::string_view text) {
  return "'" + replaced(std::string(text), "'", "'\\''") + "'";
}

void print_text(std::string_view text) {
  if (write_all(STDOUT_FILENO, text.data(), text.size())) return;
  throw Error(ExitCode::kRunFailed,
              std::string("cannot write to standard output: ") + std::strerror(errno));
}

void print_result(const nlohmann::ordered_json& json) { print_text(json_text(json) + "\n"); }

}  // namespace mnist_train
