#pragma once

#include <sstream>
#include <string>
#include <string_view>

namespace mnist_train::fake_gpu {

/// Writes a line to stderr after "[fake_gpu PID] ", with a single system call.
void write_line(const std::string& text);

/// Writes its concatenated arguments as a line to stderr.
template <class... Parts>
void say(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  write_line(text.str());
}

/// Reports that the program made a call that CUDA forbids at that point, and why.
inline void say_misuse(std::string_view call, std::string_view reason) { say(call, ": ", reason); }

/// Reports, once per function, that it is not implemented. Returns `error`, a code of its library.
int not_implemented(const char* function, int error);

/// Launches a no-op kernel in a stub (make_stubs.py) of a function that computes something and
/// whose first argument is the library's handle. Returns the library's status. Each library with
/// such functions defines it; `function` is a literal.
int launch_with_handle(void* handle, const char* function);

}  // namespace mnist_train::fake_gpu
