#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace mnist_train::fake_gpu {

/// Writes a line to stderr, behind "[fake_gpu PID] ", by a single call of the system.
void write_line(const std::string& text);

/// Writes its concatenated arguments as a line to stderr.
template <class... Parts>
void say(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  write_line(text.str());
}

/// Says that the program made a call that CUDA forbids at that point, and why.
inline void say_misuse(std::string_view call, std::string_view reason) { say(call, ": ", reason); }

/// Says that `function` is not implemented, once for each of them, and returns `error`, a code of
/// the function's library.
int not_implemented(const char* function, int error);

/// For the stubs that make_stubs.py writes: launches a kernel of this library for a function that
/// computes something, whose first argument is the library's handle. Returns the library's status.
/// Each library that has such functions defines it; `function` is a literal.
int launch_with_handle(void* handle, const char* function);

}  // namespace mnist_train::fake_gpu
