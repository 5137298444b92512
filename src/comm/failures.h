#pragma once

#include <exception>
#include <string>

#include "base/error.h"

namespace mnist_train::comm {

/// What LibTorch or a backend says went wrong, on one line, without stack trace and without the
/// place in its sources: "[/pytorch/.../pair.cc:538] Read error" is "Read error".
std::string short_message(const std::exception& error);

/// Whether memory was asked for that was not there: of a GPU, or by LibTorch's allocator for CPUs,
/// which throws no type of its own.
bool is_out_of_memory(const std::exception& error);

/// Whether it is this rank's own trouble: a lack of memory, or an error of its GPU.
bool is_own_fault(const std::exception& error);

/// Whether a backend waited in vain for another rank, which may still be there.
bool is_timeout(const std::exception& error);

/// Runs a collective. What c10d or a backend throws means that another rank is gone or late, so it
/// becomes a PeerError that names the operation.
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
