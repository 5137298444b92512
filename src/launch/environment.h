#pragma once

#include <functional>
#include <optional>
#include <string>

namespace mnist_train::launch {

using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

/// The process's own environment.
std::optional<std::string> environment_variable(const char* name);

/// Throws Error(kConfig) naming the variable, what it holds and what it may hold.
int integer_variable(const EnvironmentLookup& lookup, const char* name, int least, int most);

/// `otherwise` where the variable is not set.
int optional_integer(const EnvironmentLookup& lookup, const char* name, int least, int most,
                     int otherwise);

}  // namespace mnist_train::launch
