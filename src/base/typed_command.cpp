#include "base/typed_command.h"

#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <string_view>

#include "base/file.h"
#include "base/print.h"
#include "base/system.h"

namespace mnist_train {

namespace fs = std::filesystem;

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

}  // namespace mnist_train
