#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <string_view>

#include "base/error.h"

namespace mnist_train::comm {

/// LibTorch's messages carry stack traces; the first line says what happened.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

/// Runs a collective. What c10d or a backend throws means that another rank is gone or late, so it
/// becomes a PeerError that names the operation.
template <class Function>
auto translate_failures(const char* operation, Function&& function) {
  try {
    return function();
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError(std::string("lost another rank in ") + operation + ": " +
                    first_line(error.what()));
  }
}

}  // namespace mnist_train::comm
