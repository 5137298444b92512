#pragma once

#include <exception>
#include <string>

#include "base/error.h"

namespace mnist_train::comm {

/// Returns whether memory ran out: a GPU's, or the host's in LibTorch's allocator, which has no
/// exception type for it.
bool is_out_of_memory(const std::exception& error);

/// Returns whether this rank caused the failure: a lack of memory, or an error of its GPU.
bool is_own_fault(const std::exception& error);

/// Returns whether a backend's wait for another rank timed out; that rank may still be there.
bool is_timeout(const std::exception& error);

/// Runs a collective. Exceptions of c10d or a backend mean that another rank is gone or late; they
/// become a PeerError that names the operation.
template <class Function>
auto translate_failures(const char* operation, Function&& function) {
  try {
    return function();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (is_own_fault(error)) throw;
    throw PeerError(std::string("lost another rank in ") + operation + ": " + short_message(error));
  }
}

}  // namespace mnist_train::comm
