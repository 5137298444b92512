#pragma once

#include <filesystem>
#include <string>

namespace mnist_train {

/// Returns the path of one of our programs or modules: beside the running executable, or in
/// ../libexec/mnist-train, the folder for internal programs. Empty if it is in neither.
std::filesystem::path find_program_file(const std::string& name);

/// A shared library loaded at run time. It is never unloaded, because it may have started threads.
///
///     const SharedLibrary driver("libcuda.so.1");
///     if (const auto init = driver.find<int(unsigned)>("cuInit")) init(0);
class SharedLibrary {
 public:
  /// Visibility of the symbols: only through `find`, or also for libraries loaded later.
  enum class Symbols { kPrivate, kShared };

  /// Loads a library by its path, or by a name that the loader looks up. Does not throw: see
  /// `loaded`.
  explicit SharedLibrary(const std::string& file, Symbols symbols = Symbols::kPrivate);

  bool loaded() const { return handle_ != nullptr; }

  /// Returns the loader's error message.
  const std::string& error() const { return error_; }

  /// Returns the C function of that name, or null.
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  void* handle_;
  std::string error_;
};

}  // namespace mnist_train
