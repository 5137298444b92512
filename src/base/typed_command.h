#pragma once

#include <filesystem>
#include <string>

namespace mnist_train {

// Words of commands that a user is to type.

/// Quotes the text where a shell would not take it for one plain word.
std::string shell_word(const std::string& text);
/// Returns what a user types to start this program: its name where a shell finds it, else its path.
std::string program_to_type();
/// Returns a path for a command: relative to the working directory where it lies in it.
std::filesystem::path path_to_type(const std::filesystem::path& path);

}  // namespace mnist_train
