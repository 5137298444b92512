#pragma once

#include <filesystem>
#include <string>

namespace mnist_train {

/// Returns where a program or module of ours lies: beside the running executable, or in
/// ../libexec/mnist-train, where an installation puts what is not for users. Empty where it is in
/// neither.
std::filesystem::path find_program_file(const std::string& name);

/// A shared library that is loaded at run time and stays loaded: it may have started threads.
///
///     const SharedLibrary driver("libcuda.so.1");
///     if (const auto init = driver.find<int(unsigned)>("cuInit")) init(0);
class SharedLibrary {
 public:
  /// Says who sees the library's symbols: only `find`, or also libraries that are loaded later.
  enum class Symbols { kPrivate, kShared };

  /// Loads a library by its path, or by a name that the system's loader looks up. One that cannot
  /// be loaded is not an error here: see `loaded`.
  explicit SharedLibrary(const std::string& file, Symbols symbols = Symbols::kPrivate);

  bool loaded() const { return handle_ != nullptr; }

  /// Returns why the library was not loaded, in the loader's words.
  const std::string& error() const { return error_; }

  /// Returns the library's C function of that name, or null where it has none or is not loaded.
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
