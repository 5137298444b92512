#include "base/print.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/system.h"

namespace mnist_train {

namespace fs = std::filesystem;

Utf8Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, lead};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const std::size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < size) return {};
  std::uint32_t code = lead & (0x7fU >> size);
  for (std::size_t at = 1; at < size; ++at) {
    if (!continues_character(text[at])) return {};
    code = code << 6U | (byte(at) & 0x3fU);
  }
  const std::uint32_t least = size == 2 ? 0x80 : size == 3 ? 0x800 : 0x10000;
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < least || code > 0x10ffff || is_surrogate ? Utf8Character{}
                                                         : Utf8Character{size, code};
}

std::string replaced(std::string text, std::string_view part, std::string_view by) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.replace(at, part.size(), by);
    at += by.size();
  }
  return text;
}

std::string shortened(std::string_view text, std::size_t most) {
  constexpr std::string_view kEllipsis = "…";
  if (text.size() <= most) return std::string(text);
  std::size_t end = most - std::min(most, kEllipsis.size());
  while (end > 0 && continues_character(text[end])) --end;
  return std::string(text.substr(0, end)).append(kEllipsis);
}

std::string name_or_number(const std::vector<std::string>& names, std::size_t number) {
  return number < names.size() ? names[number] : std::to_string(number);
}

std::string first_names(std::span<const std::string> names, std::size_t most) {
  const auto named = names.first(std::min(names.size(), most));
  return fmt::format("{}{}", fmt::join(named, ", "), named.size() < names.size() ? ", …" : "");
}

std::string shell_quoted(std::string_view text) {
  const auto is_control = [](unsigned char byte) { return byte < 0x20 || byte == 0x7f; };
  if (std::none_of(text.begin(), text.end(), is_control)) {
    return "'" + replaced(std::string(text), "'", "'\\''") + "'";
  }
  std::string quoted;
  for (const char byte : text) {
    if (byte == '\'' || byte == '\\') quoted += '\\';
    const auto code = static_cast<unsigned char>(byte);
    quoted += is_control(code) ? fmt::format("\\{:03o}", code) : std::string(1, byte);
  }
  return "$'" + quoted + "'";
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,+@%=";
  const bool is_plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos;
  return is_plain ? text : shell_quoted(text);
}

std::string program_to_type() {
  std::string name = "mnist-train";
  std::istringstream folders(environment_variable("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((fs::path(folder) / name).c_str(), X_OK) == 0) return name;
  }
  const fs::path called = program_invocation_name;  // in a rank that of another program
  if (called.has_parent_path() && called.filename() == name) return called.string();
  // An installation puts the other programs in ../libexec/mnist-train.
  const fs::path beside = executable_folder() / name;
  const fs::path installed = executable_folder().parent_path().parent_path() / "bin" / name;
  const bool is_beside = ::access(beside.c_str(), X_OK) == 0;
  const fs::path typed = path_to_type(is_beside ? beside : installed);
  return typed.has_parent_path() ? typed.string() : "./" + name;
}

fs::path path_to_type(const fs::path& path) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  const fs::path relative = error ? path : path.lexically_relative(here);
  return relative.empty() || *relative.begin() == ".." ? path : relative;
}

void print_text(std::string_view text) {
  if (write_all(STDOUT_FILENO, text.data(), text.size())) return;
  throw_errno("write to standard output");
}

void print_result(const OrderedJson& json) { print_text(json_text(json) + "\n"); }

}  // namespace mnist_train
