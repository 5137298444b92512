#pragma once

#include <string>

#include "base/error.h"

namespace mnist_train::testing {

/// What an action threw; `message` is empty when it threw nothing.
struct Failure {
  ExitCode code = ExitCode::kDone;
  std::string message;
  bool is_peer_error = false;
};

/// Runs an action that should throw an Error; other exceptions pass.
template <typename Action>
Failure error_of(const Action& action) {
  try {
    action();
  } catch (const PeerError& error) {
    return {error.code(), error.what(), true};
  } catch (const Error& error) {
    return {error.code(), error.what(), false};
  }
  return {};
}

}  // namespace mnist_train::testing
