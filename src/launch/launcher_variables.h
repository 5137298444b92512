#pragma once

#include <initializer_list>
#include <string>

#include "launch/worker_identity.h"

namespace mnist_train::launch {

inline constexpr int kMostTasks = 1 << 20;

/// Refuses the start: throws Error(kConfig) with this message.
[[noreturn]] void refuse_environment(const std::string& message);

/// Returns the variable's number. Throws Error(kConfig) that names the variable, what it holds and
/// what it may hold.
int integer_variable(const EnvironmentLookup& lookup, const char* name, int least, int most);

/// Returns the same, or `otherwise` if the variable is not set.
int optional_integer(const EnvironmentLookup& lookup, const char* name, int least, int most,
                     int otherwise);

/// Throws Error(kConfig) that names which of the variables are set and which are not, unless all
/// are, and the launcher that sets them.
void require_all_variables(const EnvironmentLookup& lookup,
                           std::initializer_list<const char*> names, const char* launcher);

/// Takes MASTER_PORT if it is set, else a port that follows from the job, whose name was read from
/// `source`.
void choose_port(const EnvironmentLookup& lookup, const std::string& job, const std::string& source,
                 WorkerIdentity& identity);

}  // namespace mnist_train::launch
