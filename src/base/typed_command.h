#pragma once

#include <filesystem>
#include <string>

namespace mnist_train {

// Commands for users to type.

/// Quotes the text unless it is a plain word for a shell.
std::string shell_word(const std::string& text);
/// Returns the command that starts this program: its name if it is in PATH, else its path.
std::string program_to_type();
/// Returns a path for a command: relative if it is inside the working directory.
std::filesystem::path path_to_type(const std::filesystem::path& path);

}  // namespace mnist_train
