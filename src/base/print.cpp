#include "base/print.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace mnist_train {

namespace {

/// Returns a byte as shells write it within $'…'.
std::string octal(char byte) {
  const auto digit = [byte](int shift) {
    return static_cast<char>('0' + ((static_cast<unsigned char>(byte) >> shift) & 7));
  };
  return {'\\', digit(6), digit(3), digit(0)};
}

}  // namespace

std::string replaced(std::string text, std::string_view part, std::string_view by) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.replace(at, part.size(), by);
    at += by.size();
  }
  return text;
}

std::string shell_quoted(std::string_view text) {
  const auto is_control = [](unsigned char byte) { return byte < 0x20 || byte == 0x7f; };
  if (std::none_of(text.begin(), text.end(), is_control)) {
    return "'" + replaced(std::string(text), "'", "'\\''") + "'";
  }
  std::string quoted;
  for (const char byte : text) {
    if (byte == '\'' || byte == '\\') quoted += '\\';
    quoted += is_control(static_cast<unsigned char>(byte)) ? octal(byte) : std::string(1, byte);
  }
  return "$'" + quoted + "'";
}

void print_text(std::string_view text) {
  if (write_all(STDOUT_FILENO, text.data(), text.size())) return;
  throw_errno("write to standard output");
}

void print_result(const nlohmann::ordered_json& json) { print_text(json_text(json) + "\n"); }

}  // namespace mnist_train
